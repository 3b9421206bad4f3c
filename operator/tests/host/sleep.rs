//! A Cluster that sleeps on request, by an annotation, until the ingress records that a client
//! connected.

use k8s_openapi::api::core::v1::{Binding, ConfigMap, Event, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use yoke_api::Cluster;
use yoke_api::cluster::{ClusterSpec, DesiredState};
use yoke_api::ingress::{Asleep, Callers, IngressConfig};
use yoke_test_support::nats::Server;

use crate::harness::{Host, TENANT, condition};
use crate::readiness::{ready, report_set, run_pod, run_ready};
use crate::tenant_api::TenantServer;

const SLEEP: &str = "yoke.drzzl.io/sleep";

/// Returns the sleep state that is published to the ingress.
async fn published(host: &Host) -> Option<Asleep> {
    let map = host.api::<ConfigMap>(&host.hosted("a").await).get("yoke-ingress").await;
    let text = map.unwrap().data.unwrap().remove("ingress.json").unwrap();
    serde_json::from_str::<IngressConfig>(&text).unwrap().asleep
}

/// Reconciles until the published sleep state is as wanted.
async fn reconcile_until_published(host: &Host, what: &str, holds: impl FnMut(&Option<Asleep>) -> bool) {
    host.reconcile_until("a", what, async || published(host).await, holds)
        .await;
}

async fn annotate(host: &Host, value: &str) {
    host.patch_cluster("a", json!({"metadata": {"annotations": {SLEEP: value}}}))
        .await;
}

async fn asleep_condition(host: &Host) -> String {
    condition(&host.cluster("a").await, "Asleep")
}

async fn end_pod(host: &Host) {
    let pods = host.api::<Pod>(&host.hosted("a").await);
    let now = DeleteParams::default().grace_period(0);
    pods.delete("control-plane-0", &now).await.unwrap();
}

/// The kubelet has not reported yet that the API answers.
async fn report_unready(host: &Host) {
    let pods = host.api::<Pod>(&host.hosted("a").await);
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let params = PatchParams::default();
    pods.patch_status("control-plane-0", &params, &Patch::Merge(status))
        .await
        .unwrap();
}

/// Records a connection as the ingress does: its own field, and nothing else.
async fn connect(host: &Host, time: Timestamp) {
    let patch = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
        "status": {"activity": {"wakeRequestedTime": time.to_string()}}});
    let params = PatchParams::apply("yoke-ingress-xds").force();
    host.clusters()
        .patch_status("a", &params, &Patch::Apply(&patch))
        .await
        .unwrap();
}

