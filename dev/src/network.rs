//! The host nodes' network: each has a namespace of its own. The first one is joined to the root namespace by one link, and
//! the others to the first one.
//!
//! ```text
//!   root namespace                    yoke-<id>                                           yoke-<id>-node-2
//!   kubectl, tests ── yk<id>h ═══ yk<id>n ── host API, NATS, kubelet, node2 ═══ eth0 ── kubelet, bridge ── pods
//!                     gateway      node IP   └─ bridge ── pods
//! ```
//!
//! Everything of the host nodes listens inside, so the ports of two clones never meet; only the links' addresses and the
//! pods' route are seen outside, and those are derived from the clone's name. The pods' block has a part for each node, and
//! no address of a pod is changed on the way to another. Workers of tenants are in [`lan`].

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::host_cluster::node::Node;
use crate::layout::Layout;
use crate::network::plan::{NetworkPlan, Subnet};

pub mod lan;
pub mod plan;

/// How often a taken subnet is given up for the next one.
const ATTEMPTS: u32 = 64;
/// Where `ip netns` keeps the names of namespaces.
const NAMESPACES: &str = "/run/netns";
/// Metric of a route that is taken where there is no other.
const LAST: u32 = 9_999;
/// Used where the root namespace has no default route to take the MTU from.
const ETHERNET_MTU: u32 = 1500;

#[derive(Deserialize)]
struct Route {
    dst: String,
    dev: String,
}

#[derive(Deserialize)]
struct Link {
    ifname: String,
    mtu: u32,
}

/// The network of one clone, and how to enter it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Network {
    /// Addresses and names.
    pub plan: NetworkPlan,
    namespace: String,
}

impl Network {
    /// Chooses the network of a clone, once; afterwards reads what was chosen.
    pub async fn choose(layout: &Layout) -> Result<Self> {
        if let Some(chosen) = Self::read(layout)? {
            return Ok(chosen);
        }
        let routes: Vec<Route> = serde_json::from_str(&Command::new("ip").args(["-j", "-4", "route"]).output().await?)
            .context("reading the routes of the root namespace")?;
        let links: Vec<Link> = serde_json::from_str(&Command::new("ip").args(["-j", "link"]).output().await?)
            .context("reading the links of the root namespace")?;
        let mtu = routes
            .iter()
            .find(|route| route.dst == "default")
            .and_then(|route| links.iter().find(|link| link.ifname == route.dev))
            .map_or(ETHERNET_MTU, |link| link.mtu);
        let own: BTreeSet<String> = [plan::host_link(layout.id())].into();
        let taken: Vec<Subnet> = routes
            .iter()
            .filter(|route| !own.contains(&route.dev))
            .filter_map(|route| Subnet::parse(&route.dst))
            .collect();
        let plan = (0..ATTEMPTS)
            .map(|attempt| NetworkPlan::derive(layout.id(), attempt, mtu))
            .find(|plan| plan.is_free(&taken))
            .context("every subnet that could be derived for this clone is routed elsewhere")?;
        let network = Self {
            plan,
            namespace: layout.stack_name(),
        };
        fs::create_dir_all(layout.dev()).context("creating .dev")?;
        fs::write(Self::file(layout), serde_json::to_vec_pretty(&network)?).context("writing the chosen network")?;
        Ok(network)
    }

    /// The network that was chosen for a clone, if one was.
    pub fn read(layout: &Layout) -> Result<Option<Self>> {
        match fs::read(Self::file(layout)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("reading the chosen network"),
        }
    }

    fn file(layout: &Layout) -> PathBuf {
        layout.dev().join("network.json")
    }

    /// The first node's address, reachable from the root namespace.
    pub fn node_ip(&self) -> Ipv4Addr {
        self.plan.node_ip
    }

