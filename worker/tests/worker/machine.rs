//! A simulated machine for a worker, and the program on it.

use std::convert::Infallible;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{LogParams, Patch, PatchParams};
use kube::{Api, Client};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use yoke_test_support::{eventually_blocking, eventually_some, eventually_true};

use crate::bundle::{self, ECHO};
use crate::cluster::{Cluster, create};
use crate::network::Network;
use crate::program::path;

/// Timeout for a join: programs are copied, images imported, and a kubelet starts.
pub(crate) const JOIN_LIMIT: Duration = Duration::from_secs(120);
pub(crate) const POD_LIMIT: Duration = Duration::from_secs(90);
pub(crate) const END_LIMIT: Duration = Duration::from_secs(120);
/// Timeout for a boot, including the start of a worker.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Process 1 of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Init {
    /// A process that manages no services.
    None,
    /// A real systemd, with only the units that a worker needs.
    Systemd,
}

/// A simulated machine: a network namespace and mounts that disappear with the test.
pub(crate) struct Machine {
    /// Holds the mount namespace.
    holder: Child,
    init: Init,
    pub(crate) network: Arc<Network>,
    dir: PathBuf,
    /// Names of the Node and prefix of its Pods' addresses.
    pub(crate) name: &'static str,
    pub(crate) pods: &'static str,
    /// Id of the last worker, once there is one.
    id: Mutex<Option<String>>,
}

impl Machine {
    /// Creates a machine with folders of its own for files that the worker's parts write at fixed
    /// paths.
    pub(crate) fn make(
        dir: &Path,
        network: Network,
        cluster: &Cluster,
        (name, pods): (&'static str, &'static str),
        init: Init,
    ) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        bundle::make(&dir.join("bundle"));
        std::fs::write(dir.join("token"), &cluster.token).unwrap();
        for name in ["etc", "etc.work", "units/yoke-worker-.service.d", "none"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        for (name, text) in UNITS {
            std::fs::write(dir.join("units").join(name), text).unwrap();
        }
        let log = format!("[Service]\nStandardOutput=append:{}\n", path(&dir.join("unit.log")));
        std::fs::write(dir.join("units/yoke-worker-.service.d/log.conf"), log).unwrap();
        Self {
            holder: boot(dir, &network, init),
            init,
            network: Arc::new(network),
            dir: dir.to_owned(),
            name,
            pods,
            id: Mutex::new(None),
        }
    }

    /// Creates a folder for another worker on the same machine.
    pub(crate) fn make_room(&self, (name, pods): (&'static str, &'static str)) -> Self {
        let dir = self.folder(name);
        for shared in ["bundle", "token"] {
            std::os::unix::fs::symlink(self.dir.join(shared), dir.join(shared)).unwrap();
        }
        let mut holder = self.enter();
        Self {
            holder: holder.args(["sleep", "600"]).spawn().unwrap(),
            init: self.init,
            network: Arc::clone(&self.network),
            dir,
            name,
            pods,
            id: Mutex::new(None),
        }
    }

    /// Returns the worker's network namespace, if it has one of its own.
    pub(crate) fn own_network(&self) -> Option<PathBuf> {
        let number = |file: &Path| std::fs::metadata(file).map(|meta| (meta.dev(), meta.ino())).ok();
        let machine = number(&Path::new("/run/netns").join(&self.network.namespace));
        let pids = self
            .groups("/node")
            .into_iter()
            .flat_map(|group| members(&group).collect::<Vec<_>>());
        let mut files = pids.map(|pid| PathBuf::from(format!("/proc/{}/ns/net", pid.as_raw_nonzero())));
        files.find(|file| number(file).is_some_and(|found| Some(found) != machine))
    }

