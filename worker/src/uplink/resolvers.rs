//! Builds the resolver configuration of an ephemeral worker's network. Pure.
//!
//! A resolver on loopback is reachable from the machine only, and the link has no IPv6. The
//! machine's end of the link replaces such servers: its relay forwards the queries to them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

/// Server that the C library uses if none is configured.
const DEFAULT_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Replaces servers that are unreachable from the worker's network by the relay.
pub(super) fn translate(text: &str, relay: Ipv4Addr) -> String {
    let mut servers: Vec<IpAddr> = Vec::new();
    let mut others = String::new();
    for line in text.lines() {
        match parse_server(line) {
            None => _ = writeln!(others, "{line}"),
            Some(server) => {
                let server = server.filter(|server| is_reachable(*server)).unwrap_or(relay.into());
                if !servers.contains(&server) {
                    servers.push(server);
                }
            }
        }
    }
    if servers.is_empty() {
        servers.push(relay.into());
    }
    let mut translated = String::new();
    for server in servers {
        let _ = writeln!(translated, "nameserver {server}");
    }
    translated + &others
}

/// Returns the server to which a relay forwards: the first unreachable one.
pub(super) fn find_relay_target(text: &str) -> IpAddr {
    let servers = text.lines().filter_map(parse_server).flatten();
    let mut far = servers.map(of_this_machine).filter(|server| !is_reachable(*server));
    far.next().unwrap_or(DEFAULT_SERVER)
}

/// Parses a `nameserver` line. Returns `Some(None)` if its value is not a plain address.
fn parse_server(line: &str) -> Option<Option<IpAddr>> {
    let rest = line.trim().strip_prefix("nameserver")?;
    rest.starts_with(char::is_whitespace).then(|| rest.trim().parse().ok())
}

fn is_reachable(server: IpAddr) -> bool {
    matches!(server, IpAddr::V4(v4) if !v4.is_loopback() && !v4.is_unspecified() && !v4.is_link_local())
}

fn of_this_machine(server: IpAddr) -> IpAddr {
    if server.is_unspecified() {
        DEFAULT_SERVER
    } else {
        server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relay_forwards_to_unreachable_servers() {
        let relay = Ipv4Addr::new(198, 18, 0, 1);
        for (rule, text, translated, relayed) in [
            (
                "reached",
                "nameserver 192.0.2.1\n",
                "nameserver 192.0.2.1\n",
                "127.0.0.1",
            ),
            (
                "a stub",
                "# by hand\nnameserver 127.0.0.53\noptions edns0\nsearch lan\n",
                "nameserver 198.18.0.1\n# by hand\noptions edns0\nsearch lan\n",
                "127.0.0.53",
            ),
            (
                "some of each",
                "nameserver 192.0.2.1\nnameserver\t::1\nnameserver fd00::1\nnameserver 127.0.0.1\n",
                "nameserver 192.0.2.1\nnameserver 198.18.0.1\n",
                "::1",
            ),
            (
                "of a link",
                "nameserver fe80::1%eth0\n",
                "nameserver 198.18.0.1\n",
                "127.0.0.1",
            ),
            ("none", "", "nameserver 198.18.0.1\n", "127.0.0.1"),
            ("anywhere", "nameserver 0.0.0.0", "nameserver 198.18.0.1\n", "127.0.0.1"),
            (
                "another word",
                "nameservers 1\n",
                "nameserver 198.18.0.1\nnameservers 1\n",
                "127.0.0.1",
            ),
        ] {
            assert_eq!(translate(text, relay), translated, "{rule}");
            assert_eq!(find_relay_target(text).to_string(), relayed, "{rule}");
        }
    }
}
