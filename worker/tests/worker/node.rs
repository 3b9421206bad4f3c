//! A worker of a real API: it joins, runs a Pod, is asked for its log, and leaves nothing.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{LogParams, Patch, PatchParams};
use kube::{Api, Client};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::bundle::{self, ECHO};
use crate::cluster::{Cluster, Network, create};
use crate::program::path;
use crate::signer::{Authority, sign_all};

const NAME: &str = "box-1";
const PODS: &str = "10.232.7.0/24";
/// Programs are copied, images loaded; a kubelet starts and joins.
const JOIN_LIMIT: Duration = Duration::from_secs(120);
const POD_LIMIT: Duration = Duration::from_secs(90);
const END_LIMIT: Duration = Duration::from_secs(120);

/// What a worker takes for its machine: a network, and mounts, that go with the test.
struct Machine {
    /// Keeps the mounts there are.
    holder: Child,
    network: Network,
    dir: PathBuf,
    /// What parts of the worker are called by, once there is one.
    id: OnceLock<String>,
}

impl Machine {
    /// It finds the API by its own hosts, and has its own places for what parts of a worker write wherever they are.
    fn make(dir: &Path, network: Network, cluster: &Cluster) -> Self {
        let script = r#"mount --bind "$0" /etc/hosts
            for usual in /run /var/lib /var/log; do mount -t tmpfs tmpfs "$usual"; done
            touch "$1" && exec sleep 600"#;
        let made = dir.join("made");
        let holder = Command::new("unshare")
            .args(["--mount", "sh", "-ec", script, path(&cluster.hosts), path(&made)])
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !made.exists() {
            assert!(Instant::now() < deadline, "the machine is not made");
            std::thread::park_timeout(Duration::from_millis(20));
        }
        bundle::make(&dir.join("bundle"));
        std::fs::write(dir.join("token"), &cluster.token).unwrap();
        Self {
            holder,
            network,
            dir: dir.to_owned(),
            id: OnceLock::new(),
        }
    }

    fn root(&self) -> PathBuf {
        self.dir.join("w")
    }