/// Records a connection later than the published start of the sleep, as of an ingress whose clock
/// is behind.
async fn connect_later(host: &Host) {
    let Some(Asleep::OnConnect { since, .. }) = published(host).await else {
        panic!("{:?}", published(host).await);
    };
    connect(host, since.0 + SignedDuration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_wakes_a_cluster_that_sleeps_by_annotation() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    assert_eq!(published(&host).await, None);

    annotate(&host, "now").await;
    let observe = async || (ready(&host).await, host.replicas("a").await);
    let expected = ("False/AsleepOnRequest".to_owned(), Some(0));
    host.reconcile_until_equal("a", "the condition Ready and the replicas", observe, expected)
        .await;
    let cluster = host.cluster("a").await;
    assert!(!cluster.metadata.annotations.unwrap_or_default().contains_key(SLEEP));
    let Some(Asleep::OnConnect { callers, .. }) = published(&host).await else {
        panic!("{:?}", published(&host).await);
    };
    assert_eq!(callers, Callers::Authenticated);
    end_pod(&host).await;
    host.reconcile_until_condition("a", "Asleep", "True/AsleepOnRequest")
        .await;

    // An operator that has just started finds the same state.
    let mut host = host;
    host.restart_operator().await;
    host.reconcile("a").await.unwrap();
    assert_eq!(
        (host.replicas("a").await, asleep_condition(&host).await),
        (Some(0), "True/AsleepOnRequest".into())
    );

    connect_later(&host).await;
    host.reconcile_until_replicas("a", 1).await;
    let waking = published(&host).await;
    assert!(
        matches!(waking, Some(Asleep::Waking { .. })),
        "no API answers yet: {waking:?}"
    );
    run_pod(&host, "a").await;
    report_unready(&host).await;
    host.reconcile_until_ready("a").await;
    assert_eq!(published(&host).await, None);
    assert_eq!(asleep_condition(&host).await, "False/WokenOnConnect");

    // Again within the same second.
    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    let activity = host.cluster("a").await.status.unwrap().activity.unwrap();
    assert!(
        activity.sleep_requested_time > activity.wake_requested_time,
        "{activity:?}"
    );
}

/// Writes the time of a sleep request, as the operator does.
async fn write_sleep(host: &Host, time: Option<Timestamp>) {
    let activity = time.map_or(json!({}), |time| json!({"sleepRequestedTime": time.to_string()}));
    let patch = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
        "status": {"activity": activity}});
    let params = PatchParams::apply("yoke-operator-sleep").force();
    host.clusters()
        .patch_status("a", &params, &Patch::Apply(&patch))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_newer_than_the_cache_starts_no_control_plane() {
    let mut host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    connect_later(&host).await;
    host.stop_watches("a").await;
    // The cluster was woken, and has gone to sleep again since.
    let sleep_time = Timestamp::now() + SignedDuration::from_secs(60);
    write_sleep(&host, Some(sleep_time)).await;
    host.context
        .memory
        .update(&id, |seen| seen.sleep_requested = Some(Time(sleep_time)));
    for _ in 0..3 {
        host.reconcile_known("a").await.unwrap();
        assert_eq!(
            host.replicas("a").await,
            Some(0),
            "an outdated Cluster started the control plane"
        );
    }
    // The request is withdrawn, as by the owner's wake request. The recorded time no longer counts.
    write_sleep(&host, None).await;
    host.reconcile_known("a").await.unwrap();
    assert_eq!(host.replicas("a").await, Some(1));
    assert_eq!(host.context.memory.seen(&id).sleep_requested, None);
}

/// Returns the resource version of the control plane's NetworkPolicy, if there is one.
async fn policy_version(host: &Host) -> Option<u64> {
    let policies = host.api::<NetworkPolicy>(&host.hosted("a").await);
    let policy = policies.get_opt("control-plane").await.unwrap();
    policy.map(|policy| version_of(&policy))
}

