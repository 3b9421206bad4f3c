//! A node of the host is about to shut down with a control plane on it, or its pod is terminating.
//! Kubernetes' own controllers create pods and handle evictions; the test acts as scheduler and
//! kubelet.

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
        for machine in names {
            // New nodes are not ready, by a taint.
            stage.taint(machine, &[]).await;
        }
        stage.place(FIRST, "one").await;
        stage
    }

    /// Binds a pod to a node, as the scheduler does, and reports it as running.
    async fn place(&self, pod: &str, machine: &str) {
        self.bring("there is a pod", async || self.pod(pod).await.is_some())
            .await;
        self.host.bind(&self.hosted, pod, machine).await;
        // A standby pod is not ready yet.
        self.tell(pod, pod == FIRST).await;
    }

    /// Reports the readiness of a pod, as its kubelet does.
    async fn tell(&self, pod: &str, ready: bool) {
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
    async fn tell_address(&self, pod: &str, address: IpAddr) {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let pods = self.host.api::<Pod>(&self.hosted);
        pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    async fn taint(&self, machine: &str, keys: &[&str]) {
        let taints: Vec<_> = keys
            .iter()
            .map(|key| json!({"key": key, "effect": "NoSchedule"}))
            .collect();
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        nodes(&self.host)
            .patch(machine, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Checks Nodes and reconciles until `so` returns true.
    async fn bring(&self, what: &str, so: impl AsyncFn() -> bool) {
        self.host
            .bring("a", what, async || {
                self.host.context.notices.look(&self.host.context.host);
                so().await
            })
            .await;
    }

    /// Waits until the operator's cache has this Ready status of the first node, and then checks
    /// again.
    async fn until_heard(&self, status: &str) {
        let machine = kube::runtime::reflector::ObjectRef::new("one");
        self.bring("it is heard", async || {
            let machine = self.host.context.host.caches.nodes.get(&machine).unwrap();
            let mut conditions = machine.status.conditions.iter();
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == status)
        })
        .await;
        self.host.context.notices.look(&self.host.context.host);
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
    async fn start_beside(address: IpAddr) -> Self {
        let IpAddr::V4(address) = address else {
            panic!("{address} is none of loopback")
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
async fn another_pod_takes_over_before_its_machine_goes() {
    let mut stage = Stage::start(&["one", "two"]).await;
    let (_, _, incarnation) = stage.set().await;
    stage
        .bring("an eviction waits", async || {
            let budget = stage.budget().await.and_then(|budget| budget.status);
            budget.is_some_and(|status| status.current_healthy == 1)
        })
        .await;
    assert!(!stage.evict().await, "nobody stands by");
    let machine = kube::runtime::reflector::ObjectRef::new("one");
    let machine = stage.host.context.host.caches.nodes.get(&machine).unwrap();
    assert!(machine.labels().is_empty(), "of a Node its name and taints are kept");

    stage.taint("one", &["karpenter.sh/disrupted"]).await;
    stage
        .bring("another pod stands by", async || stage.pod(SECOND).await.is_some())
        .await;
    assert_eq!(stage.set().await, (0, 2, incarnation.clone()));
    let state = condition(&stage.host.cluster("a").await, "Progressing");
    assert_eq!(state, "True/MachineLeaving");
    assert_eq!(stage.target().await.as_deref(), Some(FIRST));
    assert!(!stage.evict().await, "it does not run yet");
    // A restarted operator continues the takeover.
    stage.host.restart_operator().await;
    stage.host.context.notices.look(&stage.host.context.host);
    stage.host.reconcile("a").await.unwrap();
    assert_eq!(stage.set().await.1, 2);

    stage.place(SECOND, "two").await;
    stage.host.reconcile("a").await.unwrap();
    assert_eq!(stage.set().await, (0, 2, incarnation.clone()), "it is not ready");
    stage.tell(SECOND, true).await;
    stage.host.reconcile("a").await.unwrap();
    assert_eq!(stage.set().await, (0, 2, incarnation.clone()), "it does not answer");
    assert!(!stage.evict().await, "nobody is sent there yet");
    let (_api, _) = stage.host.start_tenant_api("a").await;
    stage.tell_address(SECOND, stage.address().await).await;
    stage
        .bring("it takes over", async || {
            let pod = stage.pod(FIRST).await.unwrap();
            pod.metadata.deletion_timestamp.is_some()
        })
        .await;
    assert_eq!(stage.set().await, (1, 1, incarnation.clone()));
    assert_eq!(stage.target().await.as_deref(), Some(SECOND));
    let now = DeleteParams::default().grace_period(0);
    stage.host.api::<Pod>(&stage.hosted).delete(FIRST, &now).await.unwrap();
    // The state remains, also for an operator that has just started.
    stage.host.restart_operator().await;
    for _ in 0..3 {
        stage.host.context.notices.look(&stage.host.context.host);
        stage.host.reconcile("a").await.unwrap();
    }
    assert_eq!(stage.set().await, (1, 1, incarnation));
    assert!(stage.pod(FIRST).await.is_none());
    assert!(stage.pod(SECOND).await.unwrap().metadata.deletion_timestamp.is_none());

    // Asleep there is no pod, and the next one has the ordinal of the last.
    for (state, replicas) in [("Asleep", 0), ("Running", 1)] {
        stage.host.patch_cluster("a", json!({"spec": {"state": state}})).await;
        stage.bring(state, async || stage.set().await.1 == replicas).await;
        assert_eq!(stage.set().await.0, 1);
        assert!(stage.budget().await.is_none(), "there is nobody to evict");
        let _ = stage.host.api::<Pod>(&stage.hosted).delete(SECOND, &now).await;
    }
    stage.place(SECOND, "two").await;
    stage.tell(SECOND, true).await;
    stage.taint("one", &[]).await;
    stage
        .bring("an eviction waits again", async || stage.budget().await.is_some())
        .await;
}

/// A node that shuts down tells Kubernetes nothing else: its kubelet ends pods, and the only taint
/// is "not ready".
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_shut_down_gives_notice() {
    let stage = Stage::start(&["one", "two"]).await;
    stage
        .bring("an eviction waits", async || stage.budget().await.is_some())
        .await;
    let tell = async |status: &str, message: &str| {
        let ready = json!({"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": message});
        let patch = Patch::Merge(json!({"status": {"conditions": [ready]}}));
        let nodes = nodes(&stage.host);
        nodes
            .patch_status("one", &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    tell("False", "container runtime is down").await;
    stage.until_heard("False").await;
    assert_eq!(stage.set().await.1, 1, "it is not ready, and does not go");
    tell("False", "node is shutting down").await;
    stage
        .bring("another pod is to stand by", async || stage.set().await.1 == 2)
        .await;
    let state = condition(&stage.host.cluster("a").await, "Progressing");
    assert_eq!(state, "True/MachineLeaving");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_another_is_drained_all_the_same() {
    let stage = Stage::start(&["one", "two"]).await;
    stage
        .bring("an eviction waits", async || stage.budget().await.is_some())
        .await;
    // The taint is removed before the other pod is standby.
    stage.taint("one", &["node.kubernetes.io/unschedulable"]).await;
    stage
        .bring("another pod is to stand by", async || stage.set().await.1 == 2)
        .await;
    stage.taint("one", &[]).await;
    stage
        .bring("it is not needed any more", async || stage.set().await.1 == 1)
        .await;
    assert_eq!(stage.set().await.0, 0);

    // A paused control plane stays as it is, and does not block an eviction.
    stage.host.patch_cluster("a", json!({"spec": {"paused": true}})).await;
    stage
        .bring("evictions are let through", async || stage.budget().await.is_none())
        .await;
    stage.host.patch_cluster("a", json!({"spec": {"paused": false}})).await;
    stage
        .bring("an eviction waits again", async || stage.budget().await.is_some())
        .await;

    stage.taint("two", &["node.kubernetes.io/unschedulable"]).await;
    stage.taint("one", &["node.kubernetes.io/unschedulable"]).await;
    stage
        .bring("there is nowhere to go", async || stage.budget().await.is_none())
        .await;
    assert_eq!(stage.set().await.1, 1);
    stage.bring("it is evicted", async || stage.evict().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_to_end_serves_until_another_one_does() {
    let stage = Stage::start(&["one"]).await;
    let (_, _, incarnation) = stage.set().await;
    let api = stage.address().await;
    let (former, next) = (Store::start_beside(api).await, Store::start(api).await);
    let (_api, _) = stage.host.start_tenant_api("a").await;
    stage.tell_address(FIRST, former.address).await;
    stage
        .bring("it is ready", async || {
            condition(&stage.host.cluster("a").await, "Ready") == "True/AsExpected"
        })
        .await;
    assert_eq!(former.released(), 0);

    // No node has a shutdown taint, and there is no other node.
    let pods = stage.host.api::<Pod>(&stage.hosted);
    pods.delete(FIRST, &DeleteParams::default()).await.unwrap();
    stage
        .bring("another pod stands by", async || stage.pod(SECOND).await.is_some())
        .await;
    assert_eq!(stage.set().await, (0, 2, incarnation.clone()));
    assert_eq!(stage.target().await.as_deref(), Some(FIRST));
    stage.place(SECOND, "one").await;
    stage.host.reconcile("a").await.unwrap();
    let cluster = stage.host.cluster("a").await;
    assert_eq!(condition(&cluster, "Progressing"), "True/MachineLeaving");
    assert_eq!(condition(&cluster, "Ready"), "True/AsExpected", "it serves meanwhile");
    assert_eq!((former.released(), stage.set().await.0), (0, 0));
    stage.tell_address(SECOND, api).await;
    stage.tell(SECOND, true).await;
    stage
        .bring("the former is released", async || former.released() > 0)
        .await;
    assert_eq!(stage.set().await, (1, 1, incarnation.clone()));
    assert_eq!(stage.target().await.as_deref(), Some(SECOND));
    stage.host.reconcile("a").await.unwrap();
    assert_eq!(former.released(), 1, "it is told once");
    let now = DeleteParams::default().grace_period(0);
    pods.delete(FIRST, &now).await.unwrap();
    for _ in 0..3 {
        stage.host.context.notices.look(&stage.host.context.host);
        stage.host.reconcile("a").await.unwrap();
    }
    assert_eq!(stage.set().await, (1, 1, incarnation));
    assert_eq!(next.released(), 0);

    // A control plane that goes to sleep is not taken over.
    stage
        .host
        .patch_cluster("a", json!({"spec": {"state": "Asleep"}}))
        .await;
    stage
        .bring("it is released before it ends", async || next.released() == 1)
        .await;
    stage.bring("it sleeps", async || stage.set().await.1 == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_from_which_nobody_takes_over_ends_at_once() {
    let stage = Stage::start(&["one"]).await;
    let store = Store::start(stage.address().await).await;
    stage.tell_address(FIRST, store.address).await;
    // The pod is not ready.
    stage.tell(FIRST, false).await;
    let first = kube::runtime::reflector::ObjectRef::<Pod>::new(FIRST).within(&stage.hosted);
    stage
        .bring("the operator sees that", async || {
            let pod = stage.host.context.host.caches.pods.get(&first).unwrap();
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|conditions| conditions.iter().all(|condition| condition.status == "False"))
        })
        .await;
    let pods = stage.host.api::<Pod>(&stage.hosted);
    pods.delete(FIRST, &DeleteParams::default()).await.unwrap();
    stage.bring("it is released", async || store.released() == 1).await;
    assert_eq!(stage.set().await.1, 1, "nobody stands by");
}