    /// Returns the worker's address as the machine reaches it.
    pub(crate) fn worker_address(&self) -> String {
        let files = [self.root(), self.dir.join("volume")].map(|folder| folder.join("worker.json"));
        let text = files.into_iter().find_map(|file| std::fs::read(file).ok());
        let state = text.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let address = state.and_then(|state| state["uplink"]["address"].as_str().map(str::to_owned));
        address.unwrap_or_else(|| self.network.worker.clone())
    }

    /// Reboots the machine like after a power failure.
    pub(crate) fn boot_again(&mut self) {
        self.halt();
        self.holder = boot(&self.dir, &self.network, self.init);
    }

    /// Killing process 1 kills every process in its PID namespace.
    fn halt(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let own = format!("*/{}*", group_of(&self.dir));
        // Groups that remain do not fail the test.
        let busy = || {
            Ok::<_, Infallible>(
                find_groups(&own)
                    .iter()
                    .filter(|group| std::fs::remove_dir(group).is_err())
                    .count(),
            )
        };
        let _ = eventually_blocking("the groups to be empty", END_LIMIT, busy, |count| *count == 0);
    }

    /// Folder of the machine's units.
    pub(crate) fn units(&self) -> PathBuf {
        self.dir.join("units")
    }

    /// Returns the log of the machine's units.
    pub(crate) fn journal(&self) -> String {
        let logs = ["unit.log", "console.log"].map(|name| std::fs::read_to_string(self.dir.join(name)));
        logs.map(Result::unwrap_or_default).join("\n")
    }

    /// Runs a program on the machine. Returns its output, or its error output if it fails.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let output = self.enter().arg(program).args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    /// Returns a folder of the machine, and creates it if it is missing.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Path of the join token.
    pub(crate) fn token(&self) -> PathBuf {
        self.dir.join("token")
    }

    pub(crate) fn enter(&self) -> Command {
        let mut command = enter(&self.holder, self.init);
        command.arg(format!("--net=/run/netns/{}", self.network.namespace));
        command
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("w")
    }

    /// Starts yoke-worker on the machine, with the token on its standard input.
    pub(crate) fn start(&self, name: &str, arguments: &[&str]) -> Worker {
        let log = self.dir.join(format!("{name}.log"));
        let child = self
            .enter()
            // The tests themselves may run under `nohup`.
            .args(["env", "--default-signal=HUP"])
            .arg(env!("CARGO_BIN_EXE_yoke-worker"))
            .args(arguments)
            .args(["--root", path(&self.root())])
            .stdin(Stdio::from(std::fs::File::open(self.dir.join("token")).unwrap()))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Worker::of(child, self.root(), log)
    }

    /// Starts a worker with `run`.
    pub(crate) fn run(&self, more: &[&str]) -> Worker {
        self.make_worker("run", "40s", more)
    }

    /// Starts a worker with `run` and this drain timeout.
    pub(crate) fn run_with(&self, drain: &str, more: &[&str]) -> Worker {
        self.make_worker("run", drain, more)
    }

    /// Starts a permanent worker with `join`.
    pub(crate) fn join_for_good(&self) -> Worker {
        self.make_worker("join", "40s", &[])
    }

    fn make_worker(&self, command: &str, drain: &str, more: &[&str]) -> Worker {
        let bundle = self.dir.join("bundle");
        let own = ["-", "--allow-cgroup-v1", "--bundle", path(&bundle)];
        let node = [
            "--name",
            self.name,
            "--node-ip",
            &self.network.worker,
            "--drain-timeout",
            drain,
        ];
        self.start(command, &[&[command], &own[..], &node[..], more].concat())
    }

