//! The host node's network: a namespace of its own, joined to the root namespace by one link.
//!
//! ```text
//!   root namespace                    yoke-<id>
//!   kubectl, tests ── yk<id>h ═══ yk<id>n ── host API, NATS, kubelet, bridge ── pods
//!                     gateway      node IP
//! ```
//!
//! Everything of the host node listens inside, so the ports of two clones never meet; only the link's four addresses and
//! the pods' route are seen outside, and those are derived from the clone's name. Workers of tenants are in [`lan`].

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::layout::Layout;
use crate::network::plan::{NetworkPlan, Subnet};

pub mod lan;
pub mod plan;

/// How often a taken subnet is given up for the next one.
const ATTEMPTS: u32 = 64;
/// Where `ip netns` keeps the names of namespaces.
const NAMESPACES: &str = "/run/netns";
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
            .find(|plan| {
                !plan
                    .subnets()
                    .iter()
                    .any(|subnet| taken.iter().any(|other| subnet.overlaps(other)))
            })
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

    /// The node's address, reachable from the root namespace.
    pub fn node_ip(&self) -> Ipv4Addr {
        self.plan.node_ip
    }

    /// `program` inside the namespace.
    pub fn enter(&self, program: &str) -> Command {
        enter(&self.namespace, program)
    }

    /// Makes the namespace and the link, or what is missing of them.
    pub async fn apply(&self) -> Result<()> {
        let plan = &self.plan;
        // A name whose mount is gone (the machine was killed) is a plain file, and cannot be entered.
        if !self.enter("true").succeeds().await {
            let _ = ip(&["netns", "delete", &self.namespace]).await;
            ip(&["netns", "add", &self.namespace])
                .await
                .context("making the network namespace")?;
        }
        let (outer, inner) = (plan.host_link.as_str(), plan.node_link.as_str());
        if !self.enter("ip").args(["link", "show", inner]).succeeds().await {
            let _ = ip(&["link", "delete", outer]).await;
            let mtu = plan.mtu.to_string();
            ip(&[
                "link", "add", outer, "mtu", &mtu, "type", "veth", "peer", "name", inner, "mtu", &mtu,
            ])
            .await?;
            ip(&["link", "set", inner, "netns", &self.namespace]).await?;
        }
        let prefix = plan.link.prefix;
        ip(&[
            "address",
            "replace",
            &format!("{}/{prefix}", plan.gateway_ip),
            "dev",
            outer,
        ])
        .await?;
        ip(&["link", "set", outer, "up"]).await?;
        let inside = format!(
            "ip link set lo up && ip address replace {node}/{prefix} dev {inner} && ip link set {inner} up && \
             ip route replace default via {gateway} && echo 1 > /proc/sys/net/ipv4/ip_forward && \
             {{ test ! -e {nf} || echo 1 > {nf}; }}",
            node = plan.node_ip,
            gateway = plan.gateway_ip,
            nf = "/proc/sys/net/bridge/bridge-nf-call-iptables",
        );
        self.enter("sh")
            .args(["-c", &inside])
            .run()
            .await
            .context("configuring the node's network")?;
        ip(&[
            "route",
            "replace",
            &plan.pods.to_string(),
            "via",
            &plan.node_ip.to_string(),
        ])
        .await?;
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

/// `program` inside a namespace. Not `ip netns exec`, which mounts /sys anew and hides the cgroup v1 hierarchy.
fn enter(namespace: &str, program: &str) -> Command {
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
