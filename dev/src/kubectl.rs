//! Access to the host API through kubectl.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::Instant;

use crate::command::{Command, CommandError};
use crate::layout::Layout;

const POLL: Duration = Duration::from_millis(300);
/// Environment variable with kubectl's cache folder.
pub const CACHE_VARIABLE: &str = "KUBECACHEDIR";

/// kubectl as the host's administrator.
#[derive(Debug, Clone, Copy)]
pub struct Kubectl<'a> {
    layout: &'a Layout,
}

impl<'a> Kubectl<'a> {
    /// kubectl for the stack of this clone.
    pub fn new(layout: &'a Layout) -> Self {
        Self { layout }
    }

    /// A command with the administrator's kubeconfig.
    pub fn command(&self, args: &[&str]) -> Command {
        self.with(&self.layout.host_kubeconfig(), args)
    }

    /// A command with any kubeconfig. kubectl caches API discovery below `.dev`, not in the home
    /// directory.
    pub fn with(&self, kubeconfig: &Path, args: &[&str]) -> Command {
        Command::new(self.layout.binary("kubectl"))
            .env(CACHE_VARIABLE, self.layout.kubectl_cache())
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(args)
    }

    /// Applies objects server-side with the field manager `yoke-dev`, and takes over fields of
    /// other managers.
    pub async fn apply(&self, manifest: String) -> Result<()> {
        let args = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=yoke-dev",
            "-f",
            "-",
        ];
        self.command(&args).input(manifest).run().await.map_err(Into::into)
    }

    /// Waits until a Deployment has rolled out. A failure shows its pods, events and logs.
    pub async fn wait_rollout(&self, namespace: &str, deployment: &str, limit: Duration) -> Result<()> {
        let timeout = format!("--timeout={}s", limit.as_secs());
        let name = format!("deployment/{deployment}");
        let args = ["--namespace", namespace, "rollout", "status", &name, &timeout];
        if let Err(error) = self.command(&args).run().await {
            let pods = self
                .command(&["--namespace", namespace, "get", "pods", "--output=wide"])
                .output()
                .await;
            let events = ["--namespace", namespace, "get", "events", "--sort-by=.lastTimestamp"];
            let events = self.command(&events).output().await.unwrap_or_default();
            let events = crate::command::tail(&events, 8);
            let logs = ["--namespace", namespace, "logs", &name, "--all-containers", "--tail=8"];
            let logs = self.command(&logs).output().await.unwrap_or_default();
            let logs = crate::command::tail(&logs, 8);
            return Err(error).context(format!("{}\n{events}\n{logs}", pods.unwrap_or_default().trim_end()));
        }
        Ok(())
    }

    /// Runs a command until it succeeds or `limit` has passed. `what` completes "waited for …" in
    /// the error.
    pub async fn until(&self, what: &str, args: &[&str], limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.command(args).output().await {
                Ok(output) => return Ok(output),
                Err(error @ CommandError::Start { .. }) => return Err(error.into()),
                Err(error) if Instant::now() > deadline => bail!("waited {limit:?} for {what}\n{error}"),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }
}
