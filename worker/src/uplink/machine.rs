//! Reads the machine's network configuration from `ip`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Deserialize;
use yoke_api::Cidr;

use super::link::LINKS;
use crate::host::iproute::{parse, parse_destination};
use crate::process::stdin_program::call;

/// MTU without a default route.
const ETHERNET_MTU: u32 = 1500;
const LOOPBACK: &str = "lo";

/// A link of `ip -json address`. A link without an address of the requested family may lack every
/// field.
#[derive(Deserialize)]
struct Link {
    ifname: Option<String>,
    mtu: Option<u32>,
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    local: Option<IpAddr>,
    /// Prefix length of its network.
    prefixlen: Option<u8>,
}

/// A route of `ip -json route`.
#[derive(Deserialize)]
struct Route {
    dst: String,
    dev: Option<String>,
    prefsrc: Option<IpAddr>,
    /// Routing table, unless it is the main one.
    table: Option<String>,
}

/// The facts about the machine's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MachineNetwork {
    /// Addresses and networks that are in use.
    pub(super) taken: Vec<Cidr>,
    /// Devices on which responses arrive.
    pub(super) devices: BTreeSet<String>,
    /// The machine's ends of workers' links.
    pub(super) links: BTreeSet<String>,
    /// MTU of the default route's device.
    pub(super) mtu: u32,
    /// Source address of the default route.
    pub(super) address: Option<IpAddr>,
}

pub(super) async fn observe() -> Result<MachineNetwork, String> {
    let links = call("ip", &["-json", "-4", "address", "show"], "").await?;
    let routes = call("ip", &["-json", "-4", "route", "show", "table", "all"], "").await?;
    let mut seen = build_machine_network(&links, &routes).map_err(|error| format!("ip: {error}"))?;
    seen.links = list_links().await?;
    Ok(seen)
}

/// Lists the machine's ends of workers' links, even those without an address.
pub(super) async fn list_links() -> Result<BTreeSet<String>, String> {
    let links = call("ip", &["-json", "link", "show"], "").await?;
    let links: Vec<Link> = parse(&links).map_err(|error| format!("ip: {error}"))?;
    let names = links.into_iter().filter_map(|link| link.ifname);
    Ok(names.filter(|name| name.starts_with(LINKS)).collect())
}

/// Builds the facts from the output of `ip`. Pure.
fn build_machine_network(links: &str, routes: &str) -> Result<MachineNetwork, serde_json::Error> {
    let (links, routes): (Vec<Link>, Vec<Route>) = (parse(links)?, parse(routes)?);
    let default = routes
        .iter()
        .find(|route| route.dst == "default" && route.table.is_none());
    let uplink = default.and_then(|route| links.iter().find(|link| link.ifname == route.dev));
    let first = uplink.and_then(|link| link.addr_info.iter().find_map(|address| address.local));
    let mut taken: Vec<_> = links
        .iter()
        .flat_map(|link| &link.addr_info)
        .flat_map(to_ranges)
        .collect();
    taken.extend(routes.iter().filter_map(|route| parse_destination(&route.dst)));
    let is_other = |name: &&String| *name != LOOPBACK && !name.starts_with(LINKS);
    let devices = routes.iter().filter_map(|route| route.dev.as_ref()).filter(is_other);
    Ok(MachineNetwork {
        taken,
        devices: devices.cloned().collect(),
        links: BTreeSet::new(),
        mtu: uplink.and_then(|link| link.mtu).unwrap_or(ETHERNET_MTU),
        address: default.and_then(|route| route.prefsrc).or(first),
    })
}

/// Returns an address and its network, to which there may be no route.
fn to_ranges(address: &Address) -> Vec<Cidr> {
    let Some(IpAddr::V4(local)) = address.local else {
        return Vec::new();
    };
    let prefix = address.prefixlen.unwrap_or(32).min(32);
    let hosts = 32 - u32::from(prefix);
    let network = u32::from(local)
        .checked_shr(hosts)
        .unwrap_or(0)
        .checked_shl(hosts)
        .unwrap_or(0);
    let network = format!("{}/{prefix}", std::net::Ipv4Addr::from(network)).parse();
    [Some(Cidr::of(local.into())), network.ok()]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKS: &str = r#"[
        {"ifname": "lo", "mtu": 65536, "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
        {},
        {"ifname": "eth0", "mtu": 1460, "addr_info": [{"local": "192.168.1.2", "prefixlen": 24}]},
        {"ifname": "ykup00c0ffee", "mtu": 1460, "addr_info": [{"local": "198.18.0.1", "prefixlen": 30}]}
    ]"#;
    const ROUTES: &str = r#"[
        {"dst": "default", "dev": "tailscale0", "table": "52"},
        {"dst": "default", "gateway": "192.168.1.1", "dev": "eth0", "flags": []},
        {"dst": "198.18.0.0/30", "dev": "ykup00c0ffee"},
        {"dst": "10.0.0.0/8", "dev": "vpn0"},
        {"type": "local", "dst": "127.0.0.1", "dev": "lo", "table": "local"},
        {"type": "unreachable", "dst": "10.9.0.0/16", "metric": 1}
    ]"#;

    #[test]
    fn the_network_of_a_machine_is_read() {
        let seen = build_machine_network(LINKS, ROUTES).unwrap();
        let taken: Vec<_> = seen.taken.iter().map(ToString::to_string).collect();
        let expected = [
            "127.0.0.1/32",
            "127.0.0.0/8",
            "192.168.1.2/32",
            "192.168.1.0/24",
            "198.18.0.1/32",
            "198.18.0.0/30",
            "198.18.0.0/30",
            "10.0.0.0/8",
            "127.0.0.1/32",
            "10.9.0.0/16",
        ];
        assert_eq!(taken, expected);
        assert_eq!(seen.devices, ["eth0", "tailscale0", "vpn0"].map(str::to_owned).into());
        assert_eq!(
            (seen.mtu, seen.address.unwrap().to_string().as_str()),
            (1460, "192.168.1.2")
        );
        let with_source = ROUTES.replace(r#""flags": []"#, r#""prefsrc": "192.168.1.9""#);
        let seen = build_machine_network(LINKS, &with_source).unwrap();
        assert_eq!(seen.address.unwrap().to_string(), "192.168.1.9");
        assert_eq!(build_machine_network("", "").unwrap().mtu, 1500, "it leads nowhere");
        assert!(build_machine_network("x", ROUTES).is_err());
    }
}
