//! Starts, restarts and takeovers of a control plane: on a failed pod, a lost node, or a node that leaves.

pub mod admission;
pub(crate) mod node_loss;
pub(crate) mod pod_deletion;
pub mod pods;
pub mod start_queue;
pub(crate) mod takeover;
pub mod takeover_plan;
