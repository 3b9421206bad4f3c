//! How the status reflects the answers of a control plane's API.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use yoke_api::cluster::Phase;

use crate::harness::{Host, TENANT, condition};
use crate::tenant_api::{ACCOUNT, TenantServer};

/// Enough for some probes with timeouts of seconds, but not for requests one after the other.
const LONG: Duration = Duration::from_secs(30);

/// Reports a control plane's pod as running, as the kubelet does.
pub(crate) async fn run_pod(host: &Host, name: &str) {
    let hosted = host.hosted(name).await;
    let id = host.cluster(name).await.id().unwrap();
    let template = host.stateful_set(&hosted).await.unwrap().spec.unwrap().template;
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "control-plane-0", "annotations": template.metadata.unwrap().annotations, "labels": {
            "yoke.drzzl.io/id": id, "yoke.drzzl.io/tenant": TENANT, "yoke.drzzl.io/cluster": name,
            "yoke.drzzl.io/component": "control-plane", "app.kubernetes.io/managed-by": "yoke-operator"}},
        "spec": {"containers": [{"name": "kube-apiserver", "image": "a"}]},
    }))
    .unwrap();
    let pods = host.api::<Pod>(&hosted);
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let status = serde_json::json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
        "name": "kube-apiserver", "image": "a", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {"startedAt": now}}}]}});
    let params = PatchParams::default();
    pods.patch_status("control-plane-0", &params, &Patch::Merge(status))
        .await
        .unwrap();
    report_set(host, name, 1).await;
}

