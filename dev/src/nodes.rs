//! Nodes of the host cluster: starts them (`make up`, `make host-node`), and kills, disconnects or
//! removes added nodes.
//! ```text
//!   network ─▶ credentials ─▶ supervisor ─▶ containerd ─▶ images of the first node ─▶ kubelet, kube-proxy, kube-router ─▶ Ready
//! ```
//!
//! Each node has a network namespace, a control group, a supervisor and a folder of its own. The
//! folder is `.dev` for the first node and `.dev/nodes/<number>` for others. So a whole node can be
//! lost at once, like a real machine.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use yoke_supervisor::cgroups::Cgroups;

use crate::cgroups;
use crate::credentials::host_pki;
use crate::down::unmount_below;
use crate::host_cluster::node::Node;
use crate::host_cluster::services::Services;
use crate::host_cluster::write_config;
use crate::images;
use crate::kubectl::Kubectl;
use crate::layout::{FIRST_NODE, Layout};
use crate::network::plan::NODES_MAX;
use crate::network::{self, Network};
use crate::steps::{self, Label, Progress, Reporter};
use crate::supervisor::{Service, client};

/// Taint with which end-to-end tests keep pods off a node.
const FULL: &str = "yoke-e2e/full";
const NETWORK: Label = Label {
    title: "create the node's network",
    advice: "`make down && make up` creates a new stack",
};
const CONTAINERD: Label = Label {
    title: "start the node's supervisor and containerd",
    advice: "logs are in .dev/nodes/*/log; then run `make host-node` again",
};
const IMAGES: Label = Label {
    title: "copy the images of the first node",
    advice: "check that the disk has 2 GB free, then run `make host-node` again",
};
const START: Label = Label {
    title: "start the node",
    advice: "`make status` shows what is down; logs are in .dev/nodes/*/log; then run `make host-node` again",
};

const PROCESS_LIMIT: Duration = Duration::from_secs(90);
const DELETE_LIMIT: Duration = Duration::from_secs(30);

/// Options of `make host-node`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Start the node with this number; by default, add one more node.
    #[arg(long)]
    number: Option<u8>,
}

/// Adds a node, or starts a lost one. Returns false if a step failed; the failure has been shown.
pub async fn add(layout: &Layout, options: &Options) -> Result<bool> {
    let network = read_running_network(layout).await?;
    let there = Node::added(layout, &network.plan);
    let is_there = |number: &u8| there.iter().any(|node| node.number == *number);
    let number = match options.number {
        Some(number) => number,
        None => (FIRST_NODE + 1..=NODES_MAX)
            .find(|number| !is_there(number))
            .with_context(|| {
                format!("the maximum of {NODES_MAX} nodes exists already: remove one with `.dev/bin/yoke-dev remove-host-node NUMBER`")
            })?,
    };
    let node = to_added_node(layout, &network, number)?;
    fs::create_dir_all(node.layout.run()).with_context(|| format!("creating {}", node.layout.run().display()))?;
    let mut reporter = Reporter::new(4);
    let added = async {
        steps::show(&mut reporter, NETWORK, |_| async {
            network.apply(&node).await?;
            host_pki::add_node(layout, &network, &node).context("issuing the node's certificate")?;
            Ok(format!(
                "{} pods {} in {}",
                node.plan.ip, node.plan.pods, node.namespace
            ))
        })
        .await?;
        steps::show(&mut reporter, CONTAINERD, |_| async {
            start_supervisor(&node, &network, false).await?;
            run(&node, services(layout, &network, &node).containerd()?).await
        })
        .await?;
        steps::show(&mut reporter, IMAGES, |_| async {
            Ok(format!("{} copied", images::mirror(layout, &node.layout).await?))
        })
        .await?;
        steps::show(&mut reporter, START, |progress| {
            start(layout, &network, &node, progress)
        })
        .await
    };
    if added.await.is_err() {
        return Ok(false);
    }
    steps::print_line(&format!(
        "\n{} is Ready after {}. The host's nodes:\n\n     {} --kubeconfig {} get nodes -o wide\n",
        node.name,
        reporter.elapsed(),
        layout.binary("kubectl").display(),
        layout.host_kubeconfig().display()
    ));
    Ok(true)
}

/// Kills all processes of a node, including its pods, like a power failure. `make host-node` starts
/// the node again.
pub async fn kill(layout: &Layout, number: u8) -> Result<()> {
    let network = read_running_network(layout).await?;
    let node = to_added_node(layout, &network, number)?;
    let killed = Cgroups::discover(&node.layout.control_group())?.kill_all().await;
    steps::print_line(&format!("{}: {killed} processes killed", node.name));
    Ok(())
}

