//! Names and addresses of an ephemeral worker's link to the machine. Pure.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use yoke_api::Cidr;

use crate::id::Id;

/// Prefix length of a subnet: network address, two ends, broadcast address.
pub(super) const PREFIX: u8 = 30;
/// Prefix of all links' names. The name of a network interface has at most 15 bytes.
pub(super) const LINKS: &str = "ykup";
const TABLES: &str = "yoke-uplink-";

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
    pub(crate) fn unassigned(run: Run) -> Self {
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
            ..Self::unassigned(Run::new(0))
        }
    }

    pub(super) fn subnet(&self) -> Cidr {
        to_subnet(u32::from(self.gateway))
    }
}

/// Returns the subnet that contains an address.
pub(super) fn to_subnet(address: u32) -> Cidr {
    let hosts = 32 - PREFIX;
    let network = Ipv4Addr::from(address >> hosts << hosts);
    let subnet = format!("{network}/{PREFIX}");
    subnet.parse().expect("no bits are set after the prefix")
}

#[cfg(test)]
mod tests {
    use super::*;

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
