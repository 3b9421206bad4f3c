//! A node of the host is lost with a control plane on it. Its store and API are real, and the real
//! StatefulSet controller creates the next pod. The test acts as scheduler and kubelet.

use std::convert::Infallible;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use yoke_api::Cluster;
use yoke_operator::testing::{Way, loss};
use yoke_runtime::Supervisor;
use yoke_test_support::{Process, eventually};

use crate::harness::{Host, condition};
use crate::readiness::ready;

/// Longer than a suspicion and a trial, several times.
const LONG: Duration = Duration::from_secs(15);
/// Timeout on a busy machine.
const LIMIT: Duration = Duration::from_secs(40);

/// A control plane on a node.
struct Stage {
    host: Host,
    hosted: String,
    /// The store, the API, and the controller that creates pods.
    store: Process,
    api: Process,
    _controllers: Process,
    _tenant: Client,
}

/// Checks nodes as the operator does.
struct NodeChecks {
    requeued: mpsc::Receiver<ObjectRef<Cluster>>,
    _supervisor: Supervisor,
}

impl NodeChecks {
    fn start(host: &Host) -> Self {
        let mut supervisor = Supervisor::new(Duration::from_secs(1));
        let (requeues, requeued) = mpsc::channel(8);
        let checks = loss::run(Arc::clone(&host.loss), requeues, supervisor.drain());
        supervisor.spawn_background("loss", async move {
            checks.await;
            Ok::<_, std::io::Error>(())
        });
        Self {
            requeued,
            _supervisor: supervisor,
        }
    }

    fn has_requeued(&mut self) -> bool {
        matches!(self.requeued.try_recv(), Ok(cluster) if cluster.name == "a")
    }
}

impl Stage {
    async fn start() -> Self {
        let host = Host::start().await;
        host.bring_up("a").await;
        let hosted = host.hosted("a").await;
        let store = start_store(&host, &hosted).await;
        let (api, tenant) = host.start_tenant_api("a").await;
        let url = host.url();
        let controllers = host.start_controllers(&url, "statefulset-controller");
        let stage = Self {
            host,
            hosted,
            store,
            api,
            _controllers: controllers,
            _tenant: tenant,
        };
        stage.run_pod_on("one").await;
        stage.host.reconcile_until_ready("a").await;
        stage
    }

    async fn pod(&self) -> Option<Pod> {
        self.host.api(&self.hosted).get_opt("control-plane-0").await.unwrap()
    }

    async fn incarnation(&self) -> u64 {
        let set = self.host.stateful_set(&self.hosted).await.unwrap();
        let annotations = set.spec.unwrap().template.metadata.unwrap().annotations.unwrap();
        annotations["yoke.drzzl.io/incarnation"].parse().unwrap()
    }