    /// Starts the program there, with the token on its standard input.
    fn start(&self, name: &str, arguments: &[&str]) -> Worker {
        let log = self.dir.join(format!("{name}.log"));
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.holder.id());
        let net = format!("--net=/run/netns/{}", self.network.namespace);
        let child = Command::new("nsenter")
            .args([&mounts, &net, env!("CARGO_BIN_EXE_yoke-worker")])
            .args(arguments)
            .args(["--root", path(&self.root())])
            .stdin(Stdio::from(std::fs::File::open(self.dir.join("token")).unwrap()))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Worker {
            child,
            root: self.root(),
            log,
        }
    }

    /// Makes a worker of it.
    fn run(&self, more: &[&str]) -> Worker {
        self.run_with("40s", more)
    }

    /// With this time to drain.
    fn run_with(&self, drain: &str, more: &[&str]) -> Worker {
        let bundle = self.dir.join("bundle");
        let own = ["run", "-", "--allow-cgroup-v1", "--bundle", path(&bundle)];
        let node = [
            "--name",
            NAME,
            "--node-ip",
            &self.network.worker,
            "--drain-timeout",
            drain,
        ];
        self.start("run", &[&own[..], &node[..], more].concat())
    }

    /// A file of the worker's folder.
    fn read(&self, name: &str) -> Option<Value> {
        let text = std::fs::read(self.root().join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Control groups are shared with the machines of other tests.
    fn cgroup(&self) -> Option<String> {
        if self.id.get().is_none() {
            let id = self.read("worker.json")?["id"].as_str()?.to_owned();
            let _ = self.id.set(id);
        }
        self.id.get().map(|id| format!("yoke-worker-{id}"))
    }

    /// Every control group of the worker beneath a path, deepest first.
    fn groups(&self, below: &str) -> Vec<PathBuf> {
        let Some(cgroup) = self.cgroup() else { return Vec::new() };
        let path = format!("*/{cgroup}{below}*");
        let mut find = Command::new("find");
        find.args(["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &path]);
        let found = String::from_utf8(find.output().unwrap().stdout).unwrap();
        found.lines().map(PathBuf::from).collect()
    }

    /// Kills what a test that failed has left, for no other test looks after it.
    fn empty_groups(&self) {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            let groups = self.groups("");
            if groups.is_empty() || Instant::now() > deadline {
                return;
            }
            for group in groups {
                for pid in members(&group) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
                let _ = std::fs::remove_dir(group);
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// Whether a part of `leave` runs.
    fn drains(&self) -> bool {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
        lines.any(|line| line.contains("\0--leave\0") && line.contains(path(&self.root())))
    }

    /// Groups, mounts, rules and links of a worker.
    fn left_over(&self) -> [(&'static str, Vec<String>); 4] {
        let groups = self.groups("").into_iter().map(|group| path(&group).to_owned());
        let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.id())).unwrap();
        let root = path(&self.root()).to_owned();
        let rules = self.network.ask("iptables", &["-t", "nat", "-S"]) + &self.network.ask("nft", &["list", "ruleset"]);
        let links = self.network.ask("ip", &["-brief", "link"]);
        // The plugins' own chains, which are empty by then, stay for whoever uses them next.
        let of_pods = |line: &&str| {
            ["10.232.7.", "yoke-worker", "KUBE-", "kube-proxy"]
                .iter()
                .any(|part| line.contains(part))
        };
        let own = |link: &&str| link.contains("yoke") || link.starts_with("veth");
        let owned = |line: &str| line.to_owned();
        [
            ("groups", groups.collect()),
            (
                "mounts",
                mounts.lines().filter(|line| line.contains(&root)).map(owned).collect(),
            ),
            ("rules", rules.lines().filter(of_pods).map(owned).collect()),
            ("links", links.lines().filter(own).map(owned).collect()),
        ]
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        self.empty_groups();
    }
}

fn members(group: &Path) -> impl Iterator<Item = Pid> + use<> {
    let list = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let pids: Vec<_> = list
        .lines()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect();
    pids.into_iter()
}

/// A running program. Dropped, it is told to end, waited for, and killed in the end.
struct Worker {
    child: Child,
    root: PathBuf,
    log: PathBuf,
}

impl Worker {
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// What it, and its parts, said last.
    fn last_words(&self) -> String {
        let logs = ["kubelet", "containerd"].map(|name| self.root.join(format!("logs/{name}.log")));
        let tail = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(25).collect();
            format!(
                "{}:\n{}\n",
                path.display(),
                lines.into_iter().rev().collect::<Vec<_>>().join("\n")
            )
        };
        [&self.log, &logs[0], &logs[1]].map(|path| tail(path)).concat()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    }

    async fn end(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended().await
    }

    async fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end: {}", self.last_words());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Twice: at once, should the first have begun the drain.
        for _ in 0..2 {
            if matches!(self.child.try_wait(), Ok(None)) {
                self.signal(Signal::TERM);
                std::thread::park_timeout(Duration::from_millis(500));
            }
        }
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn until(worker: &Worker, what: &str, limit: Duration, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}: {}", worker.last_words());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn is_ready(nodes: &Api<Node>) -> bool {
    let node = nodes.get_opt(NAME).await.unwrap();
    let conditions = node.and_then(|node| node.status?.conditions).unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn run_pod(worker: &Worker, client: &Client) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "echo", "labels": {"app": "echo"}},
        "spec": {
            "nodeName": NAME,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "echo", "image": ECHO, "imagePullPolicy": "IfNotPresent",
                "ports": [{"containerPort": 8080, "hostPort": 18080}],
            }],
        },
    });
    create(client, "/api/v1/namespaces/default/pods", &pod).await;
    let pods = Api::<Pod>::default_namespaced(client.clone());
    until(worker, "the Pod runs", POD_LIMIT, async || {
        let status = pods.get("echo").await.unwrap().status.unwrap_or_default();
        status.phase.as_deref() == Some("Running") && status.pod_ip.is_some_and(|ip| ip.starts_with("10.232.7."))
    })
    .await;
    // kube-apiserver knows the kubelet by its serving certificate, and the kubelet it by its own.
    until(worker, "its log is read", POD_LIMIT, async || {
        pods.logs("echo", &LogParams::default()).await.is_ok()
    })
    .await;
}