    /// Reads a JSON file of the worker's folder.
    pub(crate) fn read(&self, name: &str) -> Option<Value> {
        let text = std::fs::read(self.root().join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Returns the worker's control group. The machines of all tests share the hierarchy.
    pub(crate) fn cgroup(&self) -> Option<String> {
        let mut id = self.id.lock().unwrap();
        // A new worker in the same folder has another id.
        if let Some(found) = self.read("worker.json") {
            *id = found["id"].as_str().map(str::to_owned).or(id.take());
        }
        id.as_ref().map(|id| format!("yoke-worker-{id}"))
    }

    /// Returns every control group of the worker below a path, deepest first.
    pub(crate) fn groups(&self, below: &str) -> Vec<PathBuf> {
        let Some(cgroup) = self.cgroup() else { return Vec::new() };
        find_groups(&format!("*/{cgroup}{below}*"))
    }

    /// Kills the kubelet, which the worker then restarts.
    pub(crate) fn kill_kubelet(&self) {
        let groups = self.groups("/node");
        let is_kubelet = |pid: &Pid| {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
            name.is_ok_and(|name| name.trim() == "kubelet")
        };
        let mut pids = groups.iter().flat_map(|group| members(group)).filter(is_kubelet);
        rustix::process::kill_process(pids.next().expect("it runs"), Signal::KILL).unwrap();
    }

    /// Kills what a failed test left behind, because no other test does.
    fn empty_groups(&self) {
        let left = || {
            let groups = self.groups("");
            kill_groups(&groups);
            Ok::<_, Infallible>(groups.len())
        };
        // Groups that remain do not fail the test.
        let _ = eventually_blocking("the groups to be empty", END_LIMIT, left, |count| *count == 0);
    }

    /// Reports whether the drain process of `leave` runs.
    pub(crate) fn drains(&self) -> bool {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
        lines.any(|line| line.contains("\0--leave\0") && line.contains(path(&self.root())))
    }

    /// Returns the lines of the machine's `/etc/hosts` that this test has added.
    pub(crate) fn hosts(&self) -> String {
        let usual = std::fs::read_to_string("/etc/hosts").unwrap();
        let own = std::fs::read_to_string(self.dir.join("etc/hosts")).unwrap_or_else(|_| usual.clone());
        own.strip_prefix(&usual).expect("what was there stays").to_owned()
    }

    /// Returns what is left of a worker: control groups, mounts, rules, links, routes and hosts.
    pub(crate) fn left_over(&self) -> [(&'static str, Vec<String>); 6] {
        let groups = self.groups("").into_iter().map(|group| path(&group).to_owned());
        let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.id())).unwrap();
        let root = path(&self.root()).to_owned();
        let rules = self.network.ask("iptables", &["-t", "nat", "-S"]) + &self.network.ask("nft", &["list", "ruleset"]);
        let links = self.network.ask("ip", &["-brief", "link"]);
        let routes = self.network.ask("ip", &["route", "show", "table", "all"]);
        // The CNI plugins' own chains stay, empty, for the next use.
        let of_pods = |line: &&str| {
            ["10.232.", "yoke-worker", "yoke-uplink", "ykup", "KUBE-", "kube-proxy"]
                .iter()
                .any(|part| line.contains(part))
        };
        let own = |link: &&str| {
            ["yoke", "ykwg", "ykup", "veth"]
                .iter()
                .any(|prefix| link.starts_with(prefix))
        };
        let owned = |line: &str| line.to_owned();
        [
            ("groups", groups.collect()),
            (
                "mounts",
                mounts.lines().filter(|line| line.contains(&root)).map(owned).collect(),
            ),
            ("rules", rules.lines().filter(of_pods).map(owned).collect()),
            ("links", links.lines().filter(own).map(owned).collect()),
            ("routes", routes.lines().filter(of_pods).map(owned).collect()),
            ("hosts", self.hosts().lines().map(owned).collect()),
        ]
    }

    /// Waits until the worker is admitted and runs a Pod.
    pub(crate) async fn join(&self, worker: &Worker, client: &Client) {
        let nodes = Api::<Node>::all(client.clone());
        until(worker, "the Node", JOIN_LIMIT, async || {
            nodes.get_opt(self.name).await.unwrap().is_some()
        })
        .await;
        let pods = json!({"spec": {"podCIDR": self.pods, "podCIDRs": [self.pods]}});
        let params = PatchParams::default();
        nodes.patch(self.name, &params, &Patch::Merge(&pods)).await.unwrap();
        until(worker, "the Node to be Ready", JOIN_LIMIT, async || {
            self.is_ready(&nodes).await
        })
        .await;
        self.run_pod(worker, client).await;
    }

    pub(crate) async fn is_ready(&self, nodes: &Api<Node>) -> bool {
        let node = nodes.get_opt(self.name).await.unwrap();
        let conditions = node.and_then(|node| node.status?.conditions).unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    pub(crate) async fn run_pod(&self, worker: &Worker, client: &Client) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name, "labels": {"app": "echo"}},
            "spec": {
                "nodeName": self.name,
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
        until(worker, "the Pod to run", POD_LIMIT, async || {
            let status = pods.get(self.name).await.unwrap().status.unwrap_or_default();
            let address = status.pod_ip.unwrap_or_default();
            status.phase.as_deref() == Some("Running") && address.starts_with(self.pods.trim_end_matches("0/24"))
        })
        .await;
        // This checks both directions: kube-apiserver verifies the kubelet's serving certificate,
        // and the kubelet the client certificate of kube-apiserver.
        until(worker, "the log of the Pod", POD_LIMIT, async || {
            pods.logs(self.name, &LogParams::default()).await.is_ok()
        })
        .await;
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.halt();
        self.empty_groups();
    }
}

pub(crate) fn find_groups(path: &str) -> Vec<PathBuf> {
    let mut find = Command::new("find");
    find.args(["/sys/fs/cgroup", "-depth", "-type", "d", "-path", path]);
    let found = String::from_utf8(find.output().unwrap().stdout).unwrap();
    found.lines().map(PathBuf::from).collect()
}

/// Units that a worker's unit is ordered by.
const UNITS: &[(&str, &str)] = &[
    ("sysinit.target", "[Unit]\nDefaultDependencies=no\n"),
    (
        "basic.target",
        "[Unit]\nDefaultDependencies=no\nRequires=sysinit.target\nAfter=sysinit.target\n",
    ),
    (
        "multi-user.target",
        "[Unit]\nDefaultDependencies=no\nRequires=basic.target\nAfter=basic.target\n",
    ),
    ("network-online.target", "[Unit]\nDefaultDependencies=no\n"),
    ("shutdown.target", "[Unit]\nDefaultDependencies=no\n"),
];

/// Redirects changes of `/etc` to a folder.
const BOOT: &str = r#"cd "$0"
    mount -t overlay overlay -o lowerdir=/etc,upperdir=etc,workdir=etc.work /etc
    for usual in /run /var/lib /var/log; do mount -t tmpfs tmpfs "$usual"; done
"#;
const WAIT: &str = "touch made && exec sleep 600";
/// Starts systemd with its control groups below one of its own, as in a container. Otherwise it
/// would mount each version 1 controller of the kernel, and groups created there would stay for
/// every process of this machine.
const SYSTEMD: &str = r#"mount --bind units /etc/systemd/system
    if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
        while read -r name rest; do
            if [ "$name" = '#subsys_name' ] || [ -e "/sys/fs/cgroup/$name/cgroup.procs" ]; then echo "$name $rest"; fi
        done < /proc/cgroups > controllers
        mount --bind controllers /proc/cgroups
    fi
    for all in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
        if [ -e "$all/cgroup.procs" ]; then mkdir -p "$all/$1" && echo 0 > "$all/$1/cgroup.procs"; fi
    done
    exec env -i PATH="$PATH" container=other SYSTEMD_LOG_TARGET=console SYSTEMD_UNIT_PATH=/etc/systemd/system \
        SYSTEMD_GENERATOR_PATH="$0/none" /lib/systemd/systemd --system --unit=multi-user.target"#;

/// Name of the machine's control group, if its process 1 creates one.
fn group_of(dir: &Path) -> String {
    format!("yoke-boot-{}", dir.file_name().unwrap().display())
}

fn boot(dir: &Path, network: &Network, init: Init) -> Child {
    let console = std::fs::File::create(dir.join("console.log")).unwrap();
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", network.namespace));
    let (more, last): (&[&str], _) = match init {
        Init::None => (&[], WAIT),
        Init::Systemd => (
            &["--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--ipc"],
            SYSTEMD,
        ),
    };
    command.args(["unshare", "--mount"]).args(more);
    command.args(["sh", "-ec", &format!("{BOOT}{last}"), path(dir), &group_of(dir)]);
    let holder = command
        .stdout(console.try_clone().unwrap())
        .stderr(console)
        .spawn()
        .unwrap();
    let is_made = || match init {
        Init::None => dir.join("made").exists(),
        Init::Systemd => {
            let mut ask = enter(&holder, init);
            ask.args(["systemctl", "--quiet", "is-active", "multi-user.target"]);
            ask.stderr(Stdio::null()).status().unwrap().success()
        }
    };
    let made = || Ok::<_, Infallible>(is_made());
    if let Err(error) = eventually_blocking("the machine to boot", BOOT_LIMIT, made, |made| *made) {
        let output = std::fs::read_to_string(dir.join("console.log")).unwrap();
        panic!("{error}: {output}");
    }
    holder
}

/// Builds a command that runs in the machine's namespaces.
fn enter(holder: &Child, init: Init) -> Command {
    let file = |name: &str| format!("/proc/{}/ns/{name}", holder.id());
    let mut command = Command::new("nsenter");
    command.arg(format!("--mount={}", file("mnt")));
    if init == Init::Systemd {
        command.arg(format!("--pid={}", file("pid_for_children")));
    }
    command
}

pub(crate) fn members(group: &Path) -> impl Iterator<Item = Pid> + use<> {
    let list = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let pids: Vec<_> = list
        .lines()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect();
    pids.into_iter()
}

/// A running program. Dropping it sends SIGTERM, waits, and finally kills it.
pub(crate) struct Worker {
    pub(crate) child: Child,
    pub(crate) root: PathBuf,
    log: PathBuf,
}

impl Worker {
    /// Wraps a process that is a worker, or starts one.
    pub(crate) fn of(child: Child, root: PathBuf, log: PathBuf) -> Self {
        Self { child, root, log }
    }

    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Returns the last output of the worker and of its parts.
    pub(crate) fn last_output(&self) -> String {
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

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    }

