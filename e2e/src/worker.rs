//! A worker of a tenant's cluster: a real kubelet behind NAT, made by `worker.sh` on this machine. There is one at a time.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

use crate::command::run;
use crate::stack::Stack;

/// Name of its Node.
pub const NAME: &str = "worker";
/// Its address, to which nobody outside has a way.
pub const ADDRESS: &str = "10.200.0.2";
/// An image whose program serves on port 8080, and is a client with the arguments `get URL`.
pub const ECHO: &str = "docker.io/yoke/echo:dev";

const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// The script ends its processes and removes its networks.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// What a kubelet needs.
#[derive(Debug)]
pub struct Credentials<'a> {
    /// With which it asks the API.
    pub kubeconfig: &'a Path,
    /// By which it recognises who asks it.
    pub client_ca: &'a str,
    /// Its serving certificate for [`ADDRESS`], PEM.
    pub certificate: &'a str,
    /// The key of that.
    pub key: &'a str,
}

/// A running worker. It begins to end when it is dropped.
#[derive(Debug)]
pub struct Worker {
    script: Child,
    folder: PathBuf,
}

impl Worker {
    /// Starts a worker that has these images beside those that every worker needs. Its Node comes later.
    pub fn start(stack: &Stack, credentials: &Credentials<'_>, images: &[&str]) -> Result<Self> {
        let folder = stack.dir.join("e2e-worker");
        // Of one that was killed.
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        }
        std::fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        std::fs::copy(credentials.kubeconfig, folder.join("kubeconfig")).context("copying the kubeconfig")?;
        for (name, text) in [
            ("client-ca.crt", credentials.client_ca),
            ("kubelet.crt", credentials.certificate),
            ("kubelet.key", credentials.key),
        ] {
            std::fs::write(folder.join(name), text).with_context(|| format!("writing {name}"))?;
        }
        let mut command = Command::new("bash");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("worker.sh"));
        command.arg(&folder).args([PAUSE, ECHO]).args(images);
        for name in ["YOKE_NETNS", "YOKE_BIN", "CONTAINERD_ADDRESS"] {
            command.env(name, stack.var(name)?);
        }
        let log = std::fs::File::create(folder.join("script.log")).context("making a log")?;
        let script = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("sharing a log")?)
            .stderr(log)
            .spawn()
            .context("starting worker.sh")?;
        Ok(Self { script, folder })
    }

    /// Ends it, and waits until what it made is gone.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(pid) = self.script.id() {
            let mut kill = Command::new("kill");
            kill.arg(pid.to_string());
            run(kill, STOP_LIMIT).await?.ok()?;
        }
        let ended = tokio::time::timeout(STOP_LIMIT, self.script.wait()).await;
        ended
            .context("the worker does not end")?
            .context("waiting for the worker")?;
        Ok(())
    }

    /// What its script and its kubelet said last.
    pub fn last_words(&self) -> String {
        let tail = |name: &str| {
            let text = std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(20).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        format!("{}\n{}", tail("script.log"), tail("node.log"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(pid) = self.script.id() {
            // KILL, the one signal that tokio sends, would leave all that the script has to take along. Nobody waits: it ends.
            let _ = std::process::Command::new("kill").arg(pid.to_string()).status();
        }
    }
}
