//! The nftables table of one run on the machine. Pure.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::link::{LINKS, Run, Uplink};

/// Set of devices on which forwarding was enabled for workers. It lets any later run disable it,
/// even if the worker was killed.
pub(super) const OPENED: &str = "opened";

/// Parameters of the table.
#[derive(Clone, Debug)]
pub(super) struct Table<'a> {
    pub(super) uplink: &'a Uplink,
    /// UDP port at which other workers reach this one, with the built-in Pod network.
    pub(super) wireguard: Option<u16>,
    /// UDP and TCP ports of the DNS relay on the machine's end.
    pub(super) relay: (u16, u16),
    pub(super) opened: &'a BTreeSet<String>,
}

/// Builds an `nft -f` script that creates the table, or replaces it.
///
/// The rules:
/// - The worker uses the machine's address to everyone, and cannot send from any address but its
///   own.
/// - The worker accepts responses, connections from the machine, and packets of other workers at
///   the WireGuard port.
/// - A device on which forwarding was enabled for workers forwards nothing else.
pub(super) fn build_table(table: &Table<'_>) -> String {
    let relay = table.relay;
    let Uplink {
        run, gateway, address, ..
    } = table.uplink;
    let (name, link) = (run.table(), run.link());
    let opened: Vec<_> = table.opened.iter().map(|device| format!("\"{device}\"")).collect();
    let elements = if opened.is_empty() {
        String::new()
    } else {
        format!("\n        elements = {{ {} }}", opened.join(", "))
    };
    let reached = match table.wireguard {
        Some(port) => {
            format!("\n        ip daddr != 127.0.0.0/8 fib daddr type local udp dport {port} dnat ip to {address}")
        }
        None => String::new(),
    };
    format!(
        r#"table inet {name} {{}}
delete table inet {name}
table inet {name} {{
    set {OPENED} {{
        type ifname{elements}
    }}
    chain prerouting {{
        type nat hook prerouting priority dstnat
        iifname "{link}" ip daddr {gateway} udp dport 53 redirect to :{udp}
        iifname "{link}" ip daddr {gateway} tcp dport 53 redirect to :{tcp}{reached}
    }}
    chain output {{
        type nat hook output priority -100{reached}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat
        ip saddr {address} oifname != "{LINKS}*" masquerade
    }}
    chain forward {{
        type filter hook forward priority filter
        iifname "{link}" ip saddr != {address} drop
        iifname "{link}" ct state invalid drop
        oifname "{link}" ct state established,related accept
        oifname "{link}" ct status dnat accept
        oifname "{link}" drop
        iifname @{OPENED} oifname != "{LINKS}*" drop
    }}
}}
"#,
        udp = relay.0,
        tcp = relay.1,
    )
}

/// The output of `nft -j`.
#[derive(Deserialize)]
struct NftOutput {
    nftables: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    table: Option<Named>,
    set: Option<Set>,
}

#[derive(Deserialize)]
struct Named {
    family: String,
    name: String,
}

#[derive(Deserialize)]
struct Set {
    #[serde(default)]
    elem: Vec<serde_json::Value>,
}

/// Parses the runs from `nft -j list tables`.
pub(super) fn parse_runs(json: &str) -> Vec<Run> {
    let tables = parse(json).into_iter().filter_map(|object| object.table);
    let of_workers = tables.filter(|table| table.family == "inet");
    of_workers.filter_map(|table| Run::of_table(&table.name)).collect()
}

/// Parses the devices from `nft -j list set`. Their names become parts of file paths.
pub(super) fn parse_opened(json: &str) -> BTreeSet<String> {
    let sets = parse(json).into_iter().filter_map(|object| object.set);
    let elements = sets.flat_map(|set| set.elem);
    let names = elements.filter_map(|element| element.as_str().map(str::to_owned));
    names.filter(|name| is_device(name)).collect()
}

/// Reports whether a name can be a device's, and needs no quoting in an `nft` file.
pub(super) fn is_device(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@:".contains(&byte);
    !["", ".", "..", "all", "default"].contains(&name) && name.len() <= 15 && name.bytes().all(plain)
}

fn parse(json: &str) -> Vec<Object> {
    let parsed: Result<NftOutput, _> = serde_json::from_str(json);
    parsed.map(|parsed| parsed.nftables).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_of_one_run() {
        let build = |wireguard, opened: &[&str]| {
            build_table(&Table {
                uplink: &Uplink::example(),
                wireguard,
                relay: (4053, 5053),
                opened: &opened.iter().map(ToString::to_string).collect(),
            })
        };
        let text = build(Some(51821), &["eth0", "wlan0.1"]);
        for line in [
            "table inet yoke-uplink-00000000 {}\ndelete table inet yoke-uplink-00000000\n",
            "        elements = { \"eth0\", \"wlan0.1\" }\n",
            "        iifname \"ykup00000000\" ip daddr 198.18.0.1 udp dport 53 redirect to :4053\n",
            "        iifname \"ykup00000000\" ip daddr 198.18.0.1 tcp dport 53 redirect to :5053\n",
            "fib daddr type local udp dport 51821 dnat ip to 198.18.0.2\n",
            "        ip saddr 198.18.0.2 oifname != \"ykup*\" masquerade\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(
            text.matches("dnat ip to").count(),
            2,
            "from elsewhere, and from the machine"
        );
        let text = build(None, &[]);
        assert!(!text.contains("elements") && !text.contains("dnat ip to"), "{text}");
    }

    #[test]
    fn the_output_of_nft_is_parsed() {
        let tables = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"table": {"family": "inet", "name": "yoke-uplink-00c0ffee", "handle": 2}},
            {"table": {"family": "ip", "name": "yoke-uplink-00c0ffed", "handle": 3}},
            {"table": {"family": "inet", "name": "yoke-worker-00c0ffee", "handle": 4}}]}"#;
        assert_eq!(parse_runs(tables), [Run::new(0x00c0_ffee)]);
        let set = r#"{"nftables": [{"metainfo": {}}, {"set": {"family": "inet", "name": "opened", "type": "ifname",
            "elem": ["eth0", "../x", "all", "a b", 7, "wlan0.1"]}}]}"#;
        assert_eq!(parse_opened(set), ["eth0", "wlan0.1"].map(str::to_owned).into());
        let none = r#"{"nftables": [{"set": {"name": "opened", "type": "ifname"}}]}"#;
        for text in [none, "", "x"] {
            assert!(parse_opened(text).is_empty() && parse_runs(text).is_empty(), "{text}");
        }
    }
}
