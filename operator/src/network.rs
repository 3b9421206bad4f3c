//! Address ranges in CIDR notation. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Ranges that are nobody's on the Internet: private, shared, link-local, loopback, for tests, for many, and reserved; by the
/// registries of IANA for special purposes, as of 2026.
pub const PRIVATE: [&str; 16] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
    // Of IPv6 what is not global unicast, and what leads to addresses of IPv4.
    "::/3",
    "2002::/16",
    "4000::/2",
    "8000::/1",
    "2001::/32",
];

/// A text was not an address range.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an address range such as 10.96.0.0/16, with no bits set after the prefix")]
pub struct CidrError(String);

/// An address range: an address with no bits set after the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The first address after the network's own: that of the Service `default/kubernetes` if this is a Service range.
    pub fn first_host(self) -> IpAddr {
        match self.address {
            IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4).wrapping_add(1)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6).wrapping_add(1)).into(),
        }
    }

    /// Whether the two share an address.
    pub fn overlaps(self, other: Self) -> bool {
        let prefix = self.prefix.min(other.prefix);
        self.address.is_ipv4() == other.address.is_ipv4()
            && network_of(self.address, prefix) == network_of(other.address, prefix)
    }

    /// Whether every address of it is one of the other, which has more.
    pub fn is_part_of(self, other: Self) -> bool {
        self.prefix > other.prefix && self.overlaps(other)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || CidrError(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        if prefix > width(address) || network_of(address, prefix) != bits_of(address) {
            return Err(wrong());
        }
        Ok(Self { address, prefix })
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn network_of(address: IpAddr, prefix: u8) -> u128 {
    let host = u32::from(width(address) - prefix);
    if host == 128 {
        0
    } else {
        bits_of(address) >> host << host
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
            ("10.96.0.0/-1", false),
            ("name/16", false),
        ] {
            assert_eq!(text.parse::<Cidr>().is_ok(), good, "{text}");
        }
    }

    #[test]
    fn parts_are_smaller_than_the_whole() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        for (part, whole, expected) in [
            ("10.0.0.0/8", "0.0.0.0/0", true),
            ("10.1.0.0/16", "10.0.0.0/8", true),
            ("10.0.0.0/8", "10.0.0.0/8", false),
            ("10.0.0.0/8", "10.1.0.0/16", false),
            ("11.0.0.0/16", "10.0.0.0/8", false),
            ("fd00::/8", "0.0.0.0/0", false),
        ] {
            assert_eq!(cidr(part).is_part_of(cidr(whole)), expected, "{part} of {whole}");
        }
        assert!(PRIVATE.iter().all(|range| range.parse::<Cidr>().is_ok()));
        let inside = |text: &str| PRIVATE.iter().any(|range| cidr(range).overlaps(cidr(text)));
        for own in [
            "10.96.0.1/32",
            "169.254.169.254/32",
            "100.64.0.2/32",
            "fd00::1/128",
            "fe80::1/128",
            "::ffff:a00:1/128",
        ] {
            assert!(inside(own), "{own}");
        }
        for public in ["192.0.2.1/32", "8.8.8.8/32", "2606:4700::1111/128"] {
            assert!(!inside(public), "{public}");
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
        ] {
            assert_eq!(cidr(a).overlaps(cidr(b)), expected, "{a} {b}");
            assert_eq!(cidr(b).overlaps(cidr(a)), expected, "{b} {a}");
        }
    }
}
