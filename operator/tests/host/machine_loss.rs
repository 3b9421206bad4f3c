//! A node of the host is lost with a control plane on it. Its store and API are real, and the real
//! StatefulSet controller creates the next pod. The test acts as scheduler and kubelet.

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
use yoke_test_support::Process;

use crate::answers::ready;
use crate::harness::{Host, condition};

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
struct Watching {
    called: mpsc::Receiver<ObjectRef<Cluster>>,
    _supervisor: Supervisor,
}

impl Watching {
    fn start(host: &Host) -> Self {
        let mut supervisor = Supervisor::new(Duration::from_secs(1));
        let (calls, called) = mpsc::channel(8);
        let watching = loss::run(Arc::clone(&host.loss), calls, supervisor.drain());
        supervisor.spawn_background("loss", async move {
            watching.await;
            Ok::<_, std::io::Error>(())
        });
        Self {
            called,
            _supervisor: supervisor,
        }
    }

    fn has_called(&mut self) -> bool {
        matches!(self.called.try_recv(), Ok(cluster) if cluster.name == "a")
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
        stage.place("one").await;
        stage
            .host
            .bring("a", "it is ready", async || {
                ready(&stage.host).await == "True/AsExpected"
            })
            .await;
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
    async fn place(&self, machine: &str) {
        self.host
            .until("there is a pod", async || self.pod().await.is_some())
            .await;
        self.host.bind(&self.hosted, "control-plane-0", machine).await;
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

    /// Stops the node's processes: they answer nothing, but do not end.
    fn freeze(&self) {
        signal(&self.store, "-STOP");
        signal(&self.api, "-STOP");
    }
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
    let dir = host.make_dir(&format!("store-{number}"));
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
async fn make_machine(host: &Host, name: &str) {
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
async fn control_plane_of_a_lost_machine_is_started_elsewhere() {
    let mut stage = Stage::start().await;
    make_machine(&stage.host, "two").await;
    let (host, before) = (&stage.host, stage.incarnation().await);
    let former = stage.pod().await.unwrap();
    host.until("the store writes", async || stage.store.log().contains("is the writer"))
        .await;
    let mut watching = Watching::start(host);
    let began = Instant::now();
    stage.freeze();
    let called = async {
        while !watching.has_called() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, called).await.expect("the machine is lost");
    println!("lost after {:?}", began.elapsed());
    host.bring("a", "there is another pod", async || {
        stage.pod().await.is_some_and(|pod| pod.uid() != former.uid())
    })
    .await;
    println!("another pod after {:?}", began.elapsed());
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    assert_eq!(stage.incarnation().await, before + 1);
    assert_eq!(ready(host).await, "False/MachineLost");
    // The Cluster remains admitted until its next pod serves.
    host.make_cluster("b").await;
    host.bring("b", "it could be started", async || {
        condition(&host.cluster("b").await, "CertificatesReady") == "True/AsExpected"
    })
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
    host.until("the next store writes", async || next.log().contains("is the writer"))
        .await;
    println!("written again after {:?}", began.elapsed());
    signal(&stage.store, "-CONT");
    signal(&stage.api, "-CONT");
    let ends = async {
        while stage.store.is_running() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, ends).await.expect("the former store ends");
    assert!(stage.store.log().contains("fenced"), "{}", stage.store.log());
    stage.place("two").await;
    let host = &stage.host;
    host.bring("a", "it is ready again", async || {
        ready(host).await == "True/AsExpected"
    })
    .await;
    assert_eq!(stage.incarnation().await, before + 1, "it is started once");
    let other = host.hosted("b").await;
    host.bring("b", "its turn has come", async || {
        host.stateful_set(&other).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_moved_without_nats_nor_while_paused() {
    let mut stage = Stage::start().await;
    let former = stage.pod().await.unwrap();
    stage.host.restart_operator_without_nats().await;
    let mut watching = Watching::start(&stage.host);
    stage.freeze();
    // A check without a finding is not visible, so this waits for a time.
    tokio::time::sleep(LONG).await;
    assert!(!watching.has_called(), "the operator knows nothing of stores");
    drop(watching);
    stage.host.restart_operator().await;
    let id = stage.host.cluster("a").await.id().unwrap();
    stage
        .host
        .bring("a", "its API was asked", async || {
            stage.host.context.apis.known(&id, Way::Inside).is_some()
        })
        .await;
    stage.host.patch_cluster("a", json!({"spec": {"paused": true}})).await;
    stage.host.reconcile("a").await.unwrap();
    let mut watching = Watching::start(&stage.host);
    tokio::time::sleep(LONG).await;
    assert!(stage.host.context.losses.of(&id).is_none(), "there is no other machine");
    make_machine(&stage.host, "two").await;
    stage
        .host
        .until("the machine is lost", async || {
            stage.host.context.losses.of(&id).is_some()
        })
        .await;
    stage.host.reconcile("a").await.unwrap();
    assert!(!watching.has_called(), "a Cluster that is paused is not called for");
    assert_eq!(stage.pod().await.unwrap().uid(), former.uid());
    stage.host.patch_cluster("a", json!({"spec": {"paused": false}})).await;
    stage
        .host
        .bring("a", "there is another pod", async || {
            stage.pod().await.is_some_and(|pod| pod.uid() != former.uid())
        })
        .await;
}
