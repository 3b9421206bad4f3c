//! Tries network connections from a pod, from the node, or from the test's own namespace.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::process::Command;

use crate::command::run;
use crate::stack::Stack;

const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Exit status of timeout(1) after it ended the command.
const TIMED_OUT: i32 = 124;

/// Result of a TCP connection attempt. If no attempt was possible (no process, no route), that is
/// an error instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// The connection was accepted.
    Open,
    /// The connection was refused.
    Refused,
    /// There was no answer.
    Silent,
}

/// Where to connect from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The network namespace of a process.
    Process(u32),
    /// The network namespace of the test.
    Here,
}

/// Tries a TCP connection to `address` (an IP address) and `port`.
pub async fn try_connect(from: &Origin, address: &str, port: u16) -> Result<Reachability> {
    let script = format!("exec 3<>/dev/tcp/{address}/{port}");
    let limit = CONNECT_LIMIT.as_secs().to_string();
    let mut command = Command::new("env");
    if let Origin::Process(pid) = from {
        command.args(["nsenter", "--target", &pid.to_string(), "--net", "--"]);
    }
    command.args(["timeout", &limit, "bash", "-c", &script]);
    let output = run(command, CONNECT_LIMIT * 3).await?;
    match output.code {
        Some(0) => Ok(Reachability::Open),
        Some(TIMED_OUT) => Ok(Reachability::Silent),
        _ if output.stderr.contains("Connection refused") => Ok(Reachability::Refused),
        _ => bail!(
            "cannot try a connection to {address}:{port} from {from:?}: {}",
            output.stderr.trim()
        ),
    }
}

/// The first running pod that matches a label selector.
pub async fn pod(stack: &Stack, namespace: &str, selector: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(stack.host.clone(), namespace);
    let found = pods
        .list(&ListParams::default().labels(selector))
        .await
        .context("listing pods")?;
    found
        .items
        .into_iter()
        .find(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running"))
        .with_context(|| format!("no running pod {selector} in {namespace}"))
}

/// IP address of a pod.
pub fn pod_ip(pod: &Pod) -> Result<String> {
    pod.status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .context("the pod has no address yet")
}

/// Pid on this computer of a pod's container.
pub async fn container_pid(stack: &Stack, pod: &Pod, container: &str) -> Result<u32> {
    let status = pod.status.as_ref().context("the pod has no status")?;
    let all = status.container_statuses.iter().flatten();
    let id = all
        .filter(|status| status.name == container)
        .find_map(|status| {
            status
                .container_id
                .as_deref()?
                .strip_prefix("containerd://")
                .map(str::to_owned)
        })
        .with_context(|| format!("container {container} is not running"))?;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let mut command = stack.program("ctr");
    command
        .arg("--address")
        .arg(stack.containerd(node.context("the pod has no node")?)?)
        .args(["--namespace", "k8s.io", "tasks", "ls"]);
    let tasks = run(command, Duration::from_secs(20)).await?.ok()?;
    tasks
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == id).then(|| words.next()?.parse().ok())?
        })
        .next()
        .with_context(|| format!("containerd has no task {id}"))
}
