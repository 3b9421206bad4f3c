//! Workers of tenants' clusters: real kubelets behind NAT on this machine, made as `make worker` makes them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::command::{Output, run};
use crate::ssh::ssh;
use crate::stack::Stack;
use crate::wait::wait_until;

/// An image whose program serves on port 8080, and is a client with the arguments `get URL`.
pub const ECHO: &str = "docker.io/yoke/echo:dev";

/// The SSH server hears of Tenants by a watch.
const KEY_LIMIT: Duration = Duration::from_secs(20);
/// Its programs are packed, it joins, and it is Ready.
const JOIN_LIMIT: Duration = Duration::from_secs(300);
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
        wait_until("the key to be known", KEY_LIMIT, async || {
            Ok(ssh(stack, key, "clusters").await?.success())
        })
        .await?;
        let said = try_to_join(stack, key, cluster, None).await?;
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

    /// The control group of what it has started.
    pub fn control_group(&self) -> Result<String> {
        let text = std::fs::read(self.folder().join("root/worker.json")).context("reading what the worker is")?;
        let worker: serde_json::Value = serde_json::from_slice(&text).context("reading what the worker is")?;
        let id = worker["id"].as_str().context("the worker has no id")?;
        Ok(format!("yoke-worker-{id}"))
    }

    /// Kills all of it at once, as if its machine had lost power.
    pub async fn kill(&self) -> Result<()> {
        let pid = std::fs::read_to_string(self.folder().join("pid")).context("reading the worker's pid")?;
        // The box first, which takes all others along; it would leave in order if the one that keeps it were killed first.
        let script = r#"boxed=$(cat /proc/$0/task/$0/children) && [ -n "$boxed" ] && kill -9 $boxed $0"#;
        let mut kill = Command::new("sh");
        kill.args(["-c", script, pid.trim()]);
        run(kill, Duration::from_secs(10)).await?.ok().map(drop)
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

/// What comes of a worker that joins by a token of its own choice, or by one that the SSH server gives.
pub async fn try_to_join(stack: &Stack, key: &Path, cluster: &str, token: Option<&Path>) -> Result<Output> {
    let mut command = stack.program("yoke-dev");
    command
        .args(["worker", "--cluster", cluster, "--ttl", TTL, "--key"])
        .arg(key);
    if let Some(token) = token {
        command.arg("--token-file").arg(token);
    }
    run(command, JOIN_LIMIT).await
}
