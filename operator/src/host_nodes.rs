//! Nodes of the host: the loss of a node, and planned takeovers before a node leaves.

pub mod budget;
pub mod drain;
pub mod loss;
