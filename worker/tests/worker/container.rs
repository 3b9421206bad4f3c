//! A worker in a container of its published image.

use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use yoke_test_support::{eventually, eventually_blocking};

use crate::bundle;
use crate::machine::{END_LIMIT, Machine, Worker, find_groups, kill_groups};
use crate::node::{NAME, Story};
use crate::program::path;

const IMAGE: &str = "docker.io/yoke/worker:test";
/// Timeout for unpacking an image of some hundred megabytes.
const ENGINE_LIMIT: Duration = Duration::from_secs(60);

/// A containerd on a machine. Dropping it stops it and removes its containers.
struct Engine<'a> {
    machine: &'a Machine,
    daemon: Child,
    /// Control group of its container.
    group: String,
}

impl<'a> Engine<'a> {
    async fn start(machine: &'a Machine) -> Self {
        let dir = machine.folder("engine");
        let configuration = format!(
            "version = 2\nroot = '{0}/root'\nstate = '{0}/state'\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n\
             [grpc]\naddress = '{0}/socket'\n",
            path(&dir)
        );
        fs::write(dir.join("config.toml"), configuration).unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut daemon = machine.enter();
        daemon.args(["containerd", "--config"]).arg(dir.join("config.toml"));
        let engine = Self {
            machine,
            daemon: daemon.stdout(Stdio::null()).stderr(log).spawn().unwrap(),
            group: format!("yoke-box-{}", dir.parent().unwrap().file_name().unwrap().display()),
        };
        let version = async || engine.ctr(&["version"]);
        if let Err(error) = eventually("containerd to answer", ENGINE_LIMIT, version, |_| true).await {
            panic!("{error}\n{}", fs::read_to_string(dir.join("log")).unwrap());
        }
        engine
    }

    fn socket(&self) -> String {
        path(&self.machine.folder("engine").join("socket")).to_owned()
    }

    fn ctr(&self, arguments: &[&str]) -> Result<String, String> {
        let ctr = bundle::bin().join("ctr");
        let socket = self.socket();
        self.machine
            .ask(path(&ctr), &[&["--address", &socket], arguments].concat())
    }

    async fn load(&self) {
        let binary = env!("CARGO_BIN_EXE_yoke-worker").into();
        let image = yoke_dev::images::worker::build(binary, &self.machine.folder("bundle")).await;
        let archive = image.unwrap().to_archive(&[IMAGE.to_owned()]).unwrap();
        let file = self.machine.folder("engine").join("image.tar");
        fs::write(&file, archive).unwrap();
        self.ctr(&["images", "import", path(&file)]).unwrap();
    }

    /// Runs the image like `docker run --privileged --network host`, with the image's volume and
    /// the machine's control groups. Docker and Kubernetes mount both by default.
    fn run(&self) -> Worker {
        let machine = self.machine;
        let volume = machine.folder("volume");
        let bind = |source: &str, place: &str| format!("type=bind,src={source},dst={place},options=rbind:rw");
        let mounts = [
            bind(path(&volume), "/var/lib/yoke-worker"),
            bind(path(&machine.token()), "/token"),
            "type=cgroup,src=cgroup,dst=/sys/fs/cgroup,options=rw".to_owned(),
        ];
        let log = machine.folder("engine").join("worker.log");
        let mut command = machine.enter();
        command
            .arg(bundle::bin().join("ctr"))
            .args(["--address", &self.socket(), "run", "--rm", "--privileged", "--net-host"])
            .args(["--cgroup", &format!("/{}", self.group)])
            .args(mounts.iter().flat_map(|mount| ["--mount", mount]))
            .args([IMAGE, "box"])
            .args([
                "yoke-worker",
                "run",
                "--rm",
                "--token-file",
                "/token",
                "--allow-cgroup-v1",
            ])
            .args([
                "--name",
                NAME,
                "--node-ip",
                &machine.network.worker,
                "--drain-timeout",
                "40s",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap());
        Worker::of(command.spawn().unwrap(), volume, log)
    }

    fn groups(&self) -> Vec<PathBuf> {
        find_groups(&format!("*/{}*", self.group))
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        let left = || {
            let groups = self.groups();
            kill_groups(&groups);
            Ok::<_, Infallible>(groups.len())
        };
        // Groups that remain do not fail the test.
        let _ = eventually_blocking("the groups to be empty", END_LIMIT, left, |count| *count == 0);
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_a_worker() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let engine = Engine::start(&story.machine).await;
    engine.load().await;
    let mut worker = engine.run();
    story.join(&worker).await;
    assert_eq!(story.ask_pod().trim(), NAME);
    assert_ne!(fs::read_dir(&worker.root).unwrap().count(), 0);

    assert_eq!(worker.end().await, Some(0), "{}", worker.last_output());
    let output = worker.output();
    assert!(output.contains("the worker was removed from this machine"), "{output}");
    story.assert_gone(&output).await;
    let left: Vec<_> = fs::read_dir(&worker.root).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(engine.groups(), Vec::<PathBuf>::new(), "{output}");
}
