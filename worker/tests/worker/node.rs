//! A worker of a real API server joins, runs a Pod, serves its log, and leaves nothing behind.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, LogParams};
use kube::{Api, Client};
use rcgen::DnType;
use rustix::process::Signal;
use serde_json::json;
use yoke_test_support::eventually_some;

use crate::cluster::{Cluster, create};
use crate::machine::{END_LIMIT, Init, JOIN_LIMIT, Machine, Worker, members, until};
use crate::network::Network;
use crate::signer::{Authority, sign_all};

pub(crate) const NAME: &str = "box-1";
const PODS: &str = "10.232.7.0/24";
/// Longer than the time without contact after which a removed Node counts as reaped.
const NO_CONTACT: Duration = Duration::from_secs(50);
/// Lifetime of certificates. A kubelet renews a certificate after about three quarters of it.
const LIFETIME: Duration = Duration::from_secs(30);

/// A machine, a cluster that it can join, and the CAs that sign for the cluster.
pub(crate) struct Story {
    pub(crate) machine: Machine,
    pub(crate) client: Client,
    pub(crate) nodes: Api<Node>,
    authorities: (Authority, Authority),
    pub(crate) cluster: Cluster,
    /// Whether a worker in the machine's own network has run a Pod, which enables forwarding.
    forwards: AtomicBool,
}

impl Story {
    pub(crate) async fn begin(dir: &Path) -> Self {
        Self::begin_with(dir, Init::None).await
    }

    pub(crate) async fn begin_with(dir: &Path, init: Init) -> Self {
        assert!(rustix::process::geteuid().is_root(), "a worker needs root");
        let network = Network::make();
        let authorities = (Authority::new("clients"), Authority::new("kubelets"));
        let cluster = Cluster::start(dir, &network.host, &authorities.0, &authorities.1).await;
        network.ask("sysctl", &["-w", "net.ipv4.ip_forward=0"]);
        Self {
            machine: Machine::make(dir, network, &cluster, (NAME, PODS), init),
            nodes: Api::all(cluster.client.clone()),
            client: cluster.client.clone(),
            authorities,
            cluster,
            forwards: AtomicBool::new(false),
        }
    }

    /// Waits until the worker is admitted and runs a Pod.
    pub(crate) async fn join(&self, worker: &Worker) {
        self.sign_while(self.machine.join(worker, &self.client)).await;
    }

    /// Runs a future while certificates are signed.
    pub(crate) async fn sign_while<T>(&self, work: impl Future<Output = T>) -> T {
        let (clients, kubelets) = &self.authorities;
        tokio::select! {
            done = work => done,
            () = sign_all(self.client.clone(), clients, kubelets, None) => unreachable!("it has no end"),
        }
    }

    /// Runs a future while certificates with this lifetime are signed.
    async fn sign_for<T>(&self, lifetime: Duration, work: impl Future<Output = T>) -> T {
        let (clients, kubelets) = &self.authorities;
        tokio::select! {
            done = work => done,
            () = sign_all(self.client.clone(), clients, kubelets, Some(lifetime)) => unreachable!("it has no end"),
        }
    }

