//! The nftables table of the Pod network. Pure.

use yoke_api::Cidr;

/// Parameters of the table.
#[derive(Clone, Debug)]
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    pub(super) bridge: &'a str,
    pub(super) tunnel: &'a str,
    /// This worker's Pod range.
    pub(super) own: Cidr,
    /// Pod ranges of other workers.
    pub(super) peers: &'a [Cidr],
    /// Whether the worker has a network of its own, in which only the cluster listens.
    pub(super) is_alone: bool,
}

/// Builds an `nft -f` script that creates the table, or replaces it.
///
/// The rules:
/// - Pods use their own addresses among each other, and the machine's address to everyone else.
/// - Packets to other workers' Pods leave through the tunnel only, even while the tunnel does not
///   exist.
/// - Packets from other workers' Pods are accepted from the tunnel only.
/// - Packets from the tunnel reach Pods only. The machine and the networks behind it accept only
///   responses. The exception is an ephemeral worker, whose kubelet is reachable in its own
///   network.
pub(super) fn build_table(table: &Table<'_>) -> String {
    let Table {
        name,
        bridge,
        tunnel,
        own,
        ..
    } = table;
    let peers: Vec<_> = table.peers.iter().map(Cidr::to_string).collect();
    let elements = if peers.is_empty() {
        String::new()
    } else {
        format!("\n        elements = {{ {} }}", peers.join(", "))
    };
    let machine = if table.is_alone {
        String::new()
    } else {
        format!("\n        iifname \"{tunnel}\" ip protocol != icmp drop")
    };
    format!(
        r#"table inet {name} {{}}
delete table inet {name}
table inet {name} {{
    set peers {{
        type ipv4_addr
        flags interval{elements}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat
        ip saddr {own} ip daddr != 224.0.0.0/4 oifname != {{ "{bridge}", "{tunnel}" }} masquerade
    }}
    chain forward {{
        type filter hook forward priority filter
        iifname "{tunnel}" oifname != "{bridge}" drop
        iifname != "{tunnel}" ip saddr @peers drop
    }}
    chain input {{
        type filter hook input priority filter
        iifname "{tunnel}" ct state established,related accept{machine}
        iifname != "{tunnel}" ip saddr @peers drop
    }}
    chain leaving {{
        type filter hook postrouting priority filter
        oifname != "{tunnel}" ip daddr @peers drop
    }}
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_workers_pods_are_named() {
        let own = "10.1.2.0/24".parse().unwrap();
        let ranges = ["10.1.3.0/24", "10.1.4.0/24"].map(|range| range.parse().unwrap());
        let build = |peers, is_alone| {
            build_table(&Table {
                name: "t",
                bridge: "b",
                tunnel: "w",
                own,
                peers,
                is_alone,
            })
        };
        assert!(build(&ranges, false).contains("        elements = { 10.1.3.0/24, 10.1.4.0/24 }\n"));
        assert!(!build(&[], false).contains("elements"));
        let kept = "        iifname \"w\" ip protocol != icmp drop\n";
        assert!(build(&[], false).contains(kept));
        assert!(!build(&[], true).contains(kept));
    }
}