/// A machine, a cluster that it may join, and what signs for that.
struct Story {
    machine: Machine,
    client: Client,
    nodes: Api<Node>,
    authorities: (Authority, Authority),
    cluster: Cluster,
}

impl Story {
    async fn begin(dir: &Path) -> Self {
        assert!(rustix::process::geteuid().is_root(), "a worker needs root");
        let network = Network::make();
        let authorities = (Authority::new("clients"), Authority::new("kubelets"));
        let cluster = Cluster::start(dir, &network, &authorities.0, &authorities.1).await;
        network.ask("sysctl", &["-w", "net.ipv4.ip_forward=0"]);
        Self {
            machine: Machine::make(dir, network, &cluster),
            nodes: Api::all(cluster.client.clone()),
            client: cluster.client.clone(),
            authorities,
            cluster,
        }
    }

    /// The worker is let in, and runs a Pod.
    async fn let_in(&self, worker: &Worker) {
        let story = async {
            until(worker, "it joins", JOIN_LIMIT, async || self.has_node().await).await;
            let pods = json!({"spec": {"podCIDR": PODS, "podCIDRs": [PODS]}});
            self.nodes
                .patch(NAME, &PatchParams::default(), &Patch::Merge(&pods))
                .await
                .unwrap();
            until(worker, "it is ready", JOIN_LIMIT, async || is_ready(&self.nodes).await).await;
            run_pod(worker, &self.client).await;
        };
        let (clients, kubelets) = &self.authorities;
        tokio::select! {
            () = story => {}
            () = sign_all(self.client.clone(), clients, kubelets) => {}
        }
        // What is left on the disk lets nobody else in.
        assert!(!worker.root.join("config/bootstrap.kubeconfig").exists());
        // As kube-proxy does.
        for family in ["ip", "ip6"] {
            self.machine.network.ask("nft", &["add", "table", family, "kube-proxy"]);
        }
        // What is looked for later is seen now, but for the mounts of a box.
        let boxed = self.machine.read("worker.json").unwrap()["ephemeral"] == true;
        for (kind, found) in self.machine.left_over() {
            assert_eq!(found.is_empty(), boxed && kind == "mounts", "{kind}: {found:?}");
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!(self.machine.read("sysctls.json").unwrap()["boot"], boot.trim());
    }

    async fn has_node(&self) -> bool {
        self.nodes.get_opt(NAME).await.unwrap().is_some()
    }

    async fn has_pod(&self) -> bool {
        Api::<Pod>::default_namespaced(self.client.clone())
            .get_opt("echo")
            .await
            .unwrap()
            .is_some()
    }

    async fn assert_gone(&self, said: &str) {
        assert!(!self.has_pod().await, "it was evicted: {said}");
        self.assert_left(said).await;
    }

    /// It may not have been drained.
    async fn assert_left(&self, said: &str) {
        assert!(!self.has_node().await, "{said}");
        assert!(!self.machine.root().exists(), "{said}");
        for (kind, found) in self.machine.left_over() {
            assert_eq!(found, [""; 0], "{kind}: {said}");
        }
        // The first Pod has turned it on, and others may count on it by now.
        let forward = self.machine.network.ask("sysctl", &["-n", "net.ipv4.ip_forward"]);
        assert_eq!(forward.trim(), "1", "{said}");
    }

    /// What the Pod answers: it does as long as it runs, whoever looks after it.
    fn ask_pod(&self) -> String {
        let url = format!("http://{}:18080/", self.machine.network.worker);
        self.machine.network.ask("curl", &["--silent", "--max-time", "5", &url])
    }
}

#[tokio::test]
async fn an_ephemeral_worker_leaves_nothing() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm"]);
    story.let_in(&worker).await;
    let words = worker.last_words();
    // Its terminal is closed.
    worker.signal(Signal::HUP);
    assert_eq!(worker.ended().await, Some(0), "{words}\n{}", worker.last_words());
    let said = worker.said();
    assert!(said.contains("nothing of the worker is left on this machine"), "{said}");
    story.assert_gone(&said).await;
}