    /// Waits for the join, and checks that everything exists whose removal is checked later.
    pub(crate) async fn wait_joined(&self, worker: &Worker) {
        self.join(worker).await;
        // No other machine can join with the files that remain on the disk.
        assert!(!worker.root.join("config/bootstrap.kubeconfig").exists());
        let sandboxed = self.machine.read("worker.json").unwrap()["ephemeral"] == true;
        // kube-proxy does the same.
        if !sandboxed {
            self.forwards.store(true, Ordering::Relaxed);
            for family in ["ip", "ip6"] {
                self.machine.network.ask("nft", &["add", "table", family, "kube-proxy"]);
            }
        }
        // This machine cannot see the mounts and the hosts file of a sandbox.
        for (kind, found) in self.machine.left_over() {
            let hidden = sandboxed && ["mounts", "hosts"].contains(&kind);
            assert_eq!(found.is_empty(), hidden, "{kind}: {found:?}");
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!(self.machine.read("sysctls.json").unwrap()["boot"], boot.trim());
    }

    /// Deletes the Node like the node reaper, and its Pods like Kubernetes does afterwards.
    pub(crate) async fn remove_node(&self) {
        self.nodes.delete(NAME, &Default::default()).await.unwrap();
        self.remove_pod().await;
    }

    /// Deletes the Pod at once, without waiting for its kubelet.
    pub(crate) async fn remove_pod(&self) {
        let pods = Api::<Pod>::default_namespaced(self.client.clone());
        pods.delete(NAME, &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }

    /// Replaces the certificate by an expired one, as if the machine had been off for too long.
    pub(crate) fn end_certificate(&self) {
        let user = format!("system:node:{NAME}");
        let subject = [
            (DnType::OrganizationName, "system:nodes"),
            (DnType::CommonName, user.as_str()),
        ];
        let file = self.machine.root().join("pki/kubelet-client-current.pem");
        std::fs::write(file, self.authorities.0.issue_ended(&subject)).unwrap();
    }

    async fn has_node(&self) -> bool {
        self.nodes.get_opt(NAME).await.unwrap().is_some()
    }

    pub(crate) async fn has_pod(&self) -> bool {
        Api::<Pod>::default_namespaced(self.client.clone())
            .get_opt(NAME)
            .await
            .unwrap()
            .is_some()
    }

    pub(crate) async fn assert_gone(&self, output: &str) {
        assert!(!self.has_pod().await, "it was evicted: {output}");
        self.assert_left(output).await;
    }

    /// Checks that everything is removed, without requiring a drain.
    pub(crate) async fn assert_left(&self, output: &str) {
        assert!(!self.has_node().await, "{output}");
        assert!(!self.machine.root().exists(), "{output}");
        for (kind, found) in self.machine.left_over() {
            assert_eq!(found, [""; 0], "{kind}: {output}");
        }
        // The first Pod has enabled forwarding, and it stays enabled, except in a network of the
        // worker's own.
        let expected = u8::from(self.forwards.load(Ordering::Relaxed)).to_string();
        for setting in ["net.ipv4.ip_forward", "net.ipv4.conf.eth0.forwarding"] {
            let found = self.machine.network.ask("sysctl", &["-n", setting]);
            assert_eq!(found.trim(), expected, "{setting}: {output}");
        }
    }

    /// Returns the Pod's response. A running Pod responds even without a worker.
    pub(crate) fn ask_pod(&self) -> String {
        self.try_pod().unwrap()
    }

    pub(crate) fn try_pod(&self) -> Result<String, String> {
        let url = format!("http://{}:18080/", self.machine.worker_address());
        self.machine.ask("curl", &["--silent", "--max-time", "5", &url])
    }
}

#[tokio::test]
async fn an_ephemeral_worker_leaves_nothing() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm"]);
    story.wait_joined(&worker).await;
    let words = worker.last_output();
    // The terminal of the worker is closed.
    worker.signal(Signal::HUP);
    assert_eq!(worker.ended().await, Some(0), "{words}\n{}", worker.last_output());
    let output = worker.output();
    assert!(output.contains("the worker was removed from this machine"), "{output}");
    story.assert_gone(&output).await;
}

/// The time is long enough for admission on any machine.
#[tokio::test]
async fn an_ephemeral_worker_ends_with_its_time() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm", "--ttl", "100s"]);
    story.wait_joined(&worker).await;
    assert_eq!(worker.ended().await, Some(0), "{}", worker.last_output());
    story.assert_gone(&worker.output()).await;
}

#[tokio::test]
async fn a_killed_worker_leaves_the_cluster() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm", "--ttl", "1h"]);
    story.wait_joined(&worker).await;
    worker.signal(Signal::KILL);
    assert_eq!(worker.ended().await, None);
    // The first worker exits by itself.
    let left = eventually_some("`leave` to succeed", END_LIMIT, async || {
        let mut leave = story.machine.start("leave", &["leave"]);
        let (code, output) = (leave.ended().await, leave.output());
        let is_busy = output.contains("is running, or another command changes it");
        assert!(code == Some(0) || is_busy, "{output}");
        (code == Some(0)).then_some(output)
    });
    story.assert_gone(&left.await.unwrap()).await;
}

