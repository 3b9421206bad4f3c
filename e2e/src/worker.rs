//! Workers of tenants' clusters: real kubelets behind NAT on this machine, made as `make worker` makes them.

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

/// An image whose program serves on port 8080, is a client with the arguments `get URL`, and wants a terminal with `type`.
pub const ECHO: &str = "docker.io/yoke/echo:dev";

/// The SSH server hears of Tenants by a watch.
const KEY_LIMIT: Duration = Duration::from_secs(20);
/// Its programs are packed, it joins, and it is Ready.
const JOIN_LIMIT: Duration = Duration::from_secs(300);
const SIGNAL_LIMIT: Duration = Duration::from_secs(10);
/// Its Pods are drained.
const REMOVE_LIMIT: Duration = Duration::from_secs(200);
/// One that a test which was broken off has left ends by itself.
const TTL: &str = "2h";

/// A running worker. It begins to leave when it is dropped.
pub struct Worker {
    /// Of its Node.
    pub name: String,
    stack: Stack,
    left: bool,
}

impl Worker {
    /// Adds one to a cluster of the Tenant that has this SSH key; it is Ready then.
    pub async fn join(stack: &Stack, key: &Path, cluster: &str) -> Result<Self> {
        Self::join_by(stack, key, cluster, None).await
    }

    /// The same by a line that was printed, if there is one.
    pub async fn join_by(stack: &Stack, key: &Path, cluster: &str, line: Option<&str>) -> Result<Self> {
        wait_until("the key to be known", KEY_LIMIT, async || {
            Ok(ssh(stack, key, "clusters").await?.success())
        })
        .await?;
        let said = try_to_join(stack, key, cluster, line).await?;
        Self::find(stack, &said.ok()?)
    }

    /// The one that `make worker` says it has added.
    pub fn find(stack: &Stack, said: &str) -> Result<Self> {
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

    /// Where the stack keeps what it knows of it.
    pub fn folder(&self) -> PathBuf {
        let number = self.name.rsplit('-').next().unwrap_or_default();
        self.stack.dir.join("workers").join(number)
    }

    /// When its line had fetched its program.
    pub fn fetched(&self) -> Result<SystemTime> {
        let program = std::fs::metadata(self.folder().join("bin/yoke-worker"));
        program
            .and_then(|program| program.modified())
            .context("looking at the worker's program")
    }

    /// A client of a cluster, be it the worker's or not, that shows what the worker's kubelet shows.
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

    /// The control group of what it has started.
    pub fn control_group(&self) -> Result<String> {
        let text = std::fs::read(self.folder().join("root/worker.json")).context("reading what the worker is")?;
        let worker: serde_json::Value = serde_json::from_slice(&text).context("reading what the worker is")?;
        let id = worker["id"].as_str().context("the worker has no id")?;
        Ok(format!("yoke-worker-{id}"))
    }

    /// Kills all of it at once, as if its machine had lost power.
    pub async fn kill(&self) -> Result<()> {
        let pid = self.pid()?.to_string();
        // The box first, which takes all others along; it would leave in order if the one that keeps it were killed first.
        let script = r#"boxed=$(cat /proc/$0/task/$0/children) && [ -n "$boxed" ] && kill -9 $boxed $0"#;
        let mut kill = Command::new("sh");
        kill.args(["-c", script, &pid]);
        run(kill, SIGNAL_LIMIT).await?.ok().map(drop)
    }

    /// Sends a signal to all of it but its Pods, by its name without `SIG`.
    pub async fn signal(&self, name: &str) -> Result<()> {
        let keeper = self.pid()?;
        let boxed = family(keeper)?.pop().context("the worker has no box")?;
        let inside = format!("/proc/{boxed}/ns/pid_for_children");
        let inside = std::fs::read_link(&inside).with_context(|| format!("reading {inside}"))?;
        let is_inside = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|own| own == inside);
        let pids = list_pids()?.into_iter().filter(is_inside).chain([keeper]);
        let mut kill = Command::new("kill");
        kill.arg(format!("-{name}")).args(pids.map(|pid| pid.to_string()));
        run(kill, SIGNAL_LIMIT).await?.ok().map(drop)
    }

    /// The process that keeps its box.
    fn pid(&self) -> Result<u32> {
        let pid = std::fs::read_to_string(self.folder().join("pid")).context("reading the worker's pid")?;
        pid.trim().parse().context("the worker's pid is not a number")
    }

    /// Drains it, and waits until nothing of it is left.
    pub async fn remove(mut self) -> Result<()> {
        self.left = true;
        let mut command = self.stack.program("yoke-dev");
        command.args(["remove-worker", &self.name]);
        run(command, REMOVE_LIMIT).await?.ok()?;
        ensure!(!self.folder().exists(), "the folder of {} is left", self.name);
        Ok(())
    }

    /// What it, and its parts, said last.
    pub fn last_words(&self) -> String {
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
            // Nobody waits: it ends.
            let mut command = self.stack.program("yoke-dev");
            command.args(["remove-worker", &self.name]);
            let _ = command.into_std().spawn();
        }
    }
}

/// What comes of a worker that joins by a line of its own choice, or by one that the SSH server prints.
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
