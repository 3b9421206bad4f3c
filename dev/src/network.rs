//! Network of the host nodes. Each node has a network namespace. One link joins the first node to
//! the root namespace, and one link joins each other node to the first node.
//!
//! ```text
//!   root namespace                    yoke-<id>                                           yoke-<id>-node-2
//!   kubectl, tests ── yk<id>h ═══ yk<id>n ── host API, NATS, kubelet, node2 ═══ eth0 ── kubelet, bridge ── pods
//!                     gateway      node IP   └─ bridge ── pods
//! ```
//!
//! All processes of the nodes listen inside the namespaces, so ports of two clones never collide.
//! Only the addresses of the links and the route to the pods are visible outside. Both are derived
//! from the clone's name. Each node has a part of the pod subnet, and pod addresses are not
//! translated between nodes. The network of tenants' workers is in [`lan`].

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::host_cluster::node::Node;
use crate::layout::Layout;
use crate::network::netns::{enter, ip, list_namespaces};
use crate::network::plan::{NetworkPlan, Subnet};

pub mod lan;
pub(crate) mod netns;
pub mod plan;

/// Number of subnets to try before giving up.
const ATTEMPTS: u32 = 64;
/// Metric of a fallback route.
const LAST: u32 = 9_999;
/// MTU if the root namespace has no default route to copy the MTU from.
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
    /// Addresses and link names.
    pub plan: NetworkPlan,
    namespace: String,
}

impl Network {
    /// Chooses the network of a clone and records it. Later calls read the record.
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
            .context("every candidate subnet of this clone overlaps a route of this computer: see `ip route`")?;
        let network = Self {
            plan,
            namespace: layout.stack_name(),
        };
        fs::create_dir_all(layout.dev()).context("creating .dev")?;
        fs::write(Self::file(layout), serde_json::to_vec_pretty(&network)?).context("writing the chosen network")?;
        Ok(network)
    }

    /// The recorded network of a clone, if there is one.
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

    /// Address of the first node, reachable from the root namespace.
    pub fn node_ip(&self) -> Ipv4Addr {
        self.plan.node_ip
    }

    /// Creates a node's namespace and link, or the missing parts of them.
    pub async fn apply(&self, node: &Node) -> Result<()> {
        let (plan, namespace) = (&node.plan, &node.namespace);
        // After a reboot, the name is a plain file without a mount, and cannot be entered.
        if !node.enter("true").succeeds().await {
            let _ = ip(&["netns", "delete", namespace]).await;
            ip(&["netns", "add", namespace])
                .await
                .context("creating the network namespace")?;
        }
        let (outer, inner, mtu) = (&plan.outer_link, &plan.inner_link, self.plan.mtu);
        if !node.enter("ip").args(["link", "show", inner]).succeeds().await {
            let _ = outside(node, &format!("link delete {outer}")).await;
            let ends = format!("link add {outer} mtu {mtu} type veth peer name {inner} mtu {mtu} netns {namespace}");
            outside(node, &ends).await?;
        }
        reconnect(node).await?;
        let (address, prefix) = (plan.ip, plan.prefix);
        outside(
            node,
            &format!("address replace {}/{prefix} dev {outer}", plan.gateway_ip),
        )
        .await?;
        outside(node, &format!("link set {outer} up")).await?;
        // Without this route, packets to unassigned addresses would return to their sender.
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

    /// Removes the namespaces and the link of a clone, or what is left of them.
    pub async fn remove(layout: &Layout) -> Result<()> {
        let own = layout.stack_name();
        let _ = ip(&["link", "delete", &plan::host_link(layout.id())]).await;
        // Names of workers' namespaces begin with the name of the node's.
        for namespace in list_namespaces().iter().filter(|name| name.starts_with(&own)) {
            ip(&["netns", "delete", namespace])
                .await
                .context("removing a network namespace")?;
        }
        Ok(())
    }
}

/// Disconnects an added node from all others. It drops packets silently, like a broken switch.
pub async fn disconnect(node: &Node) -> Result<()> {
    reconnect(node).await?;
    let link = &node.plan.outer_link;
    let rules = format!(
        "table inet cut-{link} {{
            chain in {{ type filter hook prerouting priority -300; iifname {link} drop; }}
            chain out {{ type filter hook postrouting priority 300; oifname {link} drop; }}
        }}"
    );
    let first = node
        .outside
        .as_deref()
        .context("the first node cannot be disconnected")?;
    enter(first, "nft").arg(rules).run().await.map_err(Into::into)
}

/// Reconnects a node. Does nothing for a connected node.
pub async fn reconnect(node: &Node) -> Result<()> {
    let Some(first) = &node.outside else {
        return Ok(());
    };
    // Adding an existing table changes nothing, and a missing table cannot be deleted: add, then
    // delete.
    let table = format!("table inet cut-{}", node.plan.outer_link);
    let rules = format!("add {table}; delete {table}");
    enter(first, "nft").arg(rules).run().await.map_err(Into::into)
}

/// Removes the namespace of a node, and its link.
pub async fn remove(node: &Node) -> Result<()> {
    reconnect(node).await?;
    if list_namespaces().contains(&node.namespace) {
        ip(&["netns", "delete", &node.namespace]).await?;
    }
    Ok(())
}

/// Runs `ip` in the namespace of the other end of a node's link.
async fn outside(node: &Node, words: &str) -> Result<()> {
    let place = node.outside.iter().flat_map(|namespace| ["-n", namespace]);
    ip(&place.chain(words.split(' ')).collect::<Vec<_>>()).await
}
