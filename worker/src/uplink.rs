//! The network of an ephemeral worker: a link to the machine, which translates addresses (NAT). See
//! ADR 0021.
//!
//! ```text
//!  machine.rs ────────▶ plan.rs (pure): addresses ─┬─▶ ip: ykup<run> ══ eth0 in the worker's network
//!                                                  ├─▶ table.rs (pure) ─▶ nft: inet yoke-uplink-<run>
//!                                                  ├─▶ forward.rs: forwarding of the machine's devices
//!                                                  └─▶ relay.rs, resolvers.rs (pure): DNS servers that listen on loopback only
//! ```
//!
//! All names contain the id of the run, which is unique. The end of one run therefore removes
//! nothing of another one, even in the same folder. The link is created before the table, and
//! disappears with the worker's network. A table without its link therefore belongs to a run that
//! has ended.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::arguments::EPHEMERAL_PORT;
use crate::error::Error;
use crate::error_chain::format_chain;
use crate::host::files::{self, FileError};
use crate::host::resolv_conf::{RESOLV_CONF, read_resolv_conf};
use crate::host::{iptables, nftables};
use crate::layout::Layout;
use crate::output::progress;
use crate::process::stdin_program::call;
use crate::state::Worker;

mod forward;
pub(crate) mod link;
mod machine;
mod plan;
mod relay;
mod resolvers;
mod runs;
mod table;

use link::{Run, Uplink};
use relay::Relay;
use runs::{list_opened, list_runs};
use table::{Table, build_table};

/// Name of the worker's end of the link.
const INSIDE: &str = "eth0";
/// Interval of a full reconcile, even without changes: other programs flush rules, and a machine
/// changes networks.
const RESYNC: Duration = Duration::from_secs(60);
/// Attempts to find a free subnet, in case other workers take it at the same time.
const ATTEMPTS: u32 = 16;
/// Number of ports to try.
const PORTS_TRIED: u16 = 100;

/// A UDP port of the machine, reserved for the worker until dropped.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _held: UdpSocket,
}

/// Reserves the requested port, or the first free one.
pub(crate) fn reserve_port(wanted: Option<u16>) -> Result<Port, Error> {
    let take = |number| {
        let held = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, number))?;
        Ok(Port { number, _held: held })
    };
    let taken: std::io::Result<Port> = match wanted {
        Some(number) => take(number),
        None => {
            let mut ports = (0..PORTS_TRIED).map(|more| take(EPHEMERAL_PORT + more));
            ports
                .find(Result::is_ok)
                .unwrap_or_else(|| Err(std::io::ErrorKind::AddrInUse.into()))
        }
    };
    let name = wanted.unwrap_or(EPHEMERAL_PORT);
    taken.map_err(|error| {
        Error::Uplink(format!(
            "cannot reserve UDP port {name}, at which other workers reach this one: {error}"
        ))
    })
}

/// Checks whether this machine supports an ephemeral worker's network, in network namespaces that
/// disappear afterwards.
pub(crate) async fn check_support() -> Result<(), String> {
    let words = ["link", "add", "name", "ykup0", "type", "veth", "peer", "name", "ykup1"];
    let link = [&["--net", "ip"], &words[..]].concat();
    call("unshare", &link, "").await.map_err(|why| format!("veth: {why}"))?;
    let uplink = Uplink::example();
    let text = build_table(&Table {
        uplink: &uplink,
        wireguard: Some(EPHEMERAL_PORT),
        relay: (1, 1),
        opened: &BTreeSet::new(),
    });
    let tried = call("unshare", &["--net", "nft", "-f", "-"], &text).await;
    tried.map(drop).map_err(|why| format!("address translation: {why}"))
}

/// A maintained network of an ephemeral worker.
pub(crate) struct UplinkReconciler {
    uplink: Uplink,
    wireguard: Option<u16>,
    /// Network namespace file of the worker.
    net: PathBuf,
    relay: Arc<Relay>,
    /// Devices of the machine on which forwarding was enabled for workers.
    opened: BTreeSet<String>,
    /// Resolver configuration of the sandbox.
    resolvers: PathBuf,
    /// The script of the current table.
    applied: String,
    last_message: String,
}

impl UplinkReconciler {
    /// Creates the link of a network namespace, and persists its addresses.
    pub(crate) async fn create(layout: &Layout, worker: &mut Worker, net: PathBuf) -> Result<Self, Error> {
        remove_leftover_runs().await;
        let run = match &worker.uplink {
            Some(uplink) => uplink.run.clone(),
            None => return Err(Error::Uplink("the worker's state has no uplink".to_owned())),
        };
        let uplink = create_link_with_free_subnet(&run, worker, &net)
            .await
            .map_err(Error::Uplink)?;
        worker.uplink = Some(uplink.clone());
        worker.write(layout)?;
        let gateway = uplink.gateway;
        let failed = |error| Error::Uplink(format!("cannot listen at {gateway}: {error}"));
        let resolvers = layout.replacement(RESOLV_CONF);
        files::make_folder(resolvers.parent().unwrap_or(&resolvers))?;
        let mut reconciler = Self {
            relay: Arc::new(Relay::bind(&uplink).await.map_err(failed)?),
            opened: BTreeSet::new(),
            uplink,
            wireguard: worker.pod_network.then_some(worker.wireguard_port),
            net,
            resolvers,
            applied: String::new(),
            last_message: String::new(),
        };
        reconciler.reconcile().await.map_err(Error::Uplink)?;
        Ok(reconciler)
    }

    /// Reconciles the network until dropped.
    pub(crate) async fn run(&mut self) -> Infallible {
        let relay = Arc::clone(&self.relay);
        tokio::select! {
            never = relay.serve() => never,
            never = self.resync() => never,
        }
    }

