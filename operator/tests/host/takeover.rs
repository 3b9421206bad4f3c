//! A node of the host is about to shut down with a control plane on it, or its pod is terminating.
//! Kubernetes' own controllers create pods and handle evictions; the test acts as scheduler and
//! kubelet.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use yoke_test_support::Process;

use crate::harness::{Host, condition};

const FIRST: &str = "control-plane-0";
const SECOND: &str = "control-plane-1";
/// An eviction that takes longer counts as refused.
const REFUSED: Duration = Duration::from_secs(2);

/// A control plane on one of two nodes.
struct Stage {
    host: Host,
    hosted: String,
    _controllers: Process,
}

impl Stage {
    async fn start(names: &[&str]) -> Self {
        let host = Host::start().await;
        for name in names {
            let node = serde_json::from_value(json!({"metadata": {"name": name, "labels": {"a": "b"}}})).unwrap();
            nodes(&host).create(&PostParams::default(), &node).await.unwrap();
        }
        host.bring_up("a").await;
        let hosted = host.hosted("a").await;
        let url = host.url();
        let controllers = host.start_controllers(&url, "statefulset-controller,disruption-controller");
        let stage = Self {
            host,
            hosted,
            _controllers: controllers,
        };
        for node in names {
            // New nodes are not ready, by a taint.
            stage.taint(node, &[]).await;
        }
        stage.run_pod_on(FIRST, "one").await;
        stage
    }

    /// Binds a pod to a node, as the scheduler does, and reports it as running.
    async fn run_pod_on(&self, pod: &str, node: &str) {
        self.reconcile_until_pod(pod).await;
        self.host.bind(&self.hosted, pod, node).await;
        // A standby pod is not ready yet.
        self.report_pod(pod, pod == FIRST).await;
    }

