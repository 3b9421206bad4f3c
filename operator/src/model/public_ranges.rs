//! Address ranges with a special meaning on the Internet.

/// Ranges that are not globally reachable: private, shared, link-local, loopback, benchmarking,
/// multicast and reserved. From IANA's special-purpose registries, as of 2026.
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
    // IPv6 ranges outside global unicast, and those that lead to IPv4 addresses.
    "::/3",
    "2002::/16",
    "4000::/2",
    "8000::/1",
    "2001::/32",
];

#[cfg(test)]
mod tests {
    use yoke_api::network::Cidr;

    use super::*;

    #[test]
    fn no_public_address_is_private() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
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
}
