//! Address ranges in CIDR notation. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The text is not an address range.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an address range such as 10.96.0.0/16, with no bits set after the prefix")]
pub struct CidrError(String);

/// An address range: a network address, with no bits set after the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

impl Cidr {
    /// Network address: the first address of the range.
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// Prefix length in bits.
    pub fn prefix(self) -> u8 {
        self.0.prefix_len()
    }

    /// The range that contains only `address`.
    pub fn of(address: IpAddr) -> Self {
        Self(address.into())
    }

    /// The address after the network address. In a Service range, the Service `default/kubernetes`
    /// has it.
    pub fn first_host(self) -> IpAddr {
        match self.address() {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().wrapping_add(1)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().wrapping_add(1)).into(),
        }
    }

    /// The address `number` after the network address, if it is in the range.
    pub fn nth(self, number: u32) -> Option<IpAddr> {
        let address: IpAddr = match self.address() {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().checked_add(number)?).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().checked_add(number.into())?).into(),
        };
        Some(address).filter(|address| self.contains(*address))
    }

    /// Whether `address` is in the range. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Whether both ranges have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.0.contains(&other.0) || other.0.contains(&self.0)
    }

    /// Whether the range is contained in `other` and smaller than it.
    pub fn is_part_of(self, other: Self) -> bool {
        self != other && other.0.contains(&self.0)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || CidrError(text.to_owned());
        // The standard parser of addresses: that of ipnet accepts leading zeros, which other programs
        // read as octal numbers.
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let range = IpNet::new(address, prefix).map_err(|_| wrong())?;
        if range.network() == address {
            Ok(Self(range))
        } else {
            Err(wrong())
        }
    }
}

impl TryFrom<String> for Cidr {
    type Error = CidrError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        for (text, good) in [
            ("10.96.0.0/16", true),
            ("0.0.0.0/0", true),
            ("::/0", true),
            ("fd00::/108", true),
            ("100.64.0.2/32", true),
            ("10.96.0.1/16", false),
            ("10.96.0.0", false),
            ("10.96.0.0/33", false),
            ("fd00::/129", false),
            ("fd00::1/64", false),
            ("10.96.0.0/256", false),
            ("10.96.0.0/", false),
            ("10.96.0.0/16/16", false),
            ("010.96.0.0/16", false),
            (" 10.96.0.0/16", false),
            ("fe80::%1/64", false),
            ("10.96.0.0/-1", false),
            ("name/16", false),
        ] {
            assert_eq!(text.parse::<Cidr>().is_ok(), good, "{text}");
        }
    }

    #[test]
    fn a_part_is_smaller_than_its_range() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        for (part, whole, expected) in [
            ("10.0.0.0/8", "0.0.0.0/0", true),
            ("10.1.0.0/16", "10.0.0.0/8", true),
            ("10.0.0.0/8", "10.0.0.0/8", false),
            ("10.0.0.0/8", "10.1.0.0/16", false),
            ("11.0.0.0/16", "10.0.0.0/8", false),
            ("fd00::/8", "0.0.0.0/0", false),
            ("fd00::/16", "fd00::/8", true),
        ] {
            assert_eq!(cidr(part).is_part_of(cidr(whole)), expected, "{part} of {whole}");
        }
    }

    #[test]
    fn overlap_and_first_host() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        assert_eq!(cidr("10.96.0.0/16").first_host().to_string(), "10.96.0.1");
        assert_eq!(cidr("fd00::/108").first_host().to_string(), "fd00::1");
        for (a, b, expected) in [
            ("10.96.0.0/16", "10.244.0.0/16", false),
            ("10.96.0.0/16", "10.0.0.0/8", true),
            ("10.96.0.0/16", "10.96.3.0/24", true),
            ("0.0.0.0/0", "fd00::/8", false),
            ("fd00::/8", "fd12::/16", true),
            ("fd00::/16", "fd01::/16", false),
            ("10.96.0.0/16", "10.97.0.0/16", false),
        ] {
            assert_eq!(cidr(a).overlaps(cidr(b)), expected, "{a} {b}");
            assert_eq!(cidr(b).overlaps(cidr(a)), expected, "{b} {a}");
        }
    }

    #[test]
    fn addresses_are_counted_from_the_networks_own() {
        for (range, number, expected) in [
            ("10.96.0.0/16", 10, Some("10.96.0.10")),
            ("fd00::/108", 10, Some("fd00::a")),
            ("10.96.0.0/29", 10, None),
            ("255.255.255.248/29", 10, None),
            ("255.255.255.248/29", 7, Some("255.255.255.255")),
            ("10.0.0.1/32", 0, Some("10.0.0.1")),
            ("10.0.0.1/32", 1, None),
        ] {
            let address = range.parse::<Cidr>().unwrap().nth(number);
            assert_eq!(
                address.map(|address| address.to_string()).as_deref(),
                expected,
                "{range}"
            );
        }
    }

    #[test]
    fn addresses_are_in_their_range() {
        for (range, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("10.0.0.1/32", "10.0.0.2", false),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "203.0.113.1", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
        ] {
            let cidr: Cidr = range.parse().unwrap();
            assert_eq!(
                cidr.contains(address.parse().unwrap()),
                expected,
                "{address} in {range}"
            );
            assert_eq!(serde_json::to_string(&cidr).unwrap(), format!("\"{range}\""));
        }
        assert!(serde_json::from_str::<Cidr>("\"10.0.0.1/8\"").is_err());
    }
}