    /// Reports the readiness of a pod, as its kubelet does.
    async fn report_pod(&self, pod: &str, ready: bool) {
        let condition = if ready { "True" } else { "False" };
        let now = Timestamp::now().to_string();
        let status = json!({"status": {"phase": "Running", "startTime": now,
            "conditions": [{"type": "Ready", "status": condition}],
            "containerStatuses": [{"name": "kube-apiserver", "image": "a", "imageID": "", "ready": ready, "restartCount": 0,
                "state": {"running": {"startedAt": now}}}]}});
        let pods = self.host.api::<Pod>(&self.hosted);
        pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    /// Returns the address of the Cluster's API.
    async fn address(&self) -> IpAddr {
        let service = self.host.api::<Service>(&self.hosted).get("a").await.unwrap();
        service.spec.unwrap().cluster_ip.unwrap().parse().unwrap()
    }

    /// Reports the IP of a pod.
    async fn report_address(&self, pod: &str, address: IpAddr) {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let pods = self.host.api::<Pod>(&self.hosted);
        pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    async fn taint(&self, node: &str, keys: &[&str]) {
        let taints: Vec<_> = keys
            .iter()
            .map(|key| json!({"key": key, "effect": "NoSchedule"}))
            .collect();
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        nodes(&self.host)
            .patch(node, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Checks Nodes and reconciles until `holds` accepts the observed value.
    async fn reconcile_until<T: Debug>(&self, what: &str, observe: impl AsyncFn() -> T, holds: impl FnMut(&T) -> bool) {
        let observe = async || {
            self.host.context.notices.check(&self.host.context.host);
            observe().await
        };
        self.host.reconcile_until("a", what, observe, holds).await;
    }

    /// Like [`Self::reconcile_until`], until the observed value is the expected one.
    async fn reconcile_until_equal<T: Debug + PartialEq>(&self, what: &str, observe: impl AsyncFn() -> T, expected: T) {
        let what = format!("{what} to be {expected:?}");
        self.reconcile_until(&what, observe, |value| *value == expected).await;
    }

    /// Like [`Self::reconcile_until`], until there is this pod.
    async fn reconcile_until_pod(&self, name: &str) {
        let exists = async || self.pod(name).await.is_some();
        self.reconcile_until_equal(&format!("the existence of {name}"), exists, true)
            .await;
    }

    /// Like [`Self::reconcile_until`], until the StatefulSet requests this number of pods.
    async fn reconcile_until_replicas(&self, expected: i32) {
        self.reconcile_until_equal("the replicas", async || self.set().await.1, expected)
            .await;
    }

    /// Like [`Self::reconcile_until`], until there is a PodDisruptionBudget, which makes evictions wait, or
    /// until there is none.
    async fn reconcile_until_budget(&self, expected: bool) {
        let exists = async || self.budget().await.is_some();
        self.reconcile_until_equal("the existence of a PodDisruptionBudget", exists, expected)
            .await;
    }

    /// Waits until the operator's cache has this Ready status of the first node, and then checks
    /// again.
    async fn until_cached(&self, status: &str) {
        let key = kube::runtime::reflector::ObjectRef::new("one");
        let ready = async || {
            let node = self.host.context.host.caches.nodes.get(&key).unwrap();
            let mut conditions = node.status.conditions.iter();
            let ready = conditions.find(|condition| condition.type_ == "Ready");
            ready.map(|condition| condition.status.clone())
        };
        self.reconcile_until_equal("the cached Ready status", ready, Some(status.to_owned()))
            .await;
        self.host.context.notices.check(&self.host.context.host);
        self.host.reconcile("a").await.unwrap();
    }

    async fn pod(&self, name: &str) -> Option<Pod> {
        self.host.api(&self.hosted).get_opt(name).await.unwrap()
    }

    async fn budget(&self) -> Option<PodDisruptionBudget> {
        self.host.api(&self.hosted).get_opt("control-plane").await.unwrap()
    }

    /// Evicts the first pod. Returns whether that succeeds now.
    async fn evict(&self) -> bool {
        let pods = self.host.api::<Pod>(&self.hosted);
        // The client itself retries while the answer is 429.
        let evicted = tokio::time::timeout(REFUSED, pods.evict(FIRST, &EvictParams::default())).await;
        evicted.map(|evicted| evicted.unwrap()).is_ok()
    }

    /// Returns the first ordinal, the number of replicas, and the incarnation.
    async fn set(&self) -> (i32, i32, String) {
        let spec = self.host.stateful_set(&self.hosted).await.unwrap().spec.unwrap();
        let annotations = spec.template.metadata.unwrap().annotations.unwrap();
        let first = spec.ordinals.and_then(|ordinals| ordinals.start);
        (
            first.unwrap_or_default(),
            spec.replicas.unwrap(),
            annotations["yoke.drzzl.io/incarnation"].clone(),
        )
    }

    /// Returns the pod that the Service selects.
    async fn target(&self) -> Option<String> {
        let service = self.host.api::<Service>(&self.hosted).get("a").await.unwrap();
        service.spec?.selector?.remove("statefulset.kubernetes.io/pod-name")
    }
}

/// A store that only accepts the notification that its pod may end.
struct Store {
    address: IpAddr,
    released: Arc<AtomicUsize>,
    _task: tokio::task::JoinSet<()>,
}

impl Store {
    /// Listens at this address, at the stores' port.
    async fn start(address: IpAddr) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(address, 2381)).await.unwrap();
        let released = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&released);
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"POST /release "));
                count.fetch_add(1, Ordering::Relaxed);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
            }
        });
        Self {
            address,
            released,
            _task: task,
        }
    }

    /// Listens for a pod at another address than the Cluster's API. The API has an address of the
    /// host's Services, whose second byte is the high byte of a port below 30000.
    async fn start_at_other_address(address: IpAddr) -> Self {
        let IpAddr::V4(address) = address else {
            panic!("{address} is not a loopback address")
        };
        let [first, second, third, fourth] = address.octets();
        Self::start([first, second | 128, third, fourth].into()).await
    }

    fn released(&self) -> usize {
        self.released.load(Ordering::Relaxed)
    }
}