/// Disconnects a node from all others.
pub async fn disconnect(layout: &Layout, number: u8) -> Result<()> {
    let network = read_running_network(layout).await?;
    let node = to_added_node(layout, &network, number)?;
    network::disconnect(&node).await.context("disconnecting the node")
}

/// Reconnects a node.
pub async fn reconnect(layout: &Layout, number: u8) -> Result<()> {
    let network = read_running_network(layout).await?;
    let node = to_added_node(layout, &network, number)?;
    network::reconnect(&node).await.context("reconnecting the node")
}

/// Removes a node with all its state.
pub async fn remove(layout: &Layout, number: u8) -> Result<()> {
    let network = read_running_network(layout).await?;
    let node = to_added_node(layout, &network, number)?;
    let cgroups = Cgroups::discover(&node.layout.control_group())?;
    cgroups.kill_all().await;
    let kubectl = Kubectl::new(layout);
    let args = ["delete", "node", &node.name, "--ignore-not-found"];
    kubectl.until("the Node to be deleted", &args, DELETE_LIMIT).await?;
    // Nothing of these pods runs, so they can be deleted without a grace period.
    let there = format!("--field-selector=spec.nodeName={}", node.name);
    let args = [
        "delete",
        "pods",
        "--all-namespaces",
        &there,
        "--force",
        "--grace-period=0",
    ];
    kubectl
        .until("the node's pods to be deleted", &args, DELETE_LIMIT)
        .await?;
    unmount_below(&node.layout.node_dir())?;
    network::remove(&node).await?;
    cgroups::remove(&cgroups).await?;
    fs::remove_dir_all(node.layout.node_dir()).with_context(|| format!("removing {}", node.layout.node_dir().display()))
}

/// Creates a node's control group and configuration, and starts its supervisor. With `replace`, a
/// running supervisor hands over to the new one.
pub async fn start_supervisor(node: &Node, network: &Network, replace: bool) -> Result<()> {
    let cgroups = Cgroups::discover(&node.layout.control_group())?;
    cgroups::create(&cgroups)?;
    write_config(node, network, &cgroups)?;
    client::start_daemon(node, replace).await
}

/// Starts a service of a node under its supervisor, and waits until it is healthy.
pub async fn run(node: &Node, service: Service) -> Result<String> {
    let name = service.name.clone();
    client::run_service(&node.layout, service).await?;
    client::wait_healthy(&node.layout, &name, PROCESS_LIMIT).await?;
    Ok(name)
}

/// Starts kubelet, kube-proxy and kube-router of a node, waits until the node is Ready, and makes
/// it schedulable.
pub async fn start(layout: &Layout, network: &Network, node: &Node, progress: Progress) -> Result<String> {
    let services = services(layout, network, node);
    for service in [services.kubelet()?, services.kube_proxy()?, services.kube_router()?] {
        progress.at(&service.name);
        run(node, service).await?;
    }
    let name = format!("node/{}", node.name);
    let args = ["wait", "--for=condition=Ready", &name, "--timeout=2s"];
    let kubectl = Kubectl::new(layout);
    kubectl.until("the node to be Ready", &args, PROCESS_LIMIT).await?;
    // An interrupted test may leave the node unschedulable.
    let args = [
        "get",
        &name,
        "--output=jsonpath={.spec.unschedulable} {.spec.taints[*].key}",
    ];
    let found = kubectl.command(&args).output().await?;
    let found: Vec<_> = found.split_whitespace().collect();
    let mut freed = false;
    if found.contains(&"true") {
        kubectl.command(&["uncordon", &name]).run().await?;
        freed = true;
    }
    if found.contains(&FULL) {
        let taint = format!("{FULL}-");
        kubectl.command(&["taint", "node", &node.name, &taint]).run().await?;
        freed = true;
    }
    Ok(match freed {
        true => format!("{} was unschedulable and is schedulable again", node.name),
        false => String::new(),
    })
}

/// The node with this number. Fails for the first node and for numbers out of range.
fn to_added_node(layout: &Layout, network: &Network, number: u8) -> Result<Node> {
    if !(FIRST_NODE + 1..=NODES_MAX).contains(&number) {
        bail!(
            "invalid node number {number}: added nodes have the numbers {} to {NODES_MAX}",
            FIRST_NODE + 1
        );
    }
    Ok(Node::new(layout, &network.plan, number))
}

fn services<'a>(layout: &'a Layout, network: &'a Network, node: &'a Node) -> Services<'a> {
    Services { layout, network, node }
}

/// The network of the running stack. Fails if the stack is down.
async fn read_running_network(layout: &Layout) -> Result<Network> {
    match (Network::read(layout)?, client::processes(layout).await) {
        (Some(network), Some(_)) => Ok(network),
        _ => bail!("the stack is not running: `make up` starts it"),
    }
}