    async fn resync(&mut self) -> Infallible {
        loop {
            sleep(RESYNC).await;
            let why = self.reconcile().await.err().unwrap_or_default();
            if !why.is_empty() && why != self.last_message {
                progress(&format!("cannot reconcile the worker's network: {why}"));
            }
            self.last_message = why;
        }
    }

    /// The link comes first. No packet leaves before its address is translated.
    async fn reconcile(&mut self) -> Result<(), String> {
        let seen = machine::observe().await?;
        let link = self.uplink.run.link();
        if !seen.links.contains(&link) {
            create_link(&self.uplink, &self.net, seen.mtu).await?;
        }
        self.opened = forward::plan_forwarding(&seen.devices, &self.opened).await;
        let text = build_table(&Table {
            uplink: &self.uplink,
            wireguard: self.wireguard,
            relay: self.relay.ports(),
            opened: &self.opened,
        });
        if text != self.applied || !nftables::has_table(&self.uplink.run.table()).await {
            nftables::apply(&text).await?;
            self.applied = text;
        }
        iptables::accept_forwarding(&link, &self.uplink.run.table()).await?;
        forward::enable(self.opened.iter().chain(seen.devices.iter()).chain([&link]))?;
        configure_inside(&self.uplink, &self.net).await?;
        self.write_resolvers().map_err(|error| format_chain(&error))
    }

    /// Writes in place: the sandbox has this inode mounted.
    fn write_resolvers(&self) -> Result<(), FileError> {
        let text = resolvers::translate(&read_resolv_conf(), self.uplink.gateway);
        if fs::read(&self.resolvers).is_ok_and(|found| found == text.as_bytes()) {
            return Ok(());
        }
        fs::write(&self.resolvers, text).map_err(|error| FileError::new("write", &self.resolvers, error))
    }
}

/// Creates the link with a free subnet. Adding the route reserves the subnet, because the kernel
/// accepts a route only once.
async fn create_link_with_free_subnet(run: &Run, worker: &Worker, net: &Path) -> Result<Uplink, String> {
    for _ in 0..ATTEMPTS {
        let seen = machine::observe().await?;
        let uplink = plan::plan(run, &seen, worker.node_ip, rand::random()).ok_or("no private subnet is free")?;
        match create_link(&uplink, net, seen.mtu).await {
            Err(why) if why.contains("File exists") => remove_link(run).await,
            made => return made.map(|()| uplink),
        }
    }
    Err("other workers took the subnet in each of {ATTEMPTS} attempts".to_owned())
}

/// Creates the link. Also used when another program has removed it.
async fn create_link(uplink: &Uplink, net: &Path, mtu: u32) -> Result<(), String> {
    let (link, net, mtu) = (uplink.run.link(), net.display().to_string(), mtu.to_string());
    let ends = [
        "link", "add", "name", &link, "mtu", &mtu, "type", "veth", "peer", "name", INSIDE, "mtu", &mtu, "netns", &net,
    ];
    call("ip", &ends, "").await?;
    let (gateway, subnet) = (uplink.gateway, uplink.subnet());
    // The route is added, not replaced: an existing one belongs to another worker.
    let script = format!(
        "link set dev {link} addrgenmode none\n\
         address add {gateway}/{prefix} dev {link} noprefixroute\n\
         link set dev {link} up\n\
         route add {subnet} dev {link} scope link src {gateway}\n",
        prefix = subnet.prefix(),
    );
    call("ip", &["-batch", "-"], &script).await.map(drop)
}

/// Configures the worker's end of the link.
async fn configure_inside(uplink: &Uplink, net: &Path) -> Result<(), String> {
    let script = format!(
        "link set dev lo up\n\
         address replace {}/{} dev {INSIDE}\n\
         link set dev {INSIDE} up\n\
         route replace default via {} dev {INSIDE}\n",
        uplink.address,
        uplink.subnet().prefix(),
        uplink.gateway,
    );
    let net = format!("--net={}", net.display());
    call("nsenter", &[&net, "ip", "-batch", "-"], &script).await.map(drop)
}

async fn remove_link(run: &Run) {
    // The link disappears with the worker's network namespace, unless that is still in use.
    let _ = call("ip", &["link", "delete", &run.link()], "").await;
}

/// Removes what a run has created on the machine. Disables forwarding again, unless another run
/// needs it.
pub(crate) async fn remove(run: &Run) {
    let opened = list_opened(run).await;
    if let Err(why) = nftables::delete_table("inet", &run.table()).await {
        progress(&format!("cannot remove the table {}: {why}", run.table()));
    }
    iptables::remove_accept_rules(&run.table()).await;
    remove_link(run).await;
    forward::disable(&opened).await;
}

/// Removes what killed runs left behind. A starting run creates its link before its table, so the
/// tables must be read first.
pub(crate) async fn remove_leftover_runs() {
    let runs = list_runs().await;
    if runs.is_empty() {
        return;
    }
    let Ok(links) = machine::list_links().await else { return };
    for run in runs.iter().filter(|run| !links.contains(&run.link())) {
        remove(run).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_has_one_worker() {
        let first = reserve_port(None).unwrap();
        let second = reserve_port(None).unwrap();
        assert_ne!(first.number, second.number);
        assert!(
            first.number > 51820 && second.number > 51820,
            "that is one's that stays"
        );
        assert!(matches!(reserve_port(Some(first.number)), Err(Error::Uplink(_))));
        let number = first.number;
        drop(first);
        assert_eq!(reserve_port(Some(number)).unwrap().number, number);
    }
}
