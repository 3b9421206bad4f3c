//! The workers' network: each has a namespace of its own, in a LAN that a router with NAT connects to the host node.
//!
//! ```text
//!   yoke-<id>                   yoke-<id>-nat                          yoke-<id>-worker-1
//!   host node 192.0.2.1 ══ 192.0.2.2 router 10.200.0.1 ══╦══ 10.200.0.2 worker ── Pods
//!                                                        ╚══ 10.200.0.3 worker ── Pods
//!                                                              yoke-<id>-worker-2
//! ```
//!
//! It only leads out: nobody outside has a way to a worker. All of its links are in these namespaces and go with them, and so
//! the addresses are the same in every clone.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::{Network, enter, ip, namespaces};
use crate::command::Command;
use crate::layout::Layout;

/// The node's end of the link to the router.
const NODE_LINK: &str = "workers0";
const NODE_IP: &str = "192.0.2.1";
const ROUTER_OUTSIDE: &str = "192.0.2.2";
const ROUTER_INSIDE: &str = "10.200.0.1";
/// A bridge without an address of its own has the lowest of its ports', and another one when that port goes: workers would speak to the
/// former for most of a minute.
const ROUTER_MAC: &str = "02:00:0a:c8:00:01";
/// The first number's address.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
/// As many as have an address.
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

/// One worker's place in the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name of its namespace.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its cable's end at the router.
    link: String,
}

impl Port {
    /// Of the worker with this number, from 1 to [`WORKERS_MAX`].
    pub fn new(layout: &Layout, number: u8) -> Self {
        Self {
            namespace: format!("{}-worker-{number}", layout.stack_name()),
            address: Ipv4Addr::from(u32::from(FIRST) + u32::from(number) - 1),
            link: format!("worker{number}"),
        }
    }

    /// A program there.
    pub fn enter(&self, program: &str) -> Command {
        enter(&self.namespace, program)
    }

    /// Removes it.
    pub async fn remove(&self) -> Result<()> {
        if namespaces().contains(&self.namespace) {
            ip(&["netns", "delete", &self.namespace]).await?;
        }
        Ok(())
    }
}

impl Network {
    /// Makes a worker's namespace, and the router if there is none.
    pub async fn plug_in(&self, port: &Port) -> Result<()> {
        let router = format!("{}-nat", self.namespace);
        // The rules are made last: a router that has them is whole.
        if !enter(&router, "nft")
            .args(["list", "table", "ip", "nat"])
            .succeeds()
            .await
        {
            self.make_router(&router).await.context("making the workers' router")?;
        }
        let Port {
            namespace,
            address,
            link,
        } = port;
        // What is left of one that was killed.
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
        .context("making the worker's network")
    }

    async fn make_router(&self, router: &str) -> Result<()> {
        let node = &self.namespace;
        if namespaces().iter().any(|name| name == router) {
            ip(&["netns", "delete", router]).await?;
        }
        // The kernel removes the links of a namespace a moment later.
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
        let port = |number| Port::new(&layout, number);
        assert_eq!(port(1).address, Ipv4Addr::new(10, 200, 0, 2));
        assert_eq!(port(WORKERS_MAX).address, Ipv4Addr::new(10, 200, 0, 254));
        assert!(port(WORKERS_MAX).link.len() <= 15);
        assert!(port(7).namespace.ends_with("-worker-7"));
    }
}
