//! Decides to which Nodes this worker has a tunnel. Pure.
//!
//! A user with one worker of a cluster can write any value on its Node, including its Pod range. On
//! a conflict the older Node wins, and this worker wins over all others. A newer Node that
//! conflicts gets no tunnel.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;
use yoke_api::Cidr;

use super::key::Key;

/// Upper bound for peers. Each has a timer and buffers.
const PEERS_MAX: usize = 1000;
/// Private address ranges: RFC 1918, RFC 6598.
const PRIVATE: [&str; 4] = ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"];

/// The fields of a Node that matter, unvalidated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerNode {
    pub(crate) uid: String,
    pub(crate) created: Option<Timestamp>,
    /// Pod ranges of the Node.
    pub(crate) ranges: Vec<String>,
    /// Address of the Node itself.
    pub(crate) address: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) endpoint: Option<String>,
}

/// This worker.
#[derive(Clone, Debug)]
pub(crate) struct LocalWorker {
    pub(crate) name: String,
    pub(crate) key: Key,
    /// Pod range of this worker.
    pub(crate) range: Cidr,
    /// Addresses that the machine reaches without the Pod network, and must continue to reach.
    pub(crate) reserved: Vec<Cidr>,
}

/// The other end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) key: Key,
    pub(crate) endpoint: SocketAddr,
    pub(crate) range: Cidr,
}

/// The desired tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) peers: Vec<Peer>,
    /// Nodes without a tunnel, and the reasons.
    pub(crate) rejected: BTreeMap<String, PeerRejection>,
}

/// The reason why a Node gets no tunnel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PeerRejection {
    #[error("its WireGuard public key is invalid")]
    Key,
    #[error("Node {0} has the same WireGuard public key")]
    SharedKey(String),
    #[error("its Pod range is not a private IPv4 range, or is larger than this worker's")]
    Range,
    #[error("its Pod range overlaps {0}, which this machine uses otherwise")]
    Reserved(Cidr),
    #[error("its Pod range overlaps the one of Node {0}")]
    SharedRange(String),
    #[error("its Pod range contains the endpoint of Node {0}")]
    Covers(String),
    #[error("its endpoint is not a usable IP address and port")]
    Endpoint,
    #[error("its endpoint is in the Pod range of Node {0}")]
    Inside(String),
    #[error("there are already {PEERS_MAX} tunnels")]
    Many,
}

/// Plans the tunnels to all Nodes, given by name.
pub(crate) fn plan(own: &LocalWorker, nodes: &BTreeMap<String, PeerNode>) -> Plan {
    let mut others: Vec<_> = nodes.iter().filter(|(name, _)| **name != own.name).collect();
    others.sort_by_key(|(name, seen)| (seen.created.is_none(), seen.created, *name));
    let mut plan = Plan::default();
    let mut names = Vec::new();
    for (name, seen) in others {
        // A Node without a key has no worker of this kind, or its worker has not started yet.
        let Some(key) = &seen.key else { continue };
        match check_peer(own, &names, &plan.peers, seen, key) {
            Ok(peer) => {
                plan.peers.push(peer);
                names.push(name.as_str());
            }
            Err(fault) => {
                plan.rejected.insert(name.clone(), fault);
            }
        }
    }
    plan
}

fn check_peer(
    own: &LocalWorker,
    names: &[&str],
    peers: &[Peer],
    seen: &PeerNode,
    key: &str,
) -> Result<Peer, PeerRejection> {
    let older = || names.iter().zip(peers);
    let owned = |(name, _): (&&str, &Peer)| (*name).to_owned();
    let key: Key = key.parse().map_err(|_| PeerRejection::Key)?;
    if key == own.key {
        return Err(PeerRejection::SharedKey(own.name.clone()));
    }
    if let Some(other) = older().find(|(_, peer)| peer.key == key) {
        return Err(PeerRejection::SharedKey(owned(other)));
    }
    let range = choose_range(own.range, &seen.ranges).ok_or(PeerRejection::Range)?;
    if range.overlaps(own.range) {
        return Err(PeerRejection::SharedRange(own.name.clone()));
    }
    if let Some(needed) = own.reserved.iter().find(|needed| needed.overlaps(range)) {
        return Err(PeerRejection::Reserved(*needed));
    }
    if let Some(other) = older().find(|(_, peer)| peer.range.overlaps(range)) {
        return Err(PeerRejection::SharedRange(owned(other)));
    }
    if let Some(other) = older().find(|(_, peer)| range.contains(peer.endpoint.ip())) {
        return Err(PeerRejection::Covers(owned(other)));
    }
    let endpoint = seen.endpoint.as_deref().and_then(parse_endpoint);
    // An endpoint in the Node's own Pod range would route the tunnel through itself.
    let endpoint = endpoint.filter(|endpoint| !range.contains(endpoint.ip()));
    let endpoint = endpoint.ok_or(PeerRejection::Endpoint)?;
    if own.range.contains(endpoint.ip()) {
        return Err(PeerRejection::Inside(own.name.clone()));
    }
    if let Some(other) = older().find(|(_, peer)| peer.range.contains(endpoint.ip())) {
        return Err(PeerRejection::Inside(owned(other)));
    }
    if peers.len() >= PEERS_MAX {
        return Err(PeerRejection::Many);
    }
    Ok(Peer { key, endpoint, range })
}

/// Returns the first range of this worker's address family, if it may be routed.
fn choose_range(own: Cidr, ranges: &[String]) -> Option<Cidr> {
    let mut ranges = ranges.iter().filter_map(|range| range.parse::<Cidr>().ok());
    let range = ranges.find(|range| range.address().is_ipv4() == own.address().is_ipv4())?;
    (range.prefix() >= own.prefix() && is_private(range)).then_some(range)
}

/// Reports whether the range is part of a private range.
pub(crate) fn is_private(range: Cidr) -> bool {
    let mut wholes = PRIVATE.iter().filter_map(|whole| whole.parse().ok());
    wholes.any(|whole| range.is_part_of(whole))
}

/// Parses an endpoint, if a machine can have that address.
pub(crate) fn parse_endpoint(text: &str) -> Option<SocketAddr> {
    let endpoint: SocketAddr = text.parse().ok()?;
    let address = endpoint.ip().to_canonical();
    let of_a_machine = match address {
        IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_link_local() && v4.octets()[0] != 0,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let usual = !address.is_unspecified() && !address.is_loopback() && !address.is_multicast();
    (of_a_machine && usual && endpoint.port() != 0).then(|| SocketAddr::new(address, endpoint.port()))
}

#[cfg(test)]
mod tests;