    /// Makes a node's namespace and link, or what is missing of them.
    pub async fn apply(&self, node: &Node) -> Result<()> {
        let (plan, namespace) = (&node.plan, &node.namespace);
        // A name whose mount is gone (the machine was killed) is a plain file, and cannot be entered.
        if !node.enter("true").succeeds().await {
            let _ = ip(&["netns", "delete", namespace]).await;
            ip(&["netns", "add", namespace])
                .await
                .context("making the network namespace")?;
        }
        let (outer, inner, mtu) = (&plan.outer_link, &plan.inner_link, self.plan.mtu);
        if !node.enter("ip").args(["link", "show", inner]).succeeds().await {
            let _ = outside(node, &format!("link delete {outer}")).await;
            let ends = format!("link add {outer} mtu {mtu} type veth peer name {inner} mtu {mtu} netns {namespace}");
            outside(node, &ends).await?;
        }
        mend(node).await?;
        let (address, prefix) = (plan.ip, plan.prefix);
        outside(
            node,
            &format!("address replace {}/{prefix} dev {outer}", plan.gateway_ip),
        )
        .await?;
        outside(node, &format!("link set {outer} up")).await?;
        // What nobody has there would be sent back to where it came from.
        let unreachable: String = plan
            .behind
            .iter()
            .map(|subnet| format!("ip route replace unreachable {subnet} metric {LAST} && "))
            .collect();
        let inside = format!(
            "ip link set lo up && ip address replace {address}/{prefix} dev {inner} && ip link set {inner} up && \
             ip route replace default via {gateway} && {unreachable} echo 1 > /proc/sys/net/ipv4/ip_forward && \
             {{ test ! -e {nf} || echo 1 > {nf}; }}",
            gateway = plan.gateway_ip,
            nf = "/proc/sys/net/bridge/bridge-nf-call-iptables",
        );
        node.enter("sh")
            .args(["-c", &inside])
            .run()
            .await
            .context("configuring the node's network")?;
        for subnet in &plan.behind {
            outside(node, &format!("route replace {subnet} via {address}")).await?;
        }
        Ok(())
    }

    /// Removes the namespaces and the link of a clone, whatever of them is left.
    pub async fn remove(layout: &Layout) -> Result<()> {
        let own = layout.stack_name();
        let _ = ip(&["link", "delete", &plan::host_link(layout.id())]).await;
        // Those of workers begin with the name of the node's.
        for namespace in namespaces().iter().filter(|name| name.starts_with(&own)) {
            ip(&["netns", "delete", namespace])
                .await
                .context("removing a network namespace")?;
        }
        Ok(())
    }
}

/// Cuts a node that was added off from all others, without a word to either side, as a broken switch does.
pub async fn cut(node: &Node) -> Result<()> {
    mend(node).await?;
    let link = &node.plan.outer_link;
    let rules = format!(
        "table inet cut-{link} {{
            chain in {{ type filter hook prerouting priority -300; iifname {link} drop; }}
            chain out {{ type filter hook postrouting priority 300; oifname {link} drop; }}
        }}"
    );
    let first = node.outside.as_deref().context("the first node is never cut off")?;
    enter(first, "nft").arg(rules).run().await.map_err(Into::into)
}

/// Ends that; nothing is there to end with a node that is not cut off.
pub async fn mend(node: &Node) -> Result<()> {
    let Some(first) = &node.outside else {
        return Ok(());
    };
    // To add a table that is there changes nothing, and one that is not there cannot be deleted.
    let table = format!("table inet cut-{}", node.plan.outer_link);
    let rules = format!("add {table}; delete {table}");
    enter(first, "nft").arg(rules).run().await.map_err(Into::into)
}

/// Removes the namespace of a node, and its link.
pub async fn remove(node: &Node) -> Result<()> {
    mend(node).await?;
    if namespaces().contains(&node.namespace) {
        ip(&["netns", "delete", &node.namespace]).await?;
    }
    Ok(())
}

/// `ip` where the other end of a node's link is.
async fn outside(node: &Node, words: &str) -> Result<()> {
    let place = node.outside.iter().flat_map(|namespace| ["-n", namespace]);
    ip(&place.chain(words.split(' ')).collect::<Vec<_>>()).await
}

/// `program` inside a namespace. Not `ip netns exec`, which mounts /sys anew and hides the cgroup v1 hierarchy.
pub(crate) fn enter(namespace: &str, program: &str) -> Command {
    Command::new("nsenter")
        .arg(format!("--net={}", Path::new(NAMESPACES).join(namespace).display()))
        .arg("--")
        .arg(program)
}

/// The namespaces that have names.
fn namespaces() -> Vec<String> {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

async fn ip(args: &[&str]) -> Result<()> {
    Command::new("ip").args(args).run().await.map_err(Into::into)
}
