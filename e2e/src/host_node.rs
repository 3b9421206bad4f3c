//! The second node of the host cluster, which tests kill, disconnect and drain.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::Api;
use kube::api::PostParams;
use serde_json::Value;
use tokio::process::Command;

use crate::command::run;
use crate::network;
use crate::stack::Stack;
use crate::tenant::{READY_LIMIT, TenantFixture, hosted_namespace};
use crate::wait::wait_for;

const NUMBER: u8 = 2;
const FIRST: &str = "yoke-host";
/// Taint that keeps new pods off a node. It does not announce that the node goes away.
const FULL: &str = "yoke-e2e/full";
/// Timeout of a start: copies images and starts a kubelet.
const START_LIMIT: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(30);

/// The second node.
#[derive(Clone)]
pub struct HostNode {
    /// Name of its Node object.
    pub name: String,
    stack: Stack,
}

impl HostNode {
    /// Adds the node if it is missing, and starts it if it was lost.
    pub async fn second(stack: &Stack) -> Result<Self> {
        let node = Self::new(stack);
        node.start().await?;
        // Undo what an interrupted test may have left.
        node.take_all_new_pods(false).await?;
        Ok(node)
    }

    /// The node, if it exists.
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

    /// Folder with the node's own state.
    pub fn folder(&self) -> PathBuf {
        self.stack.dir.join(format!("nodes/{NUMBER}"))
    }

    /// Kills all processes of the node at once, including pods.
    pub async fn kill(&self) -> Result<()> {
        self.call(&["kill-host-node", &NUMBER.to_string()], LIMIT).await
    }

    /// Starts the node. A running node is left alone.
    pub async fn start(&self) -> Result<()> {
        self.call(&["host-node", "--number", &NUMBER.to_string()], START_LIMIT)
            .await
    }

    /// Disconnects the node from all others.
    pub async fn disconnect(&self) -> Result<()> {
        self.call(&["cut-host-node", &NUMBER.to_string()], LIMIT).await
    }

    /// Reconnects the node.
    pub async fn reconnect(&self) -> Result<()> {
        self.call(&["cut-host-node", &NUMBER.to_string(), "--mend"], LIMIT)
            .await
    }

    /// With `all`, new pods can only be scheduled on this node; otherwise on any node.
    pub async fn take_all_new_pods(&self, all: bool) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.stack.host.clone());
        wait_for("the taints of the first node", LIMIT * 2, async || {
            let mut node = nodes.get(FIRST).await?;
            let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
            taints.retain(|taint| taint.key != FULL);
            taints.extend(all.then(|| Taint {
                key: FULL.to_owned(),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            }));
            nodes.replace(FIRST, &PostParams::default(), &node).await?;
            Ok(Some(()))
        })
        .await
    }

    /// Creates a Cluster whose control plane runs on this node. Returns its control-plane
    /// namespace, its kubeconfig and its pod, which the kubelet has reported as ready.
    pub async fn ready_cluster(&self, tenant: &TenantFixture, name: &str) -> Result<(String, PathBuf, Pod)> {
        self.take_all_new_pods(true).await?;
        let made = tenant.ready_cluster(name).await;
        self.take_all_new_pods(false).await?;
        let (cluster, kubeconfig) = made?;
        let hosted = hosted_namespace(&cluster)?;
        let selector = format!("yoke.drzzl.io/cluster={name}");
        let pod = wait_for("the kubelet to say that the pod is ready", READY_LIMIT, async || {
            let pod = network::pod(&self.stack, &hosted, &selector).await?;
            Ok(Some(pod).filter(is_ready))
        })
        .await?;
        let place = node_of(&pod);
        ensure!(place == Some(&self.name), "the control plane is on {place:?}");
        Ok((hosted, kubeconfig, pod))
    }

    /// Pid of the node's kubelet.
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

/// Whether the kubelet reports a pod as ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

/// Name of the node that a pod runs on.
pub fn node_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}