fn version_of<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_network_policy_exists_while_a_pod_may_exist() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    for _ in 0..3 {
        let version = policy_version(&host).await.expect("a pod exists");
        annotate(&host, "now").await;
        host.reconcile_until_replicas("a", 0).await;
        host.reconcile("a").await.unwrap();
        assert_eq!(policy_version(&host).await, Some(version), "the pod still exists");
        end_pod(&host).await;
        host.reconcile_until_condition("a", "Asleep", "True/AsleepOnRequest")
            .await;
        host.reconcile("a").await.unwrap();
        assert_eq!(policy_version(&host).await, Some(version), "a pod may still be created");
        report_set(&host, "a", 0).await;
        let version = async || policy_version(&host).await;
        host.reconcile_until("a", "no NetworkPolicy", version, Option::is_none)
            .await;

        // Before a watch may deliver its deletion.
        connect_later(&host).await;
        host.reconcile_until_replicas("a", 1).await;
        let set = host.stateful_set(&host.hosted("a").await).await.unwrap();
        let version = policy_version(&host).await.expect("a pod is requested");
        assert!(version < version_of(&set), "the pod was requested first");
        run_pod(&host, "a").await;
        host.reconcile_until_ready("a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_never_ran_has_no_network_policy() {
    let host = Host::start().await;
    let mut cluster = Cluster::new("a", ClusterSpec::default());
    cluster.spec.state = DesiredState::Asleep;
    host.clusters().create(&PostParams::default(), &cluster).await.unwrap();
    host.reconcile_until_replicas("a", 0).await;
    assert_eq!(policy_version(&host).await, None);
    host.patch_cluster("a", json!({"spec": {"state": "Running"}})).await;
    host.reconcile_until_replicas("a", 1).await;
    let set = host.stateful_set(&host.hosted("a").await).await.unwrap();
    assert!(policy_version(&host).await.expect("a pod is requested") < version_of(&set));
}

/// Puts it to sleep, and records a connection.
async fn wake(host: &Host) {
    annotate(host, "now").await;
    reconcile_until_published(host, "a sleep until a connection", |asleep| {
        matches!(asleep, Some(Asleep::OnConnect { .. }))
    })
    .await;
    if host
        .api::<Pod>(&host.hosted("a").await)
        .get_opt("control-plane-0")
        .await
        .unwrap()
        .is_some()
    {
        end_pod(host).await;
    }
    connect_later(host).await;
    host.reconcile_until_replicas("a", 1).await;
    run_pod(host, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_admitted_before_all_objects_are_verified() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let server = TenantServer::start(&host, "a").await;
    {
        let mut behaviour = server.behaviour.lock().unwrap();
        (behaviour.has_account, behaviour.is_starting) = (true, true);
        behaviour.hangs = true;
    }
    wake(&host).await;
    for (rule, lacks_namespaces, hangs) in [
        ("the first objects cannot be written yet", false, true),
        ("the namespaces of the first objects are missing", true, false),
    ] {
        {
            let mut behaviour = server.behaviour.lock().unwrap();
            (behaviour.lacks_namespaces, behaviour.hangs) = (lacks_namespaces, hangs);
        }
        host.reconcile("a").await.unwrap();
        let asleep = published(&host).await;
        assert!(matches!(asleep, Some(Asleep::Waking { .. })), "{rule}: {asleep:?}");
    }
    server.behaviour.lock().unwrap().lacks_namespaces = false;
    reconcile_until_published(&host, "the admission of callers", Option::is_none).await;
    assert_eq!(ready(&host).await, "False/APIServerNotReady", "roles are still missing");
    server.behaviour.lock().unwrap().is_starting = false;
    host.reconcile_until_ready("a").await;
    assert_eq!(published(&host).await, None);

    server.behaviour.lock().unwrap().is_starting = true;
    wake(&host).await;
    report_unready(&host).await;
    reconcile_until_published(&host, "the admission of callers", Option::is_none).await;
    assert_eq!(ready(&host).await, "False/APIServerNotReady");
}

/// Kubelets whose certificates have expired could not register again.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_nodes_does_not_sleep_for_too_long() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let sleep = json!({"withWorkers": "Allow", "schedules": [{"sleep": "0 0 1 1 *"}]});
    host.patch_cluster("a", json!({"spec": {"sleep": sleep}})).await;
    let _server = run_ready(&host).await;
    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    end_pod(&host).await;
    let write_past_sleep = async |days: i64, nodes: i32| {
        let since = Timestamp::now() - SignedDuration::from_hours(24 * days);
        let activity = json!({"sleepRequestedTime": since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
        let patch = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
            "status": {"nodes": nodes, "activity": activity}});
        // With the operator's field manager, so that the operator can remove the field.
        let params = PatchParams::apply("yoke-operator-sleep").force();
        host.clusters()
            .patch_status("a", &params, &Patch::Apply(&patch))
            .await
            .unwrap();
    };
    for (rule, days, nodes) in [("five days, one Node", 5, 1), ("80 days, no Node", 80, 0)] {
        write_past_sleep(days, nodes).await;
        for _ in 0..3 {
            host.reconcile("a").await.unwrap();
            assert_eq!(host.replicas("a").await, Some(0), "{rule}");
        }
    }
    host.patch_cluster("a", json!({"spec": {"sleep": {"withWorkers": "Prevent"}}}))
        .await;
    write_past_sleep(80, 1).await;
    let message = async || {
        let conditions = host.cluster("a").await.status.unwrap().conditions;
        let mut asleep = conditions.into_iter().filter(|condition| condition.type_ == "Asleep");
        asleep.next().map(|condition| condition.message)
    };
    host.reconcile_until("a", "a message about the Nodes", message, |message| {
        message
            .as_ref()
            .is_some_and(|message| message.contains("cannot reconnect"))
    })
    .await;
    assert_eq!(host.replicas("a").await, Some(0));
    host.patch_cluster("a", json!({"spec": {"sleep": {"withWorkers": "Allow"}}}))
        .await;
    host.reconcile_until_replicas("a", 1).await;
    let events = host.api::<Event>(TENANT).list(&Default::default()).await.unwrap().items;
    let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
    assert!(reasons.any(|reason| reason == "WokenForWorkers"));
    run_pod(&host, "a").await;
    host.reconcile_until_ready("a").await;
    assert_eq!(host.replicas("a").await, Some(1));
}

/// Sets the wake request to a minute ago.
async fn age_wake_request(host: &Host) {
    let hosted = host.hosted("a").await;
    let map = host.api::<ConfigMap>(&hosted).get("yoke-ingress").await.unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&map.data.unwrap()["ingress.json"]).unwrap();
    let past = Timestamp::now() - SignedDuration::from_mins(1);
    config["asleep"]["waking"]["since"] = past.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    let patch = json!({"data": {"ingress.json": config.to_string()}});
    host.api::<ConfigMap>(&hosted)
        .patch("yoke-ingress", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

/// Waiting clients get a reason that the owner can act on, but no internal failure of the host.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_wake_reports_its_reason() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    end_pod(&host).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let not_a_ca = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
    host.context.host.replace_root_certificate(not_a_ca).await;
    connect_later(&host).await;
    let observe = async || (published(&host).await, condition(&host.cluster("a").await, "Degraded"));
    host.reconcile_until(
        "a",
        "a wake without a problem, and a failure",
        observe,
        |(asleep, degraded)| {
            matches!(asleep, Some(Asleep::Waking { problem: None, .. })) && degraded == "True/ReconcileFailed"
        },
    )
    .await;
    age_wake_request(&host).await;
    reconcile_until_published(&host, "a wake with a problem", |asleep| {
        matches!(asleep, Some(Asleep::Waking { problem: Some(_), .. }))
    })
    .await;
    let Some(Asleep::Waking {
        problem: Some(problem), ..
    }) = published(&host).await
    else {
        unreachable!();
    };
    assert_eq!(
        problem,
        "The host cannot apply the Cluster (ReconcileFailed). See its condition Degraded."
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_without_a_store_reports_its_reason() {
    // Room for the host's own store, and for less than the default size of a Cluster's.
    let host = Host::start_on(Server::start_with_room("3GB").await).await;
    host.create_cluster("a").await;
    annotate(&host, "now").await;
    host.reconcile_until_condition("a", "CertificatesReady", "True/AsExpected")
        .await;
    let store = condition(&host.cluster("a").await, "StoreReady");
    assert_eq!(store, "False/StoreQuotaExceeded");
    connect_later(&host).await;
    reconcile_until_published(&host, "a wake without a problem", |asleep| {
        matches!(asleep, Some(Asleep::Waking { problem: None, .. }))
    })
    .await;
    age_wake_request(&host).await;
    reconcile_until_published(&host, "a wake without a store", |asleep| {
        matches!(asleep, Some(Asleep::Waking { problem: Some(problem), .. }) if problem.contains("StoreQuotaExceeded"))
    })
    .await;
    assert_eq!(asleep_condition(&host).await, "False/WakeDelayed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_wake_reports_its_reason() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let server = run_ready(&host).await;
    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    end_pod(&host).await;
    connect_later(&host).await;
    reconcile_until_published(&host, "a wake without a problem", |asleep| {
        matches!(asleep, Some(Asleep::Waking { problem: None, .. }))
    })
    .await;

    // No pod has appeared either.
    age_wake_request(&host).await;
    host.reconcile_until_condition("a", "Asleep", "False/WakeDelayed").await;
    let late = published(&host).await;
    assert!(
        matches!(&late, Some(Asleep::Waking { problem: Some(problem), .. }) if problem.contains("pod")),
        "{late:?}"
    );
    let events = async || host.events().await;
    host.until("the event WakeDelayed", events, |events| {
        events.iter().any(|reason| reason == "WakeDelayed")
    })
    .await;

    run_pod(&host, "a").await;
    host.reconcile_until_ready("a").await;
    assert_eq!(
        (published(&host).await, asleep_condition(&host).await),
        (None, "False/WokenOnConnect".into())
    );
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owners_state_overrides_other_requests() {
    let host = Host::start().await;
    host.bring_up("a").await;
    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    host.patch_cluster("a", json!({"spec": {"state": "Asleep"}})).await;
    host.reconcile_until_condition("a", "Asleep", "True/AsleepByOwner")
        .await;
    let Some(Asleep::Held { why }) = published(&host).await else {
        panic!("{:?}", published(&host).await);
    };
    assert!(why.contains("spec.state"), "{why}");
    connect(&host, Timestamp::now() + SignedDuration::from_secs(60)).await;
    host.reconcile("a").await.unwrap();
    assert_eq!(
        (host.replicas("a").await, asleep_condition(&host).await),
        (Some(0), "True/AsleepByOwner".into())
    );

    // The owner's request to run also counts: the earlier sleep request is over.
    host.patch_cluster("a", json!({"spec": {"state": "Running"}})).await;
    host.reconcile_until_replicas("a", 1).await;

    // A connection does not wake a Cluster whose owner forbids that, but the owner can.
    host.patch_cluster("a", json!({"spec": {"sleep": {"wakeOnConnect": "Never"}}}))
        .await;
    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    let asleep = published(&host).await;
    assert!(
        matches!(&asleep, Some(Asleep::Held { why }) if why.contains("sleep=end")),
        "{asleep:?}"
    );
    annotate(&host, "end").await;
    host.reconcile_until_replicas("a", 1).await;
    let annotations = host.cluster("a").await.metadata.annotations.unwrap_or_default();
    assert!(!annotations.contains_key(SLEEP));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_wakes_no_paused_or_refused_cluster() {
    let host = Host::start().await;
    host.bring_up("a").await;
    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    for (change, part) in [
        (json!({"spec": {"paused": true}}), "spec.paused"),
        (json!({"spec": {"paused": false, "class": "huge"}}), "refused"),
    ] {
        host.patch_cluster("a", change).await;
        let what = format!("a sleep without a wake, by {part}");
        reconcile_until_published(
            &host,
            &what,
            |asleep| matches!(asleep, Some(Asleep::Held { why }) if why.contains(part)),
        )
        .await;
        connect(&host, Timestamp::now() + SignedDuration::from_secs(60)).await;
        host.reconcile("a").await.unwrap();
        assert_eq!(host.replicas("a").await, Some(0), "{part}");
        assert!(matches!(published(&host).await, Some(Asleep::Held { .. })), "{part}");
    }
}

/// The node of its pod is down, and its kubelet with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_a_dead_node_does_not_block_sleep() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    let hosted = host.hosted("a").await;
    let pods = host.api::<Pod>(&hosted);
    let binding = json!({"metadata": {"name": "control-plane-0"}, "target": {"kind": "Node", "name": "dead"}});
    let binding: Binding = serde_json::from_value(binding).unwrap();
    let params = PostParams::default();
    pods.create_subresource::<_, Status>("binding", "control-plane-0", &params, &binding)
        .await
        .unwrap();
    let incarnation = async || {
        let template = host.stateful_set(&hosted).await.unwrap().spec.unwrap().template;
        let annotations = template.metadata.unwrap().annotations.unwrap();
        annotations["yoke.drzzl.io/incarnation"].parse::<u64>().unwrap()
    };
    let before = incarnation().await;

    annotate(&host, "now").await;
    host.reconcile_until_replicas("a", 0).await;
    let short = DeleteParams::default().grace_period(1);
    pods.delete("control-plane-0", &short).await.unwrap();
    // The pod may still run: the next one has another incarnation.
    host.reconcile_until("a", "a higher incarnation", incarnation, |incarnation| {
        *incarnation > before
    })
    .await;
    assert!(pods.get_opt("control-plane-0").await.unwrap().is_some());
    let observe = async || {
        report_set(&host, "a", 0).await;
        asleep_condition(&host).await
    };
    host.reconcile_until_equal("a", "the condition Asleep", observe, "True/AsleepOnRequest")
        .await;
    assert!(pods.get_opt("control-plane-0").await.unwrap().is_none());

    connect_later(&host).await;
    let observe = async || {
        report_set(&host, "a", 1).await;
        host.replicas("a").await
    };
    host.reconcile_until_equal("a", "the replicas", observe, Some(1)).await;
    assert!(incarnation().await > before);
}