    /// Binds the pod to a node, as the scheduler does, and reports it as accepted by the kubelet.
    async fn run_pod_on(&self, node: &str) {
        let pod = async || self.pod().await;
        self.host.until("a pod", pod, Option::is_some).await;
        self.host.bind(&self.hosted, "control-plane-0", node).await;
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let status = json!({"status": {"phase": "Running", "startTime": now,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "kube-apiserver", "image": "a", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": now}}}]}});
        self.host
            .api::<Pod>(&self.hosted)
            .patch_status("control-plane-0", &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    /// Reconciles until there is another pod than this one.
    async fn reconcile_until_replaced(&self, previous: &Pod) {
        let uid = async || self.pod().await.map(|pod| pod.uid());
        self.host
            .reconcile_until("a", "another pod", uid, |uid| {
                uid.as_ref().is_some_and(|uid| *uid != previous.uid())
            })
            .await;
    }

    /// Stops the node's processes: they answer nothing, but do not end.
    fn freeze(&self) {
        signal(&self.store, "-STOP");
        signal(&self.api, "-STOP");
    }
}

/// Waits until a store has become the writer.
async fn until_writer(host: &Host, store: &Process) {
    host.until(
        "a store that is the writer",
        async || store.log(),
        |log| log.contains("is the writer"),
    )
    .await;
}

fn signal(process: &Process, signal: &str) {
    let status = Command::new("kill").args([signal, &process.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// Starts the store of a Cluster as its template says.
async fn start_store(host: &Host, hosted: &str) -> Process {
    let template = host.stateful_set(hosted).await.unwrap().spec.unwrap().template;
    let arguments = template.spec.unwrap().containers.remove(0).args.unwrap();
    let number = template.metadata.unwrap().annotations.unwrap()["yoke.drzzl.io/incarnation"].clone();
    let dir = host.create_dir(&format!("store-{number}"));
    for (key, file) in [("user.creds", "user.creds"), ("ca.crt", "ca.crt")] {
        std::fs::write(dir.join(file), host.text(hosted, "kine-nats", key).await).unwrap();
    }
    let path = dir.display().to_string();
    let local = |argument: String| {
        let argument = argument.replace("/etc/kine-nats", &path).replace("/run/kine", &path);
        (!argument.starts_with("--metrics=") && !argument.starts_with("--audit")).then_some(argument)
    };
    let arguments: Vec<_> = arguments.into_iter().filter_map(local).collect();
    Process::spawn(&dir, "kine-nats", &arguments)
}

/// Creates a node of the host with one core, enough for one start of a Tenant's control plane at a
/// time.
async fn create_node(host: &Host, name: &str) {
    let nodes = Api::<Node>::all(host.client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    // Kubernetes taints each new node until its conditions are known.
    let taints = json!({"spec": {"taints": null}});
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(taints))
        .await
        .unwrap();
    let status = json!({"status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_of_a_lost_node_starts_elsewhere() {
    let mut stage = Stage::start().await;
    create_node(&stage.host, "two").await;
    let (host, before) = (&stage.host, stage.incarnation().await);
    let previous = stage.pod().await.unwrap();
    until_writer(host, &stage.store).await;
    let mut checks = NodeChecks::start(host);
    let start = Instant::now();
    stage.freeze();
    eventually(
        "the loss of the node, as a requeue of the Cluster,",
        LIMIT,
        async || Ok::<_, Infallible>(checks.has_requeued()),
        |requeued| *requeued,
    )
    .await
    .unwrap();
    println!("lost after {:?}", start.elapsed());
    stage.reconcile_until_replaced(&previous).await;
    println!("another pod after {:?}", start.elapsed());
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    assert_eq!(stage.incarnation().await, before + 1);
    assert_eq!(ready(host).await, "False/MachineLost");
    // The Cluster remains admitted until its next pod serves.
    host.create_cluster("b").await;
    host.reconcile_until_condition("b", "CertificatesReady", "True/AsExpected")
        .await;
    host.reconcile("b").await.unwrap();
    assert_eq!(condition(&host.cluster("b").await, "Ready"), "False/Queued");
    assert!(host.events().await.contains(&"MachineLost".to_owned()));
    let affinity = stage
        .pod()
        .await
        .unwrap()
        .spec
        .unwrap()
        .affinity
        .unwrap()
        .node_affinity
        .unwrap();
    let terms = affinity.preferred_during_scheduling_ignored_during_execution.unwrap();
    let field = &terms[0].preference.match_fields.as_ref().unwrap()[0];
    assert_eq!(
        (field.operator.as_str(), field.values.clone()),
        ("NotIn", Some(vec!["one".to_owned()]))
    );
    // The next store writes without the consent of the previous one, which exits when it resumes.
    let next = start_store(host, &stage.hosted).await;
    until_writer(host, &next).await;
    println!("written again after {:?}", start.elapsed());
    signal(&stage.store, "-CONT");
    signal(&stage.api, "-CONT");
    eventually(
        "the exit of the previous store",
        LIMIT,
        async || Ok::<_, Infallible>(stage.store.is_running()),
        |is_running| !is_running,
    )
    .await
    .unwrap();
    assert!(stage.store.log().contains("fenced"), "{}", stage.store.log());
    stage.run_pod_on("two").await;
    let host = &stage.host;
    host.reconcile_until_ready("a").await;
    assert_eq!(
        stage.incarnation().await,
        before + 1,
        "the control plane was started more than once"
    );
    host.reconcile_until_started("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_control_plane_moves_without_nats_or_while_paused() {
    let mut stage = Stage::start().await;
    let previous = stage.pod().await.unwrap();
    stage.host.restart_operator_without_nats().await;
    let mut checks = NodeChecks::start(&stage.host);
    stage.freeze();
    // A check without a finding is not visible, so this waits for a time.
    tokio::time::sleep(LONG).await;
    assert!(!checks.has_requeued(), "requeued without any observation of a store");
    drop(checks);
    stage.host.restart_operator().await;
    let id = stage.host.cluster("a").await.id().unwrap();
    let is_known = async || stage.host.context.apis.known(&id, Way::Inside).is_some();
    stage
        .host
        .reconcile_until_equal("a", "the use of the API", is_known, true)
        .await;
    stage.host.patch_cluster("a", json!({"spec": {"paused": true}})).await;
    stage.host.reconcile("a").await.unwrap();
    let mut checks = NodeChecks::start(&stage.host);
    tokio::time::sleep(LONG).await;
    assert!(
        stage.host.context.losses.of(&id).is_none(),
        "lost although there is no other node"
    );
    create_node(&stage.host, "two").await;
    let is_lost = async || stage.host.context.losses.of(&id).is_some();
    stage.host.until_equal("the loss of the node", is_lost, true).await;
    stage.host.reconcile("a").await.unwrap();
    assert!(!checks.has_requeued(), "a paused Cluster was requeued");
    assert_eq!(stage.pod().await.unwrap().uid(), previous.uid());
    stage.host.patch_cluster("a", json!({"spec": {"paused": false}})).await;
    stage.reconcile_until_replaced(&previous).await;
}
