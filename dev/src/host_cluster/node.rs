//! A node of the host cluster: a value with a number. The first one comes with the stack and runs its control plane, too;
//! the others are added.

use crate::command::Command;
use crate::host_cluster::NODE_NAME;
use crate::layout::{FIRST_NODE, Layout};
use crate::leftovers::entries;
use crate::network::plan::NodePlan;
use crate::network::{Network, enter};

/// One node.
#[derive(Debug, Clone)]
pub struct Node {
    /// From 1 on.
    pub number: u8,
    /// Of its Node.
    pub name: String,
    /// The clone's folders, and this node's own.
    pub layout: Layout,
    /// Its addresses, and names of its links.
    pub plan: NodePlan,
    /// Name of its network namespace.
    pub namespace: String,
    /// The network namespace of its link's other end, if it is not the root namespace.
    pub outside: Option<String>,
}

impl Node {
    /// The node with this number, whether there is one or not.
    pub fn new(layout: &Layout, network: &Network, number: u8) -> Self {
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
            layout: layout.of_node(number),
            plan: network.plan.node(number),
            namespace,
            outside,
        }
    }

    /// The nodes that were added, by their folders.
    pub fn added(layout: &Layout, network: &Network) -> Vec<Self> {
        let mut numbers: Vec<u8> = entries(&layout.nodes())
            .iter()
            .filter_map(|folder| folder.file_name()?.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let node = |number| Self::new(layout, network, number);
        numbers.into_iter().map(node).collect()
    }

    /// A program in its network.
    pub fn enter(&self, program: &str) -> Command {
        enter(&self.namespace, program)
    }
}
