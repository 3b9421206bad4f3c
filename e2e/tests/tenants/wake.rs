//! A Cluster sleeps until it is needed. A permitted client wakes it with a request, and notices
//! only a slower answer.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use yoke_api::cluster::{ClusterSpec, DesiredState, EndpointSpec};
use yoke_api::labels::{SLEEP, SLEEP_END, SLEEP_NOW};
use yoke_api::sleep::{ActivityStatus, SleepSpec};
use yoke_api::{Cluster, ConditionType, TenantSpec};
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::{Stack, TenantFixture, wait_for, wait_until};

/// Additional name of the cluster.
const FURTHER: &str = "api.wake.example";

async fn send_to_sleep(stack: &Stack, tenant: &TenantFixture) -> Result<()> {
    let annotation = json!({"metadata": {"annotations": {SLEEP: SLEEP_NOW}}});
    let cluster = tenant.patch_cluster("a", annotation).await?;
    tenant
        .wait_condition("a", ConditionType::Asleep, "True", READY_LIMIT)
        .await?;
    let hosted = hosted_namespace(&cluster)?;
    let pods = stack
        .host_kubectl(&["get", "pods", "-n", &hosted, "-o", "name"])
        .await?
        .ok()?;
    ensure!(pods.is_empty(), "asleep with {pods}");
    Ok(())
}

/// Runs kubectl against a cluster that its request wakes. Tries again only if the answer says that
/// the wake takes longer (for example because other starts come first), or after kubectl's own
/// timeout.
async fn run_and_wake(stack: &Stack, kubeconfig: &Path, args: &[&str]) -> Result<String> {
    const LATE: [&str; 3] = [
        "Ask the cluster's owner",
        "Client.Timeout exceeded",
        "context deadline exceeded",
    ];
    let answer = wait_for("a cluster that wakes to answer", READY_LIMIT, || async {
        let answer = stack.kubectl(kubeconfig, args).await?;
        let is_late = LATE.iter().any(|late| answer.stderr.contains(late));
        Ok((!is_late).then_some(answer))
    });
    answer.await?.ok()
}

fn activity(cluster: &Cluster) -> ActivityStatus {
    let status = cluster.status.as_ref();
    status.and_then(|status| status.activity.clone()).unwrap_or_default()
}

fn reason_of(cluster: &Cluster, kind: ConditionType) -> Option<&str> {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let condition = conditions.find(|condition| condition.type_ == kind.as_str())?;
    Some(&condition.reason)
}

/// Writes a changed copy of an administrator's kubeconfig to a file with this extension.
fn write_changed_kubeconfig(
    kubeconfig: &Path,
    ending: &str,
    change: impl FnOnce(&mut serde_json::Value),
) -> Result<PathBuf> {
    let text = std::fs::read_to_string(kubeconfig).context("reading the kubeconfig")?;
    let mut config: serde_json::Value = serde_saphyr::from_str(&text).context("parsing the kubeconfig")?;
    change(&mut config);
    let path = kubeconfig.with_extension(ending);
    std::fs::write(&path, config.to_string()).context("writing a kubeconfig")?;
    Ok(path)
}

