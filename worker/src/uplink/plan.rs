//! Chooses the addresses of an ephemeral worker's link. Pure.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use yoke_api::Cidr;

use super::machine::Seen;
use crate::id::Id;

/// Ranges for subnets, in order of preference: RFC 2544 (benchmarks, unused in real networks), RFC
/// 6598, RFC 1918.
const POOLS: [(Ipv4Addr, u8); 4] = [
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(100, 127, 0, 0), 16),
    (Ipv4Addr::new(172, 30, 0, 0), 16),
    (Ipv4Addr::new(10, 213, 0, 0), 16),
];
/// Prefix length of a subnet: network address, two ends, broadcast address.
const PREFIX: u8 = 30;
/// Routes with at most this prefix length are ignored: some VPNs replace the default route by two
/// routes.
const WHOLE: u8 = 1;

/// Identifies one run of a worker, also among runs in the same folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Run(Id);

impl Run {
    /// Returns the run with this random number.
    pub(crate) fn new(number: u32) -> Self {
        Self(Id::of_number(number))
    }

    /// Name of the machine's end of its link.
    pub(crate) fn link(&self) -> String {
        format!("{LINKS}{}", self.0)
    }

    /// Name of its nftables table on the machine.
    pub(crate) fn table(&self) -> String {
        format!("{TABLES}{}", self.0)
    }

    /// Parses the name of a table.
    pub(super) fn of_table(name: &str) -> Option<Self> {
        let id = name.strip_prefix(TABLES)?.to_owned();
        id.try_into().ok().map(Self)
    }
}

/// Prefix of all links' names. The name of a network interface has at most 15 bytes.
pub(super) const LINKS: &str = "ykup";
const TABLES: &str = "yoke-uplink-";

/// The addresses of an ephemeral worker's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Uplink {
    pub(crate) run: Run,
    /// The machine's end.
    pub(crate) gateway: Ipv4Addr,
    /// Address of the machine, if known.
    pub(crate) address: Ipv4Addr,
    /// Where the machine itself is, as far as it knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) machine: Option<IpAddr>,
}

impl Uplink {
    /// Returns the value for a run that has no link yet.
    pub(crate) fn begin(run: Run) -> Self {
        Self {
            run,
            gateway: Ipv4Addr::UNSPECIFIED,
            address: Ipv4Addr::UNSPECIFIED,
            machine: None,
        }
    }

    /// Returns a value for the support check.
    pub(super) fn example() -> Self {
        let [gateway, address] = [1, 2].map(|last| Ipv4Addr::new(198, 18, 0, last));
        Self {
            gateway,
            address,
            ..Self::begin(Run::new(0))
        }
    }

    pub(super) fn subnet(&self) -> Cidr {
        to_subnet(u32::from(self.gateway))
    }
}

/// Chooses a free subnet, or returns `None`. `machine` is the machine's address if the user names
/// it. `seed` is the start of the search, so that workers that start at the same time rarely choose
/// the same subnet.
pub(super) fn plan(run: &Run, seen: &Seen, machine: Option<IpAddr>, seed: u32) -> Option<Uplink> {
    let subnet = choose(&seen.taken, seed)?;
    Some(Uplink {
        run: run.clone(),
        gateway: Ipv4Addr::from(subnet.checked_add(1)?),
        address: Ipv4Addr::from(subnet.checked_add(2)?),
        machine: machine.or(seen.address),
    })
}

fn choose(taken: &[Cidr], seed: u32) -> Option<u32> {
    let taken: Vec<_> = taken.iter().filter(|range| range.prefix() > WHOLE).collect();
    let mut subnets = POOLS.into_iter().flat_map(|(pool, prefix)| {
        let count = 1_u32 << (PREFIX - prefix);
        let nth = move |more| seed.wrapping_add(more) % count;
        (0..count).map(move |more| u32::from(pool) + (nth(more) << (32 - PREFIX)))
    });
    subnets.find(|subnet| !taken.iter().any(|range| range.overlaps(to_subnet(*subnet))))
}

/// Returns the subnet that contains an address.
fn to_subnet(address: u32) -> Cidr {
    let hosts = 32 - PREFIX;
    let network = Ipv4Addr::from(address >> hosts << hosts);
    let subnet = format!("{network}/{PREFIX}");
    subnet.parse().expect("no bits are set after the prefix")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_with(taken: &[&str], seed: u32) -> Option<Uplink> {
        let seen = Seen {
            taken: taken.iter().map(|range| range.parse().unwrap()).collect(),
            address: Some("192.0.2.7".parse().unwrap()),
            ..Seen::default()
        };
        plan(&Run::new(7), &seen, None, seed)
    }

    #[test]
    fn a_subnet_is_nobody_elses() {
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
        let seen = Seen {
            address: Some("192.0.2.7".parse().unwrap()),
            ..Seen::default()
        };
        for (said, expected) in [(None, "192.0.2.7"), (Some("203.0.113.7"), "203.0.113.7")] {
            let said = said.map(|address: &str| address.parse().unwrap());
            let uplink = plan(&Run::new(7), &seen, said, 0).unwrap();
            assert_eq!(uplink.machine.unwrap().to_string(), expected);
        }
    }

    #[test]
    fn every_run_has_its_own_names() {
        let run = Run::new(0x00c0_ffee);
        assert_eq!(
            (run.link().as_str(), run.table().as_str()),
            ("ykup00c0ffee", "yoke-uplink-00c0ffee")
        );
        assert!(run.link().len() <= 15);
        assert_eq!(Run::of_table(&run.table()), Some(run));
        for name in [
            "yoke-uplink-",
            "yoke-worker-00c0ffee",
            "yoke-uplink-00c0ffee0",
            "filter",
        ] {
            assert_eq!(Run::of_table(name), None, "{name}");
        }
    }
}
