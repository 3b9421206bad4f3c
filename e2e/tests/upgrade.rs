//! A change of `spec.version` restarts the control plane on the new version, and back, and its
//! workers follow. This needs a stack whose catalogue has both versions; `make test-slow` starts
//! one.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use yoke_api::{ClusterSpec, ConditionType};
use yoke_e2e::ssh::Key;
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::worker::ECHO;
use yoke_e2e::{Stack, TenantFixture, Worker, Workload, wait_until};

const FROM: &str = "v1.35.4";
const TO: &str = "v1.35.5";

/// Timeout until two workers were drained, restarted their kubelet and became Ready, one after the
/// other.
const FOLLOW_LIMIT: Duration = Duration::from_secs(300);

#[tokio::test]
async fn version_goes_up_and_back_within_a_minor() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "upgrade").await?;
    tenant
        .create_cluster(
            "a",
            ClusterSpec {
                version: Some(FROM.into()),
                ..ClusterSpec::default()
            },
        )
        .await?;
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;
    let kubeconfig = tenant.kubeconfig("a").await?;
    stack
        .kubectl(&kubeconfig, &["create", "configmap", "kept"])
        .await?
        .ok()?;

    for (step, version) in [(2, TO), (3, FROM)] {
        tenant.patch_cluster("a", json!({"spec": {"version": version}})).await?;
        let cluster = tenant
            .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
            .await?;
        let status = cluster.status.context("no status")?;
        ensure!(status.version.as_deref() == Some(version), "runs {:?}", status.version);
        let history: Vec<_> = status.history.iter().map(|entry| entry.version.as_str()).collect();
        ensure!(
            history.len() == step && history.first() == Some(&version),
            "history is {history:?}"
        );
        ensure!(
            status.history.iter().all(|entry| entry.completed.is_some()),
            "{:?}",
            status.history
        );
        let answer = stack.kubectl(&kubeconfig, &["version", "-o", "json"]).await?.ok()?;
        ensure!(answer.contains(&format!("\"gitVersion\": \"{version}\"")), "{answer}");
        stack.kubectl(&kubeconfig, &["get", "configmap", "kept"]).await?.ok()?;
    }
    tenant.remove().await
}

#[tokio::test]
async fn workers_follow_one_after_another() -> Result<()> {
    let stack = Stack::connect().await?;
    let key = Key::generate().await?;
    let tenant = TenantFixture::create_with(&stack, "follow", key.to_spec()).await?;
    let spec = ClusterSpec {
        version: Some(FROM.into()),
        ..ClusterSpec::default()
    };
    let (_, kubeconfig) = tenant.ready_cluster_with("a", spec).await?;
    let inside = Workload {
        stack: &stack,
        kubeconfig: &kubeconfig,
    };
    let workers = [
        Worker::join(&stack, &key.path, "a").await?,
        Worker::join(&stack, &key.path, "a").await?,
    ];
    let image = format!("--image={ECHO}");
    inside
        .kubectl(&["create", "deployment", "web", &image, "--replicas=2"])
        .await?;
    inside
        .kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"])
        .await?;
    let find = "jsonpath={range .items[*]}{.status.nodeInfo.kubeletVersion} {.spec.unschedulable}{\"\\n\"}{end}";
    let nodes = async || -> Result<Vec<String>> {
        let found = inside.kubectl(&["get", "nodes", "-o", find]).await?;
        Ok(found.lines().map(|line| line.trim().to_owned()).collect())
    };
    ensure!(nodes().await? == [FROM; 2], "{:?}", nodes().await?);

    tenant.patch_cluster("a", json!({"spec": {"version": TO}})).await?;
    wait_until("both workers to have the version", FOLLOW_LIMIT, async || {
        // The cluster's API server restarts first.
        let Ok(found) = nodes().await else { return Ok(false) };
        let away = found.iter().filter(|node| node.ends_with("true")).count();
        ensure!(away <= 1, "more than one is drained at a time: {found:?}");
        Ok(found == [TO; 2])
    })
    .await?;
    let updated = ConditionType::WorkersUpdated;
    let cluster = tenant.wait_condition("a", updated, "True", READY_LIMIT).await?;
    let counts = cluster.status.and_then(|status| status.workers).context("no workers")?;
    ensure!((counts.total, counts.updated) == (2, 2), "{counts:?}");
    inside
        .kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"])
        .await?;
    for worker in workers {
        worker.remove().await?;
    }
    tenant.remove().await
}