#[tokio::test]
async fn only_an_authenticated_request_wakes_a_cluster() -> Result<()> {
    let stack = Stack::connect().await?;
    let owner = TenantSpec {
        allowed_domains: vec!["wake.example".into()],
        ..TenantSpec::default()
    };
    let tenant = TenantFixture::create_with(&stack, "wake", owner).await?;
    let endpoint = EndpointSpec {
        extra_sans: vec![FURTHER.into()],
        ..EndpointSpec::default()
    };
    let spec = ClusterSpec {
        endpoint,
        ..ClusterSpec::default()
    };
    let (_, kubeconfig) = tenant.ready_cluster_with("a", spec).await?;
    let kept = ["create", "configmap", "kept", "--from-literal=k=v"];
    stack.kubectl(&kubeconfig, &kept).await?.ok()?;
    send_to_sleep(&stack, &tenant).await?;

    let stranger = write_changed_kubeconfig(&kubeconfig, "stranger", |config| {
        config["users"][0]["user"] = json!({"token": "nobody"});
    })?;
    for _ in 0..3 {
        let refusal = stack.kubectl(&stranger, &["get", "namespaces"]).await?.refused()?;
        ensure!(
            refusal.contains("nauthorized") || refusal.contains("logged in"),
            "{refusal}"
        );
    }
    let asleep = tenant.clusters().get("a").await?;
    ensure!(
        activity(&asleep).wake_requested_time.is_none(),
        "an unauthenticated request woke it: {:?}",
        activity(&asleep)
    );

    let kept = ["get", "configmap", "kept", "-o", "jsonpath={.data.k}"];
    let value = run_and_wake(&stack, &kubeconfig, &kept).await?;
    ensure!(value == "v", "{value:?}");
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;
    let awake = tenant.clusters().get("a").await?;
    ensure!(activity(&awake).asleep_since().is_none(), "{:?}", activity(&awake));

    // Wake by an additional name, once its certificate exists.
    send_to_sleep(&stack, &tenant).await?;
    let further = write_changed_kubeconfig(&kubeconfig, "further", |config| {
        config["clusters"][0]["cluster"]["tls-server-name"] = json!(FURTHER);
    })?;
    wait_until("an answer by the additional name", READY_LIMIT, || async {
        let answer = stack.kubectl(&further, &kept).await?;
        Ok(answer.ok().is_ok_and(|value| value == "v"))
    })
    .await?;
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;

    // Wake with the annotation.
    send_to_sleep(&stack, &tenant).await?;
    let annotation = json!({"metadata": {"annotations": {SLEEP: SLEEP_END}}});
    tenant.patch_cluster("a", annotation).await?;
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;
    tenant.remove().await
}

#[tokio::test]
async fn sleep_by_the_owner_is_reported_and_not_ended() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "owner").await?;
    let (_, kubeconfig) = tenant.ready_cluster("a").await?;
    tenant.patch_cluster("a", json!({"spec": {"state": "Asleep"}})).await?;
    tenant
        .wait_condition("a", ConditionType::Asleep, "True", READY_LIMIT)
        .await?;
    wait_until("callers to see the owner's sleep", READY_LIMIT, || async {
        let answer = stack.kubectl(&kubeconfig, &["get", "namespaces"]).await?;
        Ok(answer.refused().is_ok_and(|text| text.contains("spec.state")))
    })
    .await?;
    // Without a cache, kubectl's first request is for API discovery.
    let caches = tempfile::tempdir()?;
    let cache = format!("--cache-dir={}", caches.path().display());
    let refusal = stack
        .kubectl(&kubeconfig, &["get", "namespaces", &cache])
        .await?
        .refused()?;
    ensure!(refusal.contains("spec.state"), "{refusal}");
    let asleep = tenant.clusters().get("a").await?;
    ensure!(
        activity(&asleep) == ActivityStatus::default(),
        "{:?}",
        activity(&asleep)
    );

    tenant.patch_cluster("a", json!({"spec": {"state": "Running"}})).await?;
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;
    stack.kubectl(&kubeconfig, &["get", "namespaces"]).await?.ok()?;
    tenant.remove().await
}

/// An idle cluster falls asleep despite the requests of its own controllers, and again after a
/// wake.
#[tokio::test]
async fn an_idle_cluster_falls_asleep() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "unused").await?;
    let sleep = SleepSpec {
        after_inactivity: Some("1m".into()),
        ..SleepSpec::default()
    };
    let spec = ClusterSpec {
        sleep,
        ..ClusterSpec::default()
    };
    let (_, kubeconfig) = tenant.ready_cluster_with("a", spec).await?;
    for _ in 0..2 {
        let asleep = tenant
            .wait_condition("a", ConditionType::Asleep, "True", READY_LIMIT)
            .await?;
        let reason = reason_of(&asleep, ConditionType::Asleep);
        ensure!(reason == Some("AsleepOnInactivity"), "{reason:?}");
        run_and_wake(&stack, &kubeconfig, &["get", "namespaces"]).await?;
        tenant
            .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
            .await?;
    }
    tenant.remove().await
}

