//! Reads what the machine reaches without the Pod network, and the MTU of its uplink.

use std::net::IpAddr;

use serde::Deserialize;
use yoke_api::Cidr;

use super::plan::is_private;
use crate::host::iproute::{parse, parse_destination};
use crate::host::resolv_conf::read_resolv_conf;
use crate::process::stdin_program::call;

/// Overhead of WireGuard over IPv6, in bytes. Over IPv4 it is 20 less.
const OVERHEAD: u32 = 80;
const MTU_MAX: u32 = 1500 - OVERHEAD;
/// Minimum MTU of IPv6.
const MTU_MIN: u32 = 1280;

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
}

/// A route of `ip -json route`.
#[derive(Deserialize)]
struct Route {
    dst: String,
    dev: Option<String>,
    gateway: Option<IpAddr>,
}

/// The facts about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostNetwork {
    pub(super) reserved: Vec<Cidr>,
    pub(super) mtu: u32,
}

/// Reads the facts, without the worker's own interfaces.
pub(super) async fn observe(own: &[String]) -> Result<HostNetwork, String> {
    let links = call("ip", &["-json", "-4", "address", "show"], "").await?;
    let routes = call("ip", &["-json", "-4", "route", "show"], "").await?;
    let mut host = build_host_network(&links, &routes, own).map_err(|error| format!("ip: {error}"))?;
    let resolvers = read_resolv_conf();
    host.reserved.extend(parse_dns_servers(&resolvers));
    Ok(host)
}

/// Parses the DNS servers of a resolver configuration. Pure.
fn parse_dns_servers(text: &str) -> impl Iterator<Item = Cidr> {
    let addresses = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    addresses.filter_map(|address| address.trim().parse().ok().map(Cidr::of))
}

/// Builds the facts from the output of `ip`. Pure.
fn build_host_network(links: &str, routes: &str, own: &[String]) -> Result<HostNetwork, serde_json::Error> {
    let (links, routes): (Vec<Link>, Vec<Route>) = (parse(links)?, parse(routes)?);
    let is_other = |name: &Option<String>| name.as_ref().is_none_or(|name| !own.contains(name));
    let mut reserved = Vec::new();
    for link in links.iter().filter(|link| is_other(&link.ifname)) {
        let addresses = link.addr_info.iter().filter_map(|address| address.local);
        reserved.extend(addresses.map(Cidr::of));
    }
    for route in routes.iter().filter(|route| is_other(&route.dev)) {
        reserved.extend(route.gateway.map(Cidr::of));
        // A wider range, such as a VPN's route for all private addresses, may contain Pod ranges.
        reserved.extend(parse_destination(&route.dst).filter(|range| is_private(*range)));
    }
    let uplink = routes.iter().find(|route| route.dst == "default");
    let uplink = uplink.and_then(|route| links.iter().find(|link| link.ifname == route.dev));
    let mtu = uplink.and_then(|link| link.mtu).unwrap_or(MTU_MAX + OVERHEAD);
    Ok(HostNetwork {
        reserved,
        mtu: mtu.saturating_sub(OVERHEAD).clamp(MTU_MIN, MTU_MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKS: &str = r#"[
        {"ifname": "lo", "mtu": 65536, "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
        {},
        {"ifname": "eth0", "mtu": 1460, "addr_info": [{"local": "192.168.1.2", "prefixlen": 24}]},
        {"ifname": "yoke0", "mtu": 1380, "addr_info": [{"local": "10.1.2.1", "prefixlen": 24}]}
    ]"#;
    const ROUTES: &str = r#"[
        {"dst": "default", "gateway": "172.31.1.1", "dev": "eth0", "flags": []},
        {"dst": "10.1.2.0/24", "dev": "yoke0"},
        {"dst": "10.0.0.0/8", "dev": "vpn0"},
        {"dst": "10.7.0.0/16", "dev": "vpn0"},
        {"dst": "10.8.0.1", "dev": "vpn0"},
        {"dst": "192.168.1.0/24", "dev": "eth0"},
        {"type": "unreachable", "dst": "10.9.0.0/16", "metric": 1}
    ]"#;

    #[test]
    fn addresses_of_the_machine_are_reserved() {
        let host = build_host_network(LINKS, ROUTES, &["yoke0".to_owned()]).unwrap();
        let expected = [
            "127.0.0.1/32",
            "192.168.1.2/32",
            "172.31.1.1/32",
            "10.7.0.0/16",
            "10.8.0.1/32",
            "192.168.1.0/24",
            "10.9.0.0/16",
        ];
        assert_eq!(host.reserved, expected.map(|range| range.parse().unwrap()));
        assert!(build_host_network("x", ROUTES, &[]).is_err());
    }

    #[test]
    fn resolvers_are_reserved() {
        let text = "# by hand\nsearch example\nnameserver 10.0.0.2\n nameserver\tfd00::53\nnameserver x\n";
        let found: Vec<_> = parse_dns_servers(text).map(|range| range.to_string()).collect();
        assert_eq!(found, ["10.0.0.2/32", "fd00::53/128"]);
    }

    #[test]
    fn packets_fit_into_those_of_the_uplink() {
        for (uplink, expected) in [(9000, 1420), (1500, 1420), (1460, 1380), (1280, 1280)] {
            let links = format!(r#"[{{"ifname": "eth0", "mtu": {uplink}}}]"#);
            let host = build_host_network(&links, ROUTES, &[]).unwrap();
            assert_eq!(host.mtu, expected, "{uplink}");
        }
        assert_eq!(build_host_network("", "", &[]).unwrap().mtu, 1420, "there is none");
    }
}