#[tokio::test]
async fn a_killed_worker_leaves_the_cluster() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm", "--ttl", "1h"]);
    story.let_in(&worker).await;
    worker.signal(Signal::KILL);
    assert_eq!(worker.ended().await, None);
    let until_then = Instant::now() + END_LIMIT;
    loop {
        let mut leave = story.machine.start("leave", &["leave"]);
        let (code, said) = (leave.ended().await, leave.said());
        if code == Some(0) {
            return story.assert_gone(&said).await;
        }
        // It leaves by itself first.
        assert!(
            said.contains("runs, or is being changed") && Instant::now() < until_then,
            "{said}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn a_worker_that_is_ended_at_once_leaves_the_cluster() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&["--rm"]);
    story.let_in(&worker).await;
    worker.signal(Signal::INT);
    until(&worker, "it ends", END_LIMIT, async || {
        worker.said().contains("once more to end it at once")
    })
    .await;
    worker.signal(Signal::INT);
    assert_eq!(worker.ended().await, Some(1), "{}", worker.said());
    story.assert_left(&worker.said()).await;
}

/// Whoever sees that the Node is gone may start its Pods elsewhere.
#[tokio::test]
async fn a_pod_that_may_not_go_ends_before_its_node() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run_with("2s", &["--rm"]);
    story.let_in(&worker).await;
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
    until(&worker, "it gives up", END_LIMIT, async || {
        worker.said().contains("Pods are left on Node")
    })
    .await;
    // The Node is tried to be deleted for a while.
    story.cluster.signal(Signal::STOP);
    until(&worker, "the Pod ends", END_LIMIT, async || running() == 0).await;
    assert_eq!(worker.child.try_wait().unwrap(), None, "{}", worker.said());
    assert!(!worker.said().contains("cannot delete Node"), "{}", worker.said());
    story.cluster.signal(Signal::CONT);
    assert_eq!(worker.ended().await, Some(0), "{}", worker.said());
    assert!(story.has_pod().await, "its budget has kept it");
    story.assert_left(&worker.said()).await;
}

#[tokio::test]
async fn a_worker_goes_on_and_leaves() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let mut worker = story.machine.run(&[]);
    story.let_in(&worker).await;
    assert_eq!(story.ask_pod().trim(), "echo");
    assert_eq!(worker.end().await, Some(0), "{}", worker.said());
    assert_eq!(story.ask_pod().trim(), "echo", "Pods do not end with their worker");
    assert!(story.has_node().await);

    let mut other = story.machine.run(&["--rm"]);
    assert_eq!(other.ended().await, Some(1), "{}", other.said());
    let taken = format!("belongs to Node {NAME}");
    assert!(other.said().contains(&taken), "{}", other.said());

    let mut again = story.machine.start("again", &["run"]);
    let joined = format!("this machine is Node {NAME}");
    until(&again, "it goes on", JOIN_LIMIT, async || {
        again.said().contains(&joined)
    })
    .await;
    let mut leave = story.machine.start("leave", &["leave"]);
    assert_eq!(leave.ended().await, Some(1));
    assert!(leave.said().contains("runs, or is being changed"), "{}", leave.said());
    assert_eq!(again.end().await, Some(0), "{}", again.said());

    let mut killed = story.machine.start("killed", &["leave"]);
    until(&killed, "it drains", JOIN_LIMIT, async || {
        killed.said().contains("Pods that have to go")
    })
    .await;
    killed.signal(Signal::KILL);
    assert_eq!(killed.ended().await, None);
    let lock = std::fs::File::open(story.machine.root().join("lock")).unwrap();
    until(&killed, "its part has ended", END_LIMIT, async || {
        lock.try_lock().is_ok()
    })
    .await;
    assert!(!story.machine.drains(), "nobody else may come in before");
    drop(lock);

    let mut leave = story.machine.start("leave", &["leave"]);
    assert_eq!(leave.ended().await, Some(0), "{}", leave.said());
    story.assert_gone(&leave.said()).await;
}
