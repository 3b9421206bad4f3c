//! The way out of an ephemeral worker's own network: a link to the machine, which translates addresses. See ADR 0021.
//!
//! ```text
//!  machine.rs ──Seen──▶ plan.rs (pure): addresses ─┬─▶ ip: ykup<run> ══ eth0 in the worker's network
//!                                                  ├─▶ table.rs (pure) ─▶ nft: inet yoke-uplink-<run>
//!                                                  ├─▶ forward.rs: forwarding of the machine's devices
//!                                                  └─▶ relay.rs, resolvers.rs (pure): DNS that listens on the machine alone
//! ```
//!
//! All of it is called by the run, which has a name that no other one has: the end of one takes nothing from another, in the same
//! folder either. There is no table without its link but that of a run which has ended: the link is made first, and goes with the
//! worker's network.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::arguments::EPHEMERAL_PORT;
use crate::feed::call;
use crate::files::{self, FileError};
use crate::layout::Layout;
use crate::machine::{RESOLV_CONF, resolv_conf};
use crate::output::say;
use crate::state::Worker;
use crate::{Error, boxed, rules};

mod forward;
mod machine;
mod plan;
mod relay;
mod resolvers;
mod table;

pub(crate) use plan::{Run, Uplink};
use relay::Relay;
use table::{Table, build_table};

/// The worker's end of the link.
const INSIDE: &str = "eth0";
/// How often all is put right, whether anything has changed or not: others flush rules, and a machine moves.
const RESYNC: Duration = Duration::from_secs(60);
/// How often others may be faster to take a subnet.
const ATTEMPTS: u32 = 16;
/// How many ports are tried.
const PORTS: u16 = 100;

/// A port of UDP of the machine that is the worker's as long as this is held.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _held: UdpSocket,
}

/// Takes the port that is asked for, or the first one that is free.
pub(crate) fn take_port(wanted: Option<u16>) -> Result<Port, Error> {
    let take = |number| {
        let held = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, number))?;
        Ok(Port { number, _held: held })
    };
    let taken: std::io::Result<Port> = match wanted {
        Some(number) => take(number),
        None => {
            let mut ports = (0..PORTS).map(|more| take(EPHEMERAL_PORT + more));
            ports
                .find(Result::is_ok)
                .unwrap_or_else(|| Err(std::io::ErrorKind::AddrInUse.into()))
        }
    };
    let name = wanted.unwrap_or(EPHEMERAL_PORT);
    taken.map_err(|error| Error::Uplink(format!("port {name} of UDP, by which other workers reach it: {error}")))
}

/// Whether this machine can have what a worker's network is made of, or why it cannot. Nothing of what is tried stays.
pub(crate) async fn try_out() -> Result<(), String> {
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
    tried
        .map(drop)
        .map_err(|why| format!("translation of addresses: {why}"))
}

/// A way out that is kept.
pub(crate) struct Upkeep {
    uplink: Uplink,
    wireguard: Option<u16>,
    /// What leads to the worker's network.
    net: PathBuf,
    relay: Arc<Relay>,
    /// Devices of the machine that forward for workers alone.
    opened: BTreeSet<String>,
    /// The resolver configuration of the box.
    resolvers: PathBuf,
    /// What the table was made by.
    put: String,
    said: String,
}

impl Upkeep {
    /// Makes the way out of a network, and remembers it.
    pub(crate) async fn raise(layout: &Layout, worker: &mut Worker, net: PathBuf) -> Result<Self, Error> {
        remove_dead().await;
        let run = match &worker.uplink {
            Some(uplink) => uplink.run.clone(),
            None => return Err(Error::Uplink("the worker is to have none".to_owned())),
        };
        let uplink = make_first(&run, worker, &net).await.map_err(Error::Uplink)?;
        worker.uplink = Some(uplink.clone());
        worker.write(layout)?;
        let gateway = uplink.gateway;
        let failed = |error| Error::Uplink(format!("cannot listen at {gateway}: {error}"));
        let resolvers = boxed::stand_in(layout, RESOLV_CONF);
        files::make_folder(resolvers.parent().unwrap_or(&resolvers))?;
        let mut upkeep = Self {
            relay: Arc::new(Relay::bind(&uplink).await.map_err(failed)?),
            opened: BTreeSet::new(),
            uplink,
            wireguard: worker.pod_network.then_some(worker.wireguard_port),
            net,
            resolvers,
            put: String::new(),
            said: String::new(),
        };
        upkeep.try_settle().await.map_err(Error::Uplink)?;
        Ok(upkeep)
    }

    /// Keeps it as it should be.
    pub(crate) async fn keep(&mut self) -> Infallible {
        let relay = Arc::clone(&self.relay);
        tokio::select! {
            never = relay.serve() => never,
            never = self.resync() => never,
        }
    }

    async fn resync(&mut self) -> Infallible {
        loop {
            sleep(RESYNC).await;
            let why = self.try_settle().await.err().unwrap_or_default();
            if !why.is_empty() && why != self.said {
                say(&format!("the worker's way out is not as it should be: {why}"));
            }
            self.said = why;
        }
    }