#[tokio::test]
async fn certificates_renew_by_themselves() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm"]);
    let renewed = async {
        story.machine.join(&worker, &story.client).await;
        // The certificates of this moment have expired by then.
        let ended = Timestamp::now() + LIFETIME;
        let leases = Api::<Lease>::namespaced(story.client.clone(), "kube-node-lease");
        until(&worker, "a newer Lease of the Node", JOIN_LIMIT, async || {
            let lease = leases.get_opt(NAME).await.unwrap();
            let heard = lease.and_then(|lease| lease.spec?.renew_time);
            heard.is_some_and(|time| time.0 > ended)
        })
        .await;
        let pods = Api::<Pod>::default_namespaced(story.client.clone());
        pods.logs(NAME, &LogParams::default()).await.unwrap();
        let requests = Api::<CertificateSigningRequest>::all(story.client.clone());
        let requests = requests.list(&ListParams::default()).await.unwrap().items;
        for signer in ["kube-apiserver-client-kubelet", "kubelet-serving"] {
            let of_node = requests.iter().filter(|request| {
                request.spec.signer_name.ends_with(signer)
                    && request.spec.username.as_deref() == Some(&format!("system:node:{NAME}"))
            });
            // Without the first request of each signer, which is made with the token.
            let renewals = of_node.count() - usize::from(signer == "kubelet-serving");
            assert!(renewals > 0, "{signer}: {renewals}");
        }
        assert_eq!(worker.end().await, Some(0), "{}", worker.output());
    };
    story.sign_for(LIFETIME, renewed).await;
    // The worker has used the newest certificate.
    assert!(!story.has_node().await, "{}", worker.output());
}

/// Controllers that see the Node deleted assume that its Pods have stopped.
#[tokio::test]
async fn a_worker_ends_when_its_node_is_removed() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm"]);
    story.wait_joined(&worker).await;
    story.nodes.delete(NAME, &Default::default()).await.unwrap();
    assert_eq!(worker.ended().await, Some(1), "{}", worker.last_output());
    let output = worker.output();
    assert!(
        output.contains(&format!("Node {NAME} was removed from the cluster")),
        "{output}"
    );
    // No controller collects orphaned Pods in this test.
    assert!(story.has_pod().await, "{output}");
    story.assert_left(&output).await;
}

/// The worker is stopped for a while, like a laptop that was closed.
#[tokio::test]
async fn a_worker_without_contact_registers_again() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let mut story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&[]);
    story.wait_joined(&worker).await;
    let first = story.nodes.get(NAME).await.unwrap().metadata.uid;
    worker.signal(Signal::STOP);
    story.remove_node().await;
    // A worker that learns of the removal within this time had contact.
    tokio::time::sleep(NO_CONTACT).await;
    worker.signal(Signal::CONT);
    story.machine.pods = "10.232.8.0/24";
    story.wait_joined(&worker).await;
    assert!(
        worker
            .output()
            .contains("removed while this machine did not reach the API server; registering a new Node"),
        "{}",
        worker.output()
    );
    assert_serves_and_leaves(&story, &mut worker, first).await;
}

/// The kubelet registers a new Node after an upgrade or a crash.
#[tokio::test]
async fn a_worker_with_a_new_node_starts_over() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let mut story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&[]);
    story.wait_joined(&worker).await;
    let first = story.nodes.get(NAME).await.unwrap().metadata.uid;
    story.remove_node().await;
    until(
        &worker,
        "the worker to report the deleted Node",
        END_LIMIT,
        async || {
            worker
                .output()
                .contains("was deleted; restart this worker to register a new Node")
        },
    )
    .await;
    story.machine.kill_kubelet();
    story.machine.pods = "10.232.8.0/24";
    until(&worker, "the worker to register a new Node", END_LIMIT, async || {
        worker
            .output()
            .contains("the kubelet registered a new one; registering a new Node")
    })
    .await;
    story.wait_joined(&worker).await;
    assert_serves_and_leaves(&story, &mut worker, first).await;
}

