//! The nodes of the host cluster: what `make up` and `make host-node` do with each, and how one that was added is lost.
//!
//! ```text
//!   network ─▶ credentials ─▶ supervisor ─▶ containerd ─▶ images of the first node ─▶ kubelet, kube-proxy, kube-router ─▶ Ready
//! ```
//!
//! A node has a network namespace, a control group, a supervisor and a folder of its own (`.dev` of the first one,
//! `.dev/nodes/<number>` of the others), so that all of it can be lost at once, as a machine is.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cgroups::Cgroups;
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

/// A taint by which end-to-end tests keep pods off a node.
const FULL: &str = "yoke-e2e/full";
const NETWORK: Label = Label {
    title: "make the node's network",
    advice: "`make down && make up` starts afresh",
};
const CONTAINERD: Label = Label {
    title: "start its supervisor and containerd",
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

/// What is asked of `make host-node`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The node with this number, which is started where it does not run; without it, one more.
    #[arg(long)]
    number: Option<u8>,
}

/// Adds a node, or starts one that was lost. False when a step failed, which was shown.
pub async fn add(layout: &Layout, options: &Options) -> Result<bool> {
    let network = running(layout).await?;
    let there = Node::added(layout, &network);
    let is_there = |number: &u8| there.iter().any(|node| node.number == *number);
    let number = match options.number {
        Some(number) => number,
        None => (FIRST_NODE + 1..=NODES_MAX)
            .find(|number| !is_there(number))
            .with_context(|| {
                format!("there are {NODES_MAX} nodes, as many as have addresses: `make down` removes them")
            })?,
    };
    let node = find(layout, &network, number)?;
    fs::create_dir_all(node.layout.run()).with_context(|| format!("making {}", node.layout.run().display()))?;
    let mut reporter = Reporter::new(4);
    let added = async {
        steps::show(&mut reporter, NETWORK, |_| async {
            network.apply(&node).await?;
            host_pki::add_node(layout, &network, &node).context("making the node's certificate")?;
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
    steps::say(&format!(
        "\n{} is Ready after {}. The host's nodes:\n\n     {} --kubeconfig {} get nodes -o wide\n",
        node.name,
        reporter.elapsed(),
        layout.binary("kubectl").display(),
        layout.host_kubeconfig().display()
    ));
    Ok(true)
}

/// Kills all that runs on a node, its pods too, as if it had lost its power. `make host-node` brings it back.
pub async fn kill(layout: &Layout, number: u8) -> Result<()> {
    let network = running(layout).await?;
    let node = find(layout, &network, number)?;
    let killed = Cgroups::discover(&node.layout.group())?.kill_all().await;
    steps::say(&format!("{}: {killed} processes killed", node.name));
    Ok(())
}

/// Cuts a node off from all others, or ends that.
pub async fn cut(layout: &Layout, number: u8, mend: bool) -> Result<()> {
    let network = running(layout).await?;
    let node = find(layout, &network, number)?;
    if mend {
        return network::mend(&node).await.context("ending the cut of the node");
    }
    network::cut(&node).await.context("cutting the node off")
}

/// Removes a node, and all of it.
pub async fn remove(layout: &Layout, number: u8) -> Result<()> {
    let network = running(layout).await?;
    let node = find(layout, &network, number)?;
    let cgroups = Cgroups::discover(&node.layout.group())?;
    cgroups.kill_all().await;
    let kubectl = Kubectl::new(layout);
    let args = ["delete", "node", &node.name, "--ignore-not-found"];
    kubectl.until("the Node being deleted", &args, DELETE_LIMIT).await?;
    // Nothing of them runs, and so they need not be waited for.
    let there = format!("--field-selector=spec.nodeName={}", node.name);
    let args = [
        "delete",
        "pods",
        "--all-namespaces",
        &there,
        "--force",
        "--grace-period=0",
    ];
    kubectl.until("its pods being deleted", &args, DELETE_LIMIT).await?;
    unmount_below(&node.layout.home())?;
    network::remove(&node).await?;
    cgroups.remove().await?;
    fs::remove_dir_all(node.layout.home()).with_context(|| format!("removing {}", node.layout.home().display()))
}

/// Makes a node's control group and configuration, and starts its supervisor; one of another build hands over.
pub async fn start_supervisor(node: &Node, network: &Network, replace: bool) -> Result<()> {
    let cgroups = Cgroups::discover(&node.layout.group())?;
    cgroups.create()?;
    write_config(node, network, &cgroups)?;
    client::start_daemon(node, replace).await
}

/// Keeps a service of a node and waits until it works.
pub async fn run(node: &Node, service: Service) -> Result<String> {
    let name = service.name.clone();
    client::keep(&node.layout, service).await?;
    client::wait_healthy(&node.layout, &name, PROCESS_LIMIT).await?;
    Ok(name)
}

/// Starts what makes a machine with containerd a node, and waits until it is one that takes pods.
pub async fn start(layout: &Layout, network: &Network, node: &Node, progress: Progress) -> Result<String> {
    let services = services(layout, network, node);
    for service in [services.kubelet()?, services.kube_proxy()?, services.kube_router()?] {
        progress.at(&service.name);
        run(node, service).await?;
    }
    let name = format!("node/{}", node.name);
    let args = ["wait", "--for=condition=Ready", &name, "--timeout=2s"];
    let kubectl = Kubectl::new(layout);
    kubectl.until("the node becoming Ready", &args, PROCESS_LIMIT).await?;
    // A test that was broken off leaves it so, and nothing would start there.
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
        true => format!("{} took no pods, and takes them again", node.name),
        false => String::new(),
    })
}

/// The node with this number, which is not the first one.
fn find(layout: &Layout, network: &Network, number: u8) -> Result<Node> {
    if !(FIRST_NODE + 1..=NODES_MAX).contains(&number) {
        bail!(
            "nodes that can be added have the numbers {} to {NODES_MAX}",
            FIRST_NODE + 1
        );
    }
    Ok(Node::new(layout, network, number))
}

fn services<'a>(layout: &'a Layout, network: &'a Network, node: &'a Node) -> Services<'a> {
    Services { layout, network, node }
}

/// The network of a stack that runs.
async fn running(layout: &Layout) -> Result<Network> {
    match (Network::read(layout)?, client::processes(layout).await) {
        (Some(network), Some(_)) => Ok(network),
        _ => bail!("the stack is down: `make up` starts it"),
    }
}
