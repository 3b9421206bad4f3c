//! Pure: derives the addresses and link names of a clone from its name.

use std::fmt;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::layout::FIRST_NODE;

/// Subnet for links: /30 blocks of the shared address space (RFC 6598).
const LINKS: Subnet = Subnet {
    base: Ipv4Addr::new(100, 64, 0, 0),
    prefix: 10,
};

const LINK_PREFIX: u8 = 30;
/// Subnets for Services and pods: /20 blocks.
const SERVICES: Subnet = Subnet {
    base: Ipv4Addr::new(10, 64, 0, 0),
    prefix: 10,
};

const PODS: Subnet = Subnet {
    base: Ipv4Addr::new(10, 128, 0, 0),
    prefix: 10,
};

const CLUSTER_PREFIX: u8 = 20;
/// Prefix of a node's part of the pod subnet. It has more addresses than a kubelet runs pods.
const NODE_PODS_PREFIX: u8 = 22;
/// Prefix of the subnet for links between the first node and the others.
const NODES_PREFIX: u8 = 28;
/// Maximum number of nodes: the number of parts in the pod subnet.
pub const NODES_MAX: u8 = 1 << (NODE_PODS_PREFIX - CLUSTER_PREFIX);
/// Address of cluster DNS: by custom the tenth of the Service subnet.
const DNS_HOST: u32 = 10;

/// An IPv4 subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    /// First address.
    pub base: Ipv4Addr,
    /// Prefix length in bits.
    pub prefix: u8,
}

impl Subnet {
    /// Parses `a.b.c.d/n` or `a.b.c.d`. Returns `None` for other texts, such as `default`.
    pub fn parse(text: &str) -> Option<Self> {
        let (base, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
        Some(Self {
            base: base.parse().ok()?,
            prefix,
        })
    }

    /// The address at `offset` from the first one.
    pub fn host(&self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base).wrapping_add(offset))
    }

    /// Whether the subnets share an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        let shift = 32 - u32::from(self.prefix.min(other.prefix));
        let network = |address: Ipv4Addr| u32::from(address).checked_shr(shift).unwrap_or(0);
        network(self.base) == network(other.base)
    }

    /// Block `number` of length `prefix` inside this subnet. Numbers wrap around.
    fn block(&self, prefix: u8, number: u32) -> Self {
        let count = 1_u32 << (prefix - self.prefix);
        Self {
            base: self.host((number % count) << (32 - u32::from(prefix))),
            prefix,
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// Addresses and link names of one clone's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPlan {
    /// Subnet of the link between root namespace and first node.
    pub link: Subnet,
    /// Address of the root namespace's end.
    pub gateway_ip: Ipv4Addr,
    /// Address of the first node's end.
    pub node_ip: Ipv4Addr,
    /// Subnet of the links between the first node and the others.
    pub nodes: Subnet,
    /// Subnet of the host cluster's pods.
    pub pods: Subnet,
    /// Subnet of the host cluster's Services.
    pub services: Subnet,
    /// Link name of the root namespace's end.
    pub host_link: String,
    /// Link name of the first node's end.
    pub node_link: String,
    /// MTU of the links and of the pods.
    pub mtu: u32,
}

/// Addresses and link names of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlan {
    /// Address of the other end of its link: its default gateway.
    pub gateway_ip: Ipv4Addr,
    /// Address of its own end.
    pub ip: Ipv4Addr,
    /// Prefix length of both addresses.
    pub prefix: u8,
    /// Subnet of its pods.
    pub pods: Subnet,
    /// Link name of the other end.
    pub outer_link: String,
    /// Link name of its own end.
    pub inner_link: String,
    /// Subnets that the other end routes to this node.
    pub behind: Vec<Subnet>,
}

impl NetworkPlan {
    /// Derives the network of the clone called `id`. Each `attempt` gives other subnets, in case
    /// the first ones are taken.
    pub fn derive(id: &str, attempt: u32, mtu: u32) -> Self {
        let digest = Sha256::digest(format!("{id}/{attempt}"));
        let number = |at: usize| u32::from_be_bytes([digest[at], digest[at + 1], digest[at + 2], digest[at + 3]]);
        let link = LINKS.block(LINK_PREFIX, number(0));
        Self {
            link,
            gateway_ip: link.host(1),
            node_ip: link.host(2),
            nodes: LINKS.block(NODES_PREFIX, number(12)),
            pods: PODS.block(CLUSTER_PREFIX, number(4)),
            services: SERVICES.block(CLUSTER_PREFIX, number(8)),
            host_link: host_link(id),
            node_link: format!("yk{id}n"),
            mtu,
        }
    }

    /// Service address of the host API.
    pub fn api_service_ip(&self) -> Ipv4Addr {
        self.services.host(1)
    }

    /// Service address of cluster DNS.
    pub fn dns_service_ip(&self) -> Ipv4Addr {
        self.services.host(DNS_HOST)
    }

    /// Every subnet that must be unused before.
    pub fn subnets(&self) -> [Subnet; 4] {
        [self.link, self.nodes, self.pods, self.services]
    }

