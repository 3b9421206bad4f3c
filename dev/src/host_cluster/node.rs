//! A node of the host cluster, identified by a number. The stack starts with the first node, which
//! also runs the host's control plane. Other nodes are added later.

use crate::command::Command;
use crate::files::list_entries;
use crate::layout::{FIRST_NODE, Layout};
use crate::names::NODE_NAME;
use crate::network::netns::enter;
use crate::network::plan::{NetworkPlan, NodePlan};

/// One node of the host cluster.
#[derive(Debug, Clone)]
pub struct Node {
    /// Number, starting at 1.
    pub number: u8,
    /// Name of its Node object.
    pub name: String,
    /// The clone's folders, and this node's own folders.
    pub layout: Layout,
    /// Addresses and link names of the node.
    pub plan: NodePlan,
    /// Name of its network namespace.
    pub namespace: String,
    /// Network namespace of its link's other end; `None` means the root namespace.
    pub outside: Option<String>,
}

impl Node {
    /// The node with this number. It need not exist.
    pub fn new(layout: &Layout, network: &NetworkPlan, number: u8) -> Self {
        let stack = layout.stack_name();
        let (name, namespace, outside) = match number {
            FIRST_NODE => (NODE_NAME.to_owned(), stack, None),
            _ => (
                format!("{NODE_NAME}-{number}"),
                format!("{stack}-node-{number}"),
                Some(stack),
            ),
        };
        Self {
            number,
            name,
            layout: layout.for_node(number),
            plan: network.node(number),
            namespace,
            outside,
        }
    }

    /// All added nodes, found by their folders.
    pub fn added(layout: &Layout, network: &NetworkPlan) -> Vec<Self> {
        let mut numbers: Vec<u8> = list_entries(&layout.nodes())
            .iter()
            .filter_map(|folder| folder.file_name()?.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let node = |number| Self::new(layout, network, number);
        numbers.into_iter().map(node).collect()
    }

    /// A command for `program` in the node's network namespace.
    pub fn enter(&self, program: &str) -> Command {
        enter(&self.namespace, program)
    }
}
