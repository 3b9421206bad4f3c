//! The worker's table of the packet filter. Pure.

use yoke_api::Cidr;

/// What the table says of.
#[derive(Clone, Debug)]
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    pub(super) bridge: &'a str,
    pub(super) tunnel: &'a str,
    /// Addresses of this worker's Pods.
    pub(super) own: Cidr,
    /// Those of other workers' Pods.
    pub(super) peers: &'a [Cidr],
    /// Whether nobody but the worker is in its network: what listens there is the cluster's.
    pub(super) is_alone: bool,
}

/// What `nft -f` makes the table by, whatever was there before.
///
/// Pods show their own addresses to each other, and the machine's to everybody else. What is for other workers' Pods, or says
/// that it comes from them, goes through the tunnel or not at all, also while there is none. What comes out of the tunnel is
/// for Pods: neither the machine nor what lies behind it is reached from there, but for answers to what it asked. A kubelet in a
/// network of its own is.
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