fn nodes(host: &Host) -> Api<Node> {
    Api::all(host.client.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_before_its_node_shuts_down() {
    let mut stage = Stage::start(&["one", "two"]).await;
    let (_, _, incarnation) = stage.set().await;
    let healthy = async || {
        let status = stage.budget().await.and_then(|budget| budget.status);
        status.map(|status| status.current_healthy)
    };
    stage
        .reconcile_until_equal("the healthy pods of the PodDisruptionBudget", healthy, Some(1))
        .await;
    assert!(!stage.evict().await, "evicted without a standby");
    let key = kube::runtime::reflector::ObjectRef::new("one");
    let node = stage.host.context.host.caches.nodes.get(&key).unwrap();
    assert!(
        node.labels().is_empty(),
        "the cache has more than name and taints of a Node"
    );

    stage.taint("one", &["karpenter.sh/disrupted"]).await;
    stage.reconcile_until_pod(SECOND).await;
    assert_eq!(stage.set().await, (0, 2, incarnation.clone()));
    let state = condition(&stage.host.cluster("a").await, "Progressing");
    assert_eq!(state, "True/MachineLeaving");
    assert_eq!(stage.target().await.as_deref(), Some(FIRST));
    assert!(!stage.evict().await, "evicted although the standby does not run");
    // A restarted operator continues the takeover.
    stage.host.restart_operator().await;
    stage.host.context.notices.check(&stage.host.context.host);
    stage.host.reconcile("a").await.unwrap();
    assert_eq!(stage.set().await.1, 2);

    stage.run_pod_on(SECOND, "two").await;
    stage.host.reconcile("a").await.unwrap();
    assert_eq!(
        stage.set().await,
        (0, 2, incarnation.clone()),
        "took over although the standby is not ready"
    );
    stage.report_pod(SECOND, true).await;
    stage.host.reconcile("a").await.unwrap();
    assert_eq!(
        stage.set().await,
        (0, 2, incarnation.clone()),
        "took over although the standby does not answer"
    );
    assert!(
        !stage.evict().await,
        "evicted although the Service does not select the standby"
    );
    let (_api, _) = stage.host.start_tenant_api("a").await;
    stage.report_address(SECOND, stage.address().await).await;
    let is_deleted = async || stage.pod(FIRST).await.unwrap().metadata.deletion_timestamp.is_some();
    stage.reconcile_until_equal("the takeover", is_deleted, true).await;
    assert_eq!(stage.set().await, (1, 1, incarnation.clone()));
    assert_eq!(stage.target().await.as_deref(), Some(SECOND));
    let now = DeleteParams::default().grace_period(0);
    stage.host.api::<Pod>(&stage.hosted).delete(FIRST, &now).await.unwrap();
    // The state remains, also for an operator that has just started.
    stage.host.restart_operator().await;
    for _ in 0..3 {
        stage.host.context.notices.check(&stage.host.context.host);
        stage.host.reconcile("a").await.unwrap();
    }
    assert_eq!(stage.set().await, (1, 1, incarnation));
    assert!(stage.pod(FIRST).await.is_none());
    assert!(stage.pod(SECOND).await.unwrap().metadata.deletion_timestamp.is_none());

    // Asleep there is no pod, and the next one has the ordinal of the last.
    for (state, replicas) in [("Asleep", 0), ("Running", 1)] {
        stage.host.patch_cluster("a", json!({"spec": {"state": state}})).await;
        stage.reconcile_until_replicas(replicas).await;
        assert_eq!(stage.set().await.0, 1);
        assert!(stage.budget().await.is_none(), "a PodDisruptionBudget without a pod");
        let _ = stage.host.api::<Pod>(&stage.hosted).delete(SECOND, &now).await;
    }
    stage.run_pod_on(SECOND, "two").await;
    stage.report_pod(SECOND, true).await;
    stage.taint("one", &[]).await;
    stage.reconcile_until_budget(true).await;
}

/// A node that shuts down tells Kubernetes nothing else: its kubelet ends pods, and the only taint
/// is "not ready".
#[tokio::test(flavor = "multi_thread")]
async fn a_node_shutdown_starts_a_takeover() {
    let stage = Stage::start(&["one", "two"]).await;
    stage.reconcile_until_budget(true).await;
    let report_node = async |status: &str, message: &str| {
        let ready = json!({"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": message});
        let patch = Patch::Merge(json!({"status": {"conditions": [ready]}}));
        let nodes = nodes(&stage.host);
        nodes
            .patch_status("one", &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    report_node("False", "container runtime is down").await;
    stage.until_cached("False").await;
    assert_eq!(
        stage.set().await.1,
        1,
        "a node that is only not ready counts as draining"
    );
    report_node("False", "node is shutting down").await;
    stage.reconcile_until_replicas(2).await;
    let state = condition(&stage.host.cluster("a").await, "Progressing");
    assert_eq!(state, "True/MachineLeaving");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_drained_even_without_another_node() {
    let stage = Stage::start(&["one", "two"]).await;
    stage.reconcile_until_budget(true).await;
    // The taint is removed before the other pod is standby.
    stage.taint("one", &["node.kubernetes.io/unschedulable"]).await;
    stage.reconcile_until_replicas(2).await;
    stage.taint("one", &[]).await;
    stage.reconcile_until_replicas(1).await;
    assert_eq!(stage.set().await.0, 0);

    // A paused control plane stays as it is, and does not block an eviction.
    stage.host.patch_cluster("a", json!({"spec": {"paused": true}})).await;
    stage.reconcile_until_budget(false).await;
    stage.host.patch_cluster("a", json!({"spec": {"paused": false}})).await;
    stage.reconcile_until_budget(true).await;

    stage.taint("two", &["node.kubernetes.io/unschedulable"]).await;
    stage.taint("one", &["node.kubernetes.io/unschedulable"]).await;
    stage.reconcile_until_budget(false).await;
    assert_eq!(stage.set().await.1, 1);
    let evicted = async || stage.evict().await;
    stage
        .reconcile_until_equal("the success of an eviction", evicted, true)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminating_pod_serves_until_its_standby_does() {
    let stage = Stage::start(&["one"]).await;
    let (_, _, incarnation) = stage.set().await;
    let api = stage.address().await;
    let (previous, next) = (Store::start_at_other_address(api).await, Store::start(api).await);
    let (_api, _) = stage.host.start_tenant_api("a").await;
    stage.report_address(FIRST, previous.address).await;
    let ready = async || condition(&stage.host.cluster("a").await, "Ready");
    stage
        .reconcile_until_equal("the condition Ready", ready, "True/AsExpected".to_owned())
        .await;
    assert_eq!(previous.released(), 0);

    // No node has a shutdown taint, and there is no other node.
    let pods = stage.host.api::<Pod>(&stage.hosted);
    pods.delete(FIRST, &DeleteParams::default()).await.unwrap();
    stage.reconcile_until_pod(SECOND).await;
    assert_eq!(stage.set().await, (0, 2, incarnation.clone()));
    assert_eq!(stage.target().await.as_deref(), Some(FIRST));
    stage.run_pod_on(SECOND, "one").await;
    stage.host.reconcile("a").await.unwrap();
    let cluster = stage.host.cluster("a").await;
    assert_eq!(condition(&cluster, "Progressing"), "True/MachineLeaving");
    assert_eq!(
        condition(&cluster, "Ready"),
        "True/AsExpected",
        "the terminating pod does not serve"
    );
    assert_eq!((previous.released(), stage.set().await.0), (0, 0));
    stage.report_address(SECOND, api).await;
    stage.report_pod(SECOND, true).await;
    stage
        .reconcile_until(
            "the release of the previous pod",
            async || previous.released(),
            |count| *count > 0,
        )
        .await;
    assert_eq!(stage.set().await, (1, 1, incarnation.clone()));
    assert_eq!(stage.target().await.as_deref(), Some(SECOND));
    stage.host.reconcile("a").await.unwrap();
    assert_eq!(previous.released(), 1, "released more than once");
    let now = DeleteParams::default().grace_period(0);
    pods.delete(FIRST, &now).await.unwrap();
    for _ in 0..3 {
        stage.host.context.notices.check(&stage.host.context.host);
        stage.host.reconcile("a").await.unwrap();
    }
    assert_eq!(stage.set().await, (1, 1, incarnation));
    assert_eq!(next.released(), 0);

    // A control plane that goes to sleep is not taken over.
    stage
        .host
        .patch_cluster("a", json!({"spec": {"state": "Asleep"}}))
        .await;
    // The pod is released before it ends.
    stage
        .reconcile_until_equal("the releases of the next pod", async || next.released(), 1)
        .await;
    stage.reconcile_until_replicas(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminating_pod_without_a_standby_is_released_at_once() {
    let stage = Stage::start(&["one"]).await;
    let store = Store::start(stage.address().await).await;
    stage.report_address(FIRST, store.address).await;
    // The pod is not ready.
    stage.report_pod(FIRST, false).await;
    let first = kube::runtime::reflector::ObjectRef::<Pod>::new(FIRST).within(&stage.hosted);
    let statuses = async || {
        let pod = stage.host.context.host.caches.pods.get(&first).unwrap();
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.map(|found| {
            found
                .iter()
                .map(|condition| condition.status.clone())
                .collect::<Vec<_>>()
        })
    };
    stage
        .reconcile_until("only false conditions of the cached pod", statuses, |statuses| {
            statuses
                .as_ref()
                .is_some_and(|statuses| statuses.iter().all(|status| status == "False"))
        })
        .await;
    let pods = stage.host.api::<Pod>(&stage.hosted);
    pods.delete(FIRST, &DeleteParams::default()).await.unwrap();
    stage
        .reconcile_until_equal("the releases of the pod", async || store.released(), 1)
        .await;
    assert_eq!(stage.set().await.1, 1, "a standby was requested");
}
