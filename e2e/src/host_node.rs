//! The second node of the host cluster, which tests lose.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::process::Command;

use crate::command::run;
use crate::stack::Stack;
use crate::wait::wait_for;

const NUMBER: u8 = 2;
const FIRST: &str = "yoke-host";
/// Its images are copied, and a kubelet starts.
const START_LIMIT: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(30);

/// The second node.
#[derive(Clone)]
pub struct HostNode {
    /// Of its Node.
    pub name: String,
    stack: Stack,
}

impl HostNode {
    /// The node, which is added where there is none, and started where it was lost.
    pub async fn second(stack: &Stack) -> Result<Self> {
        let node = Self::new(stack);
        node.start().await?;
        // A test that was broken off may have left it so.
        node.take_all(false).await?;
        Ok(node)
    }

    /// The node, if there is one.
    pub fn find(stack: &Stack) -> Option<Self> {
        let node = Self::new(stack);
        node.folder().is_dir().then_some(node)
    }

    fn new(stack: &Stack) -> Self {
        Self {
            name: format!("{FIRST}-{NUMBER}"),
            stack: stack.clone(),
        }
    }

    /// Where the stack keeps what is the node's own.
    pub fn folder(&self) -> PathBuf {
        self.stack.dir.join(format!("nodes/{NUMBER}"))
    }

    /// Kills all that runs there at once, pods too.
    pub async fn kill(&self) -> Result<()> {
        self.call(&["kill-host-node", &NUMBER.to_string()], LIMIT).await
    }

    /// Starts it; a node that runs stays as it is.
    pub async fn start(&self) -> Result<()> {
        self.call(&["host-node", "--number", &NUMBER.to_string()], START_LIMIT)
            .await
    }

    /// Cuts it off from all others.
    pub async fn cut(&self) -> Result<()> {
        self.call(&["cut-host-node", &NUMBER.to_string()], LIMIT).await
    }

    /// Ends that.
    pub async fn mend(&self) -> Result<()> {
        self.call(&["cut-host-node", &NUMBER.to_string(), "--mend"], LIMIT)
            .await
    }

    /// Has all new pods put there, or anywhere.
    pub async fn take_all(&self, all: bool) -> Result<()> {
        let verb = if all { "cordon" } else { "uncordon" };
        wait_for(&format!("kubectl {verb}"), LIMIT * 2, async || {
            self.stack.host_kubectl(&[verb, FIRST]).await?.ok().map(Some)
        })
        .await
        .map(drop)
    }

    /// The pid of its kubelet.
    pub fn kubelet(&self) -> Result<u32> {
        let text = std::fs::read(self.folder().join("run/pids/kubelet.json")).context("reading a pid")?;
        let record: Value = serde_json::from_slice(&text).context("reading a pid")?;
        match record["pid"].as_u64().map(u32::try_from) {
            Some(Ok(pid)) => Ok(pid),
            _ => bail!("no pid in {record}"),
        }
    }

    async fn call(&self, arguments: &[&str], limit: Duration) -> Result<()> {
        let mut command: Command = self.stack.program("yoke-dev");
        command.args(arguments);
        run(command, limit).await?.ok().map(drop)
    }
}