    /// Whether its subnets overlap neither each other nor any of `taken`.
    pub fn is_free(&self, taken: &[Subnet]) -> bool {
        let overlaps = |subnet: &Subnet| taken.iter().any(|other| subnet.overlaps(other));
        !self.link.overlaps(&self.nodes) && !self.subnets().iter().any(overlaps)
    }

    /// Plan of the node with this number, from 1 to [`NODES_MAX`]. All other nodes are linked to
    /// the first one.
    pub fn node(&self, number: u8) -> NodePlan {
        let pods = self.pods.block(NODE_PODS_PREFIX, u32::from(number) - 1);
        if number == FIRST_NODE {
            return NodePlan {
                gateway_ip: self.gateway_ip,
                ip: self.node_ip,
                prefix: LINK_PREFIX,
                pods,
                outer_link: self.host_link.clone(),
                inner_link: self.node_link.clone(),
                behind: vec![self.pods, self.nodes],
            };
        }
        let link = self.nodes.block(LINK_PREFIX, u32::from(number) - 2);
        NodePlan {
            gateway_ip: link.host(1),
            ip: link.host(2),
            prefix: LINK_PREFIX,
            pods,
            outer_link: format!("node{number}"),
            inner_link: "eth0".to_owned(),
            behind: vec![pods],
        }
    }
}

/// Link name of the root namespace's end. Interface names have at most 15 characters.
pub fn host_link(id: &str) -> String {
    format!("yk{id}h")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        Subnet::parse(text).expect("a subnet in a test is valid")
    }

    #[test]
    fn every_derived_address_is_inside_its_range() {
        for number in 0..500 {
            let plan = NetworkPlan::derive(&format!("{number:08x}"), 0, 1500);
            let ranges = [
                (plan.link, LINKS),
                (plan.nodes, LINKS),
                (plan.pods, PODS),
                (plan.services, SERVICES),
            ];
            for (part, whole) in ranges {
                assert!(part.overlaps(&whole), "{part} is outside {whole}");
                assert!(
                    u32::from(part.base).trailing_zeros() >= 32 - u32::from(part.prefix),
                    "{part}"
                );
            }
            assert!(plan.host_link.len() <= 15 && plan.node_link.len() <= 15);
        }
    }

    #[test]
    fn a_plan_depends_on_the_clone_and_the_attempt_only() {
        let plan = NetworkPlan::derive("0badcafe", 0, 1400);
        assert_eq!(plan, NetworkPlan::derive("0badcafe", 0, 1400));
        assert_ne!(plan.link, NetworkPlan::derive("0badcaff", 0, 1400).link);
        assert_ne!(plan.link, NetworkPlan::derive("0badcafe", 1, 1400).link);
        assert_eq!(u32::from(plan.node_ip), u32::from(plan.link.base) + 2);
        assert_eq!(u32::from(plan.dns_service_ip()), u32::from(plan.services.base) + 10);
    }

    #[test]
    fn every_node_has_a_part_that_no_other_has() {
        let plan = NetworkPlan::derive("0badcafe", 0, 1500);
        let nodes: Vec<_> = (FIRST_NODE..=NODES_MAX).map(|number| plan.node(number)).collect();
        assert_eq!((nodes.len(), nodes[0].ip), (4, plan.node_ip));
        assert_eq!(
            nodes[0].pods.base, plan.pods.base,
            "where a stack of one node has its bridge"
        );
        for (at, node) in nodes.iter().enumerate() {
            assert!(node.pods.overlaps(&plan.pods) && node.pods.prefix > plan.pods.prefix);
            let ip = Subnet::parse(&node.ip.to_string()).unwrap();
            assert!(ip.overlaps(if at == 0 { &plan.link } else { &plan.nodes }), "{ip}");
            for other in &nodes[..at] {
                assert!(!node.pods.overlaps(&other.pods), "{node:?} {other:?}");
                assert_ne!(node.ip, other.ip);
                assert_ne!(node.outer_link, other.outer_link);
            }
        }
    }

    #[test]
    fn a_plan_is_free_when_nobody_else_has_its_subnets() {
        let plan = NetworkPlan::derive("0badcafe", 0, 1500);
        assert!(plan.is_free(&[subnet("192.168.0.0/16")]));
        for own in plan.subnets() {
            assert!(!plan.is_free(&[own]), "{own}");
        }
        let nodes = plan.link;
        assert!(
            !NetworkPlan { nodes, ..plan }.is_free(&[]),
            "links of both kinds are one"
        );
    }

    #[test]
    fn subnets_overlap_when_one_holds_the_other() {
        let table = [
            ("same", "10.0.0.0/24", "10.0.0.0/24", true),
            ("inside", "10.0.0.0/8", "10.1.2.0/30", true),
            ("around", "10.1.2.0/30", "10.0.0.0/8", true),
            ("beside", "10.1.2.0/30", "10.1.2.4/30", false),
            ("one address", "10.1.2.3", "10.1.2.0/24", true),
            ("everything", "0.0.0.0/0", "10.1.2.0/24", true),
        ];
        for (rule, one, two, expected) in table {
            assert_eq!(subnet(one).overlaps(&subnet(two)), expected, "{rule}");
        }
        assert_eq!(Subnet::parse("default"), None);
    }
}