    /// The link first of all, and nothing gets out before its address is translated.
    async fn try_settle(&mut self) -> Result<(), String> {
        let seen = machine::observe().await?;
        let link = self.uplink.run.link();
        if !seen.links.contains(&link) {
            make_link(&self.uplink, &self.net, seen.mtu).await?;
        }
        self.opened = forward::plan(&seen.devices, &self.opened).await;
        let text = build_table(&Table {
            uplink: &self.uplink,
            wireguard: self.wireguard,
            relay: self.relay.ports(),
            opened: &self.opened,
        });
        if text != self.put || !has_table(&self.uplink.run).await {
            call("nft", &["-f", "-"], &text).await?;
            self.put = text;
        }
        rules::accept_forwarding(&link, &self.uplink.run.table()).await?;
        forward::open(self.opened.iter().chain(seen.devices.iter()).chain([&link]))?;
        connect(&self.uplink, &self.net).await?;
        self.write_resolvers().map_err(|error| crate::clock::to_line(&error))
    }

    /// In its place: the box has mounted the file itself.
    fn write_resolvers(&self) -> Result<(), FileError> {
        let text = resolvers::translate(&read_resolvers(), self.uplink.gateway);
        if fs::read(&self.resolvers).is_ok_and(|found| found == text.as_bytes()) {
            return Ok(());
        }
        fs::write(&self.resolvers, text).map_err(|error| FileError::new("write", &self.resolvers, error))
    }
}

/// The machine's, as it is right now.
fn read_resolvers() -> String {
    fs::read_to_string(resolv_conf()).unwrap_or_default()
}

/// Whoever adds a route has its subnet: the kernel takes one but once.
async fn make_first(run: &Run, worker: &Worker, net: &Path) -> Result<Uplink, String> {
    for _ in 0..ATTEMPTS {
        let seen = machine::observe().await?;
        let uplink = plan::plan(run, &seen, worker.node_ip, rand::random()).ok_or("no private subnet is free")?;
        match make_link(&uplink, net, seen.mtu).await {
            Err(why) if why.contains("File exists") => remove_link(run).await,
            made => return made.map(|()| uplink),
        }
    }
    Err("others were faster each time".to_owned())
}

/// One that was removed meanwhile is made again.
async fn make_link(uplink: &Uplink, net: &Path, mtu: u32) -> Result<(), String> {
    let (link, net, mtu) = (uplink.run.link(), net.display().to_string(), mtu.to_string());
    let ends = [
        "link", "add", "name", &link, "mtu", &mtu, "type", "veth", "peer", "name", INSIDE, "mtu", &mtu, "netns", &net,
    ];
    call("ip", &ends, "").await?;
    let (gateway, subnet) = (uplink.gateway, uplink.subnet());
    // Added, and not replaced: it may be another's.
    let script = format!(
        "link set dev {link} addrgenmode none\n\
         address add {gateway}/{prefix} dev {link} noprefixroute\n\
         link set dev {link} up\n\
         route add {subnet} dev {link} scope link src {gateway}\n",
        prefix = subnet.prefix(),
    );
    call("ip", &["-batch", "-"], &script).await.map(drop)
}

/// The worker's end.
async fn connect(uplink: &Uplink, net: &Path) -> Result<(), String> {
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

async fn has_table(run: &Run) -> bool {
    call("nft", &["list", "table", "inet", &run.table()], "").await.is_ok()
}

async fn remove_link(run: &Run) {
    // It goes with the worker's network, unless that is still busy.
    let _ = call("ip", &["link", "delete", &run.link()], "").await;
}

/// Runs that have a table on this machine.
async fn list_runs() -> Vec<Run> {
    let tables = call("nft", &["-j", "list", "tables"], "").await.unwrap_or_default();
    table::parse_runs(&tables)
}

/// Removes what a run has made on the machine, and puts back what it has changed unless another run needs it.
pub(crate) async fn remove(run: &Run) {
    let opened = list_opened(run).await;
    match call("nft", &["delete", "table", "inet", &run.table()], "").await {
        Err(why) if !why.contains("No such file or directory") => {
            say(&format!("cannot remove the table {}: {why}", run.table()));
        }
        _ => {}
    }
    rules::remove_acceptance(&run.table()).await;
    remove_link(run).await;
    forward::close(&opened).await;
}

/// Removes what is left of runs that were killed. One that begins right now has its link before its table, and so tables are
/// looked at first.
pub(crate) async fn remove_dead() {
    let runs = list_runs().await;
    if runs.is_empty() {
        return;
    }
    let Ok(links) = machine::list_links().await else { return };
    for run in runs.iter().filter(|run| !links.contains(&run.link())) {
        remove(run).await;
    }
}

/// Devices that forward since this run, or one that it has followed, by what its table says.
async fn list_opened(run: &Run) -> BTreeSet<String> {
    let set = call("nft", &["-j", "list", "set", "inet", &run.table(), table::OPENED], "").await;
    table::parse_opened(&set.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_workers() {
        let first = take_port(None).unwrap();
        let second = take_port(None).unwrap();
        assert_ne!(first.number, second.number);
        assert!(
            first.number > 51820 && second.number > 51820,
            "that is one's that stays"
        );
        assert!(matches!(take_port(Some(first.number)), Err(Error::Uplink(_))));
        let number = first.number;
        drop(first);
        assert_eq!(take_port(Some(number)).unwrap().number, number);
    }
}