    pub(crate) async fn end(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended().await
    }

    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let child = &mut self.child;
        let status = eventually_some("the worker to exit", END_LIMIT, async || child.try_wait().unwrap());
        match status.await {
            Ok(status) => status.code(),
            Err(error) => panic!("{error}: {}", self.last_output()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Two signals stop it at once, even if the first one has started the drain.
        for _ in 0..2 {
            if matches!(self.child.try_wait(), Ok(None)) {
                self.signal(Signal::TERM);
                std::thread::park_timeout(Duration::from_millis(500));
            }
        }
        let exited = || Ok::<_, Infallible>(!matches!(self.child.try_wait(), Ok(None)));
        // A worker that does not exit is killed.
        let _ = eventually_blocking("the worker to exit", END_LIMIT, exited, |exited| *exited);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills the members of groups, and removes the groups that are empty.
pub(crate) fn kill_groups(groups: &[PathBuf]) {
    for group in groups {
        for pid in members(group) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = std::fs::remove_dir(group);
    }
}

/// Waits until a condition holds. `what` completes the sentence "waited for …". A failure shows
/// the last output of the worker.
pub(crate) async fn until(worker: &Worker, what: &str, limit: Duration, holds: impl AsyncFn() -> bool) {
    if let Err(error) = eventually_true(what, limit, holds).await {
        panic!("{error}: {}", worker.last_output());
    }
}
