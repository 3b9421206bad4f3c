//! Network of the workers. Each worker has a namespace, in a LAN that a NAT router connects to the
//! host node.
//!
//! ```text
//!   yoke-<id>                   yoke-<id>-nat                          yoke-<id>-worker-1
//!   host node 192.0.2.1 ══ 192.0.2.2 router 10.200.0.1 ══╦══ 10.200.0.2 worker ── Pods
//!                                                        ╚══ 10.200.0.3 worker ── Pods
//!                                                              yoke-<id>-worker-2
//! ```
//!
//! Connections only lead out: nothing outside can reach a worker. All links are in these namespaces
//! and are deleted with them, so every clone uses the same addresses.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::Network;
use super::netns::{enter, ip, list_namespaces};
use crate::command::Command;
use crate::layout::Layout;

/// The node's end of the link to the router.
const NODE_LINK: &str = "workers0";
const NODE_IP: &str = "192.0.2.1";
const ROUTER_OUTSIDE: &str = "192.0.2.2";
const ROUTER_INSIDE: &str = "10.200.0.1";
/// Fixed address of the router's bridge. By default a bridge takes the lowest address of its ports,
/// which changes when that port is removed. Workers would then send to the previous address for
/// most of a minute.
const ROUTER_MAC: &str = "02:00:0a:c8:00:01";
/// Address of worker 1.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
/// Maximum number of workers: the number of addresses.
pub const WORKERS_MAX: u8 = 253;

const RULES: &str = "
table ip nat {
    chain out { type nat hook postrouting priority 100; oifname wan0 masquerade; }
    chain forward {
        type filter hook forward priority 0;
        iifname wan0 ct state established,related accept
        iifname wan0 drop
    }
}
";

/// The network connection of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLink {
    /// Name of its network namespace.
    pub namespace: String,
    /// IP address of the worker.
    pub address: Ipv4Addr,
    /// Name of the router's end of its link.
    link: String,
}

impl WorkerLink {
    /// The connection of the worker with this number, from 1 to [`WORKERS_MAX`].
    pub fn new(layout: &Layout, number: u8) -> Self {
        Self {
            namespace: format!("{}-worker-{number}", layout.stack_name()),
            address: Ipv4Addr::from(u32::from(FIRST) + u32::from(number) - 1),
            link: format!("worker{number}"),
        }
    }

    /// A command for `program` in the worker's namespace.
    pub fn enter(&self, program: &str) -> Command {
        enter(&self.namespace, program)
    }

    /// Removes the namespace, if it exists.
    pub async fn remove(&self) -> Result<()> {
        if list_namespaces().contains(&self.namespace) {
            ip(&["netns", "delete", &self.namespace]).await?;
        }
        Ok(())
    }
}

impl Network {
    /// Creates a worker's namespace, and the router if it is missing.
    pub async fn connect_worker(&self, port: &WorkerLink) -> Result<()> {
        let router = format!("{}-nat", self.namespace);
        // The firewall rules are created last: a router with rules is complete.
        if !enter(&router, "nft")
            .args(["list", "table", "ip", "nat"])
            .succeeds()
            .await
        {
            self.make_router(&router)
                .await
                .context("creating the workers' router")?;
        }
        let WorkerLink {
            namespace,
            address,
            link,
        } = port;
        // Remove what a killed worker left.
        port.remove().await?;
        let _ = ip(&["-n", &router, "link", "delete", link]).await;
        ip_each(&[
            format!("netns add {namespace}"),
            format!("link add {link} netns {router} type veth peer name eth0 netns {namespace}"),
            format!("-n {router} link set {link} master lan0 up"),
            format!("-n {namespace} address add {address}/24 dev eth0"),
            format!("-n {namespace} link set lo up"),
            format!("-n {namespace} link set eth0 up"),
            format!("-n {namespace} route add default via {ROUTER_INSIDE}"),
        ])
        .await
        .context("creating the worker's network")
    }

    async fn make_router(&self, router: &str) -> Result<()> {
        let node = &self.namespace;
        if list_namespaces().iter().any(|name| name == router) {
            ip(&["netns", "delete", router]).await?;
        }
        // The kernel removes the links of a deleted namespace with a delay.
        let _ = ip(&["-n", node, "link", "delete", NODE_LINK]).await;
        ip_each(&[
            format!("netns add {router}"),
            format!("link add {NODE_LINK} netns {node} type veth peer name wan0 netns {router}"),
            format!("-n {router} link add lan0 address {ROUTER_MAC} type bridge"),
            format!("-n {node} address add {NODE_IP}/30 dev {NODE_LINK}"),
            format!("-n {router} address add {ROUTER_OUTSIDE}/30 dev wan0"),
            format!("-n {router} address add {ROUTER_INSIDE}/24 dev lan0"),
            format!("-n {node} link set {NODE_LINK} up"),
            format!("-n {router} link set lo up"),
            format!("-n {router} link set wan0 up"),
            format!("-n {router} link set lan0 up"),
            format!("-n {router} route add default via {NODE_IP}"),
        ])
        .await?;
        let script = "echo 1 > /proc/sys/net/ipv4/ip_forward && exec nft -f -";
        enter(router, "sh").args(["-c", script]).input(RULES).run().await?;
        Ok(())
    }
}

async fn ip_each(commands: &[String]) -> Result<()> {
    for command in commands {
        ip(&command.split(' ').collect::<Vec<_>>()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_number_has_an_address_in_the_lan() {
        let layout = Layout::new(Path::new("/y"), Path::new("/c"));
        let port = |number| WorkerLink::new(&layout, number);
        assert_eq!(port(1).address, Ipv4Addr::new(10, 200, 0, 2));
        assert_eq!(port(WORKERS_MAX).address, Ipv4Addr::new(10, 200, 0, 254));
        assert!(port(WORKERS_MAX).link.len() <= 15);
        assert!(port(7).namespace.ends_with("-worker-7"));
    }
}