/// Reports desired and current number of pods, as the StatefulSet controller does.
pub(crate) async fn report_set(host: &Host, name: &str, pods: i32) {
    let sets = host.api::<StatefulSet>(&host.hosted(name).await);
    let generation = sets.get("control-plane").await.unwrap().metadata.generation;
    let status = serde_json::json!({"status": {"replicas": pods, "observedGeneration": generation}});
    sets.patch_status("control-plane", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

/// Runs Cluster `a` with everything it needs, and waits until it is Ready.
pub(crate) async fn run_ready(host: &Host) -> TenantServer {
    let server = TenantServer::start(host, "a").await;
    server.behaviour.lock().unwrap().has_account = true;
    run_pod(host, "a").await;
    host.reconcile_until_ready("a").await;
    server
}

pub(crate) async fn ready(host: &Host) -> String {
    condition(&host.cluster("a").await, "Ready")
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_waits_for_controllers_and_asleep_for_the_end_of_the_pod() {
    let mut host = Host::start().await;
    host.bring_up("a").await;
    let server = TenantServer::start(&host, "a").await;
    run_pod(&host, "a").await;
    host.reconcile_until_condition("a", "Ready", "False/ControllersPending")
        .await;
    server.behaviour.lock().unwrap().has_account = true;
    host.reconcile_until_ready("a").await;
    assert_eq!(server.behaviour.lock().unwrap().writes, 13);

    // An operator that has just started assumes the previous state for moments, and probes at once.
    drop(server);
    host.restart_operator().await;
    let action = host.reconcile("a").await.unwrap();
    assert_eq!(ready(&host).await, "True/AsExpected");
    assert_eq!(action, Action::requeue(Duration::from_millis(200)));

    // The condition says asleep only when no pod is left.
    host.patch_cluster("a", serde_json::json!({"spec": {"state": "Asleep"}}))
        .await;
    let phase = async || host.cluster("a").await.status.unwrap().phase;
    host.reconcile_until_condition("a", "Ready", "False/AsleepByOwner")
        .await;
    assert_eq!(phase().await, Some(Phase::Updating));
    let pods = host.api::<Pod>(&host.hosted("a").await);
    let now = DeleteParams::default().grace_period(0);
    pods.delete("control-plane-0", &now).await.unwrap();
    host.reconcile_until_equal("a", "the phase", phase, Some(Phase::Asleep))
        .await;
}

/// An argument may be unknown to its program.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_controller_does_not_replace_the_api_server() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    let pods = host.api::<Pod>(&host.hosted("a").await);
    let uid = async || pods.get("control-plane-0").await.unwrap().metadata.uid;
    let before = uid().await;
    let container = |name: &str, ready: bool, state: serde_json::Value| {
        serde_json::json!({"name": name, "image": "a", "imageID": "", "ready": ready, "restartCount": 5, "state": state,
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}}})
    };
    let runs = || serde_json::json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let fails = || serde_json::json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let report = async |api_fails: bool| {
        let api_server = if api_fails { fails() } else { runs() };
        let status = serde_json::json!({"status": {
            "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
            "containerStatuses": [container("kine-nats", true, runs()),
                container("kube-apiserver", !api_fails, api_server), container("kube-scheduler", false, fails())]}});
        let params = PatchParams::default();
        let patch = Patch::Merge(status);
        pods.patch_status("control-plane-0", &params, &patch).await.unwrap();
    };
    report(false).await;
    host.reconcile_until_condition("a", "Degraded", "True/ContainerFailing")
        .await;
    assert_eq!(ready(&host).await, "True/AsExpected");
    host.reconcile("a").await.unwrap();
    assert_eq!(uid().await, before);

    report(true).await;
    let observe = async || pods.get_opt("control-plane-0").await.unwrap();
    host.reconcile_until("a", "the deletion of the pod without an API", observe, |pod| {
        pod.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
}

/// A tenant is its cluster's administrator, and can serve any part of its API with its own program.
#[tokio::test(flavor = "multi_thread")]
async fn an_endless_response_is_not_read_completely() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let server = TenantServer::start(&host, "a").await;
    {
        let mut behaviour = server.behaviour.lock().unwrap();
        (behaviour.has_account, behaviour.endless) = (true, Some(ACCOUNT));
    }
    run_pod(&host, "a").await;
    let taken = || server.behaviour.lock().unwrap().taken;
    host.reconcile_until(
        "a",
        "a request to the endless object",
        async || taken(),
        |taken| *taken > 0,
    )
    .await;
    host.reconcile("a").await.unwrap();
    assert_ne!(ready(&host).await, "True/AsExpected");
    server.behaviour.lock().unwrap().endless = None;
    host.reconcile_until_ready("a").await;
    assert!(taken() < 256 << 20, "{} bytes", taken());
}

/// Counts the requests of each reconciliation, until two in a row send none.
async fn count_until_postponed(host: &Host, count: impl Fn() -> usize) -> Vec<usize> {
    let mut requests = Vec::new();
    while !requests.ends_with(&[0, 0]) {
        assert!(requests.len() < 8, "no probe is postponed: {requests:?}");
        let before = count();
        let done = tokio::time::timeout(LONG, host.reconcile("a")).await;
        done.expect("a reconciliation ends in time").unwrap();
        requests.push(count() - before);
    }
    requests
}

/// Each answer is fast enough, but there is no end of them.
#[tokio::test(flavor = "multi_thread")]
async fn endless_node_lists_are_not_read_at_each_reconciliation() {
    let mut host = Host::start().await;
    host.bring_up("a").await;
    let server = run_ready(&host).await;
    {
        let mut behaviour = server.behaviour.lock().unwrap();
        let silent =
            serde_json::json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        behaviour.nodes = vec![serde_json::json!({"metadata": {"name": "n"}, "status": {"conditions": [silent]}})];
        behaviour.page_takes = Some(Duration::from_millis(400));
    }
    host.restart_operator().await;
    let id = host.cluster("a").await.id().unwrap();
    let pages = count_until_postponed(&host, || server.behaviour.lock().unwrap().pages).await;
    assert!(pages[0] > 0, "no Node was counted: {pages:?}");
    assert!(
        host.context.memory.running(&id).connected.is_some(),
        "the Nodes were not read"
    );
    assert_eq!(
        condition(&host.cluster("a").await, "SleepPossible"),
        "Unknown/APIServerNotReady"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_webhook_does_not_block_reconciliations() {
    let mut host = Host::start().await;
    host.bring_up("a").await;
    let server = run_ready(&host).await;
    // An object that is current is not written, so a hanging webhook does not affect a working
    // cluster.
    server.behaviour.lock().unwrap().hangs = true;
    host.restart_operator().await;
    host.reconcile("a").await.unwrap();
    assert_eq!(ready(&host).await, "True/AsExpected");
    assert_eq!(server.behaviour.lock().unwrap().writes, 13);
    // A necessary write has a timeout, and is not repeated at once.
    server.behaviour.lock().unwrap().objects.clear();
    host.restart_operator().await;
    host.patch_cluster("a", serde_json::json!({"spec": {"version": "v1.35.5"}}))
        .await;
    let requests = count_until_postponed(&host, || server.behaviour.lock().unwrap().requests).await;
    assert!(requests[0] > 0, "the API got no request: {requests:?}");
}
