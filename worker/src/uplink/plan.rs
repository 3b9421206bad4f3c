//! Chooses the addresses of an ephemeral worker's link. Pure.

use std::net::{IpAddr, Ipv4Addr};

use yoke_api::Cidr;

use super::link::{PREFIX, Run, Uplink, to_subnet};
use super::machine::MachineNetwork;

/// Ranges for subnets, in order of preference: RFC 2544 (benchmarks, unused in real networks), RFC
/// 6598, RFC 1918.
const POOLS: [(Ipv4Addr, u8); 4] = [
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(100, 127, 0, 0), 16),
    (Ipv4Addr::new(172, 30, 0, 0), 16),
    (Ipv4Addr::new(10, 213, 0, 0), 16),
];
/// Routes with at most this prefix length are ignored: some VPNs replace the default route by two
/// routes.
const DEFAULT_ROUTE_PREFIX_MAX: u8 = 1;

/// Chooses a free subnet, or returns `None`. `machine` is the machine's address if the user names
/// it. `seed` is the start of the search, so that workers that start at the same time rarely choose
/// the same subnet.
pub(super) fn plan(run: &Run, seen: &MachineNetwork, machine: Option<IpAddr>, seed: u32) -> Option<Uplink> {
    let subnet = choose_subnet(&seen.taken, seed)?;
    Some(Uplink {
        run: run.clone(),
        gateway: Ipv4Addr::from(subnet.checked_add(1)?),
        address: Ipv4Addr::from(subnet.checked_add(2)?),
        machine: machine.or(seen.address),
    })
}

fn choose_subnet(taken: &[Cidr], seed: u32) -> Option<u32> {
    let taken: Vec<_> = taken
        .iter()
        .filter(|range| range.prefix() > DEFAULT_ROUTE_PREFIX_MAX)
        .collect();
    let mut subnets = POOLS.into_iter().flat_map(|(pool, prefix)| {
        let count = 1_u32 << (PREFIX - prefix);
        let nth = move |more| seed.wrapping_add(more) % count;
        (0..count).map(move |more| u32::from(pool) + (nth(more) << (32 - PREFIX)))
    });
    subnets.find(|subnet| !taken.iter().any(|range| range.overlaps(to_subnet(*subnet))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_with(taken: &[&str], seed: u32) -> Option<Uplink> {
        let seen = MachineNetwork {
            taken: taken.iter().map(|range| range.parse().unwrap()).collect(),
            address: Some("192.0.2.7".parse().unwrap()),
            ..MachineNetwork::default()
        };
        plan(&Run::new(7), &seen, None, seed)
    }

    #[test]
    fn a_subnet_overlaps_no_other() {
        for (rule, taken, seed, gateway, address) in [
            ("the first", &[][..], 0, "198.18.0.1", "198.18.0.2"),
            ("where the seed says", &[], 5, "198.18.0.21", "198.18.0.22"),
            (
                "the last, and from the start",
                &[],
                0x7fff,
                "198.19.255.253",
                "198.19.255.254",
            ),
            ("one has it", &["198.18.0.0/30"], 0, "198.18.0.5", "198.18.0.6"),
            ("an address is in it", &["198.18.0.2/32"], 0, "198.18.0.5", "198.18.0.6"),
            (
                "the last is taken",
                &["198.19.255.252/30"],
                0x7fff,
                "198.18.0.1",
                "198.18.0.2",
            ),
            (
                "a VPN has the pool",
                &["198.18.0.0/15"],
                0,
                "100.127.0.1",
                "100.127.0.2",
            ),
            (
                "a VPN has half of all",
                &["128.0.0.0/1", "0.0.0.0/1"],
                0,
                "198.18.0.1",
                "198.18.0.2",
            ),
            (
                "so many",
                &["198.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12"],
                1,
                "10.213.0.5",
                "10.213.0.6",
            ),
        ] {
            let uplink = plan_with(taken, seed).unwrap();
            assert_eq!(uplink.gateway.to_string(), gateway, "{rule}");
            assert_eq!(uplink.address.to_string(), address, "{rule}");
            assert!(uplink.subnet().contains(uplink.address.into()), "{rule}");
        }
        let all = ["198.18.0.0/15", "100.64.0.0/10", "172.16.0.0/12", "10.0.0.0/8"];
        assert_eq!(plan_with(&all, 0), None);
    }

    #[test]
    fn a_machine_is_where_it_is_said_to_be() {
        let seen = MachineNetwork {
            address: Some("192.0.2.7".parse().unwrap()),
            ..MachineNetwork::default()
        };
        for (said, expected) in [(None, "192.0.2.7"), (Some("203.0.113.7"), "203.0.113.7")] {
            let said = said.map(|address: &str| address.parse().unwrap());
            let uplink = plan(&Run::new(7), &seen, said, 0).unwrap();
            assert_eq!(uplink.machine.unwrap().to_string(), expected);
        }
    }
}