/// The API server never answers with an invalid argument. The Cluster wakes once the argument is
/// fixed.
#[tokio::test]
async fn a_failed_wake_reports_the_reason() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "stuck").await?;
    let (_, kubeconfig) = tenant.ready_cluster("a").await?;
    // After this request, kubectl has cached API discovery.
    stack.kubectl(&kubeconfig, &["get", "namespaces"]).await?.ok()?;
    send_to_sleep(&stack, &tenant).await?;
    let arguments = |given: serde_json::Value| json!({"spec": {"extraArgs": {"apiServer": given}}});
    let wrong = arguments(json!([{"name": "event-ttl", "value": "never"}]));
    tenant.patch_cluster("a", wrong).await?;
    let caches = tempfile::tempdir()?;
    let cache = format!("--cache-dir={}", caches.path().display());
    for options in [&[][..], &[cache.as_str()]] {
        let asked = [&["get", "namespaces"], options].concat();
        // Other starts may come first. The reason is known only after its start was tried.
        wait_until("callers to see the reason", READY_LIMIT, || async {
            let refusal = stack.kubectl(&kubeconfig, &asked).await?.refused()?;
            let says_why = refusal.contains("kube-apiserver") && refusal.contains("Ask the cluster's owner");
            ensure!(says_why, "{asked:?}: {refusal}");
            Ok(true)
        })
        .await?;
    }
    wait_until("the condition WakeDelayed", READY_LIMIT, || async {
        let delayed = tenant.clusters().get("a").await?;
        Ok(reason_of(&delayed, ConditionType::Asleep) == Some("WakeDelayed"))
    })
    .await?;
    let events = ["get", "events", "-n", &tenant.name, "-o", "jsonpath={.items[*].reason}"];
    wait_until("the event WakeDelayed", READY_LIMIT, || async {
        Ok(stack.host_kubectl(&events).await?.ok()?.contains("WakeDelayed"))
    })
    .await?;

    tenant.patch_cluster("a", arguments(json!([]))).await?;
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;
    stack.kubectl(&kubeconfig, &["get", "namespaces"]).await?.ok()?;
    tenant.remove().await
}

/// The ingress, which answers for sleeping clusters, may write only the wake request.
#[tokio::test]
async fn the_ingress_writes_one_field_of_a_cluster() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "wakefield").await?;
    let spec = ClusterSpec {
        state: DesiredState::Asleep,
        ..ClusterSpec::default()
    };
    tenant.create_cluster("a", spec).await?;
    tenant
        .wait_condition("a", ConditionType::Asleep, "True", READY_LIMIT)
        .await?;
    let client = stack
        .host_as("system:serviceaccount:yoke-system:yoke-ingress-xds")
        .await?;
    let clusters: Api<Cluster> = Api::namespaced(client, &tenant.name);
    for (what, status, allowed) in [
        ("the version", json!({"version": "1.0.0"}), false),
        (
            "a request to sleep",
            json!({"activity": {"sleepRequestedTime": "2030-01-01T00:00:00Z"}}),
            false,
        ),
        (
            "a wake",
            json!({"activity": {"wakeRequestedTime": "2029-01-01T00:00:00Z"}}),
            true,
        ),
        ("the conditions", json!({"conditions": []}), false),
        (
            "the same wake",
            json!({"activity": {"wakeRequestedTime": "2029-01-01T00:00:00Z"}}),
            true,
        ),
        (
            "an earlier one",
            json!({"activity": {"wakeRequestedTime": "2028-01-01T00:00:00Z"}}),
            false,
        ),
    ] {
        let patch = Patch::Merge(json!({ "status": status }));
        let written = clusters.patch_status("a", &PatchParams::default(), &patch).await;
        ensure!(written.is_ok() == allowed, "{what}: {written:?}");
    }
    tenant.remove().await
}
