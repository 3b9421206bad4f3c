//! Workers of tenants' clusters: real kubelets behind NAT on this computer, started like with `make
//! worker`.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use kube::config::AuthInfo;
use tokio::process::Command;

use crate::command::{Output, run};
use crate::process::{family, list_pids};
use crate::ssh::ssh;
use crate::stack::{Stack, configuration};
use crate::wait::wait_until;

/// Image of a program that serves on port 8080, sends a request with the arguments `get URL`, and
/// reads a terminal with `type`.
pub const ECHO: &str = "docker.io/yoke/echo:dev";

/// The SSH server watches Tenants, so it knows a new key with a delay.
const KEY_LIMIT: Duration = Duration::from_secs(20);
/// Timeout of joining: its programs are packed, and its Node becomes Ready.
const JOIN_LIMIT: Duration = Duration::from_secs(300);
const SIGNAL_LIMIT: Duration = Duration::from_secs(10);
/// Timeout of leaving: its Pods are drained.
const REMOVE_LIMIT: Duration = Duration::from_secs(200);
/// Lifetime of a worker, in case its test is interrupted.
const TTL: &str = "2h";

/// A running worker. Dropping it starts its removal.
pub struct Worker {
    /// Name of its Node.
    pub name: String,
    stack: Stack,
    left: bool,
}

impl Worker {
    /// Adds a worker to a cluster of the Tenant with this SSH key, and waits until it is Ready.
    pub async fn join(stack: &Stack, key: &Path, cluster: &str) -> Result<Self> {
        Self::join_with(stack, key, cluster, None).await
    }

    /// Like [`Self::join`], with a join command if one is given.
    pub async fn join_with(stack: &Stack, key: &Path, cluster: &str, line: Option<&str>) -> Result<Self> {
        wait_until("the key to be known", KEY_LIMIT, async || {
            Ok(ssh(stack, key, "clusters").await?.success())
        })
        .await?;
        let said = try_to_join(stack, key, cluster, line).await?;
        Self::from_output(stack, &said.ok()?)
    }

    /// The worker that the output of `make worker` names.
    pub fn from_output(stack: &Stack, said: &str) -> Result<Self> {
        let name = said
            .lines()
            .find_map(|line| line.split_once(" is Ready after "))
            .with_context(|| format!("no worker is Ready: {said}"))?;
        Ok(Self {
            name: name.0.to_owned(),
            stack: stack.clone(),
            left: false,
        })
    }

    /// Folder of the stack with the worker's state.
    pub fn folder(&self) -> PathBuf {
        let number = self.name.rsplit('-').next().unwrap_or_default();
        self.stack.dir.join("workers").join(number)
    }

    /// Time when the join command had downloaded the program.
    pub fn downloaded_at(&self) -> Result<SystemTime> {
        let program = std::fs::metadata(self.folder().join("bin/yoke-worker"));
        program
            .and_then(|program| program.modified())
            .context("reading the time of the worker's program")
    }

    /// A client of any cluster that authenticates with the worker's kubelet certificate.
    pub async fn client(&self, kubeconfig: &Path) -> Result<Client> {
        let certificate = self.folder().join("root/pki/kubelet-client-current.pem");
        let certificate = certificate.to_str().context("a path that is not UTF-8")?.to_owned();
        let mut config = configuration(kubeconfig).await?;
        config.auth_info = AuthInfo {
            client_certificate: Some(certificate.clone()),
            client_key: Some(certificate),
            ..AuthInfo::default()
        };
        Client::try_from(config).context("making a client")
    }

    /// Control group of the processes that the worker started.
    pub fn control_group(&self) -> Result<String> {
        let text = std::fs::read(self.folder().join("root/worker.json")).context("reading worker.json")?;
        let worker: serde_json::Value = serde_json::from_slice(&text).context("reading worker.json")?;
        let id = worker["id"].as_str().context("the worker has no id")?;
        Ok(format!("yoke-worker-{id}"))
    }

    /// Kills all its processes at once, like a power failure.
    pub async fn kill(&self) -> Result<()> {
        let pid = self.pid()?.to_string();
        // Kills the sandbox first, which takes its processes along. If its parent were killed
        // first, the sandbox would leave in order.
        let script = r#"boxed=$(cat /proc/$0/task/$0/children) && [ -n "$boxed" ] && kill -9 $boxed $0"#;
        let mut kill = Command::new("sh");
        kill.args(["-c", script, &pid]);
        run(kill, SIGNAL_LIMIT).await?.ok().map(drop)
    }

    /// Sends a signal, named without `SIG`, to all its processes except its Pods.
    pub async fn signal(&self, name: &str) -> Result<()> {
        let keeper = self.pid()?;
        let boxed = family(keeper)?.pop().context("the worker has no sandbox process")?;
        let inside = format!("/proc/{boxed}/ns/pid_for_children");
        let inside = std::fs::read_link(&inside).with_context(|| format!("reading {inside}"))?;
        let is_inside = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|own| own == inside);
        let pids = list_pids()?.into_iter().filter(is_inside).chain([keeper]);
        let mut kill = Command::new("kill");
        kill.arg(format!("-{name}")).args(pids.map(|pid| pid.to_string()));
        run(kill, SIGNAL_LIMIT).await?.ok().map(drop)
    }

    /// Pid of the process that supervises the sandbox.
    fn pid(&self) -> Result<u32> {
        let pid = std::fs::read_to_string(self.folder().join("pid")).context("reading the worker's pid")?;
        pid.trim().parse().context("the worker's pid is not a number")
    }

    /// Drains the worker, and waits until it is removed.
    pub async fn remove(mut self) -> Result<()> {
        self.left = true;
        let mut command = self.stack.program("yoke-dev");
        command.args(["remove-worker", &self.name]);
        run(command, REMOVE_LIMIT).await?.ok()?;
        ensure!(!self.folder().exists(), "the folder of {} still exists", self.name);
        Ok(())
    }

    /// Last log lines of the worker and of its processes.
    pub fn recent_logs(&self) -> String {
        let root = self.folder().join("root/logs");
        let logs = [
            self.stack.dir.join(format!("log/{}.log", self.name)),
            root.join("kubelet.log"),
            root.join("containerd.log"),
        ];
        let tail = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(20).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        logs.iter().map(tail).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.left {
            // The removal continues in the background.
            let mut command = self.stack.program("yoke-dev");
            command.args(["remove-worker", &self.name]);
            let _ = command.into_std().spawn();
        }
    }
}

/// Runs `make worker`'s command with the given join command, or with one that the SSH server
/// prints.
pub async fn try_to_join(stack: &Stack, key: &Path, cluster: &str, line: Option<&str>) -> Result<Output> {
    let mut command = stack.program("yoke-dev");
    command
        .args(["worker", "--cluster", cluster, "--ttl", TTL, "--key"])
        .arg(key);
    let file = tempfile::NamedTempFile::new().context("making a file for a line")?;
    if let Some(line) = line {
        std::fs::write(file.path(), line).context("writing a line")?;
        command.arg("--line-file").arg(file.path());
    }
    run(command, JOIN_LIMIT).await
}