/// Checks that the worker has a new Node whose Pods are reachable, and that it can leave.
async fn assert_serves_and_leaves(story: &Story, worker: &mut Worker, former: Option<String>) {
    assert_ne!(story.nodes.get(NAME).await.unwrap().metadata.uid, former);
    assert_eq!(story.ask_pod().trim(), NAME);
    assert_eq!(worker.end().await, Some(0), "{}", worker.output());
    let mut leave = story.machine.start("leave", &["leave"]);
    assert_eq!(leave.ended().await, Some(0), "{}", leave.output());
    story.assert_gone(&leave.output()).await;
}

#[tokio::test]
async fn a_worker_that_is_ended_at_once_leaves_the_cluster() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm"]);
    story.wait_joined(&worker).await;
    worker.signal(Signal::INT);
    until(&worker, "the worker to start its exit", END_LIMIT, async || {
        worker.output().contains("press Ctrl-C again to kill it")
    })
    .await;
    worker.signal(Signal::INT);
    assert_eq!(worker.ended().await, Some(1), "{}", worker.output());
    story.assert_left(&worker.output()).await;
}

/// Controllers that see the Node deleted may start its Pods elsewhere.
#[tokio::test]
async fn a_protected_pod_stops_before_its_node_is_deleted() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run_with("2s", &["--rm"]);
    story.wait_joined(&worker).await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "echo"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "echo"}}},
    });
    let url = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    create(&story.client, url, &budget).await;
    let running = || -> usize {
        let groups = story.machine.groups("/pods");
        groups.iter().map(|group| members(group).count()).sum()
    };
    assert_ne!(running(), 0, "control");
    worker.signal(Signal::TERM);
    until(&worker, "the drain to end", END_LIMIT, async || {
        worker.output().contains("some Pods are still on Node")
    })
    .await;
    // The worker tries to delete the Node for a while.
    story.cluster.signal(Signal::STOP);
    until(&worker, "the Pod to end", END_LIMIT, async || running() == 0).await;
    assert_eq!(worker.child.try_wait().unwrap(), None, "{}", worker.output());
    assert!(!worker.output().contains("cannot delete Node"), "{}", worker.output());
    story.cluster.signal(Signal::CONT);
    assert_eq!(worker.ended().await, Some(0), "{}", worker.output());
    assert!(story.has_pod().await, "its budget has kept it");
    story.assert_left(&worker.output()).await;
}

#[tokio::test]
async fn a_worker_continues_and_leaves() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&[]);
    story.wait_joined(&worker).await;
    assert_eq!(story.ask_pod().trim(), NAME);
    assert_eq!(worker.end().await, Some(0), "{}", worker.output());
    assert_eq!(story.ask_pod().trim(), NAME, "Pods do not end with their worker");
    assert!(story.has_node().await);

    let mut other = story.machine.run(&["--rm"]);
    assert_eq!(other.ended().await, Some(1), "{}", other.output());
    let taken = format!("belongs to the worker of Node {NAME}");
    assert!(other.output().contains(&taken), "{}", other.output());

    let mut again = story.machine.start("again", &["run"]);
    let joined = format!("this machine is Node {NAME}");
    until(&again, "the worker to continue", JOIN_LIMIT, async || {
        again.output().contains(&joined)
    })
    .await;
    let mut leave = story.machine.start("leave", &["leave"]);
    assert_eq!(leave.ended().await, Some(1));
    assert!(
        leave.output().contains("is running, or another command changes it"),
        "{}",
        leave.output()
    );
    assert_eq!(story.machine.hosts().lines().count(), 1, "{}", story.machine.hosts());
    assert_eq!(again.end().await, Some(0), "{}", again.output());

    let mut killed = story.machine.start("killed", &["leave"]);
    until(&killed, "the drain to start", JOIN_LIMIT, async || {
        killed.output().contains("draining; Pods left")
    })
    .await;
    killed.signal(Signal::KILL);
    assert_eq!(killed.ended().await, None);
    let lock = std::fs::File::open(story.machine.root().join("lock")).unwrap();
    until(&killed, "the lock of the killed worker", END_LIMIT, async || {
        lock.try_lock().is_ok()
    })
    .await;
    assert!(!story.machine.drains(), "the lock is held until then");
    drop(lock);

    let mut leave = story.machine.start("leave", &["leave"]);
    assert_eq!(leave.ended().await, Some(0), "{}", leave.output());
    story.assert_gone(&leave.output()).await;
}
