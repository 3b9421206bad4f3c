//! A control plane's pod that was lost together with its node. Pure.

use std::collections::BTreeSet;

/// A pod that was lost with its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPod {
    /// UID of the pod.
    pub pod: String,
    /// Names of the nodes that were lost recently. The replacement pod should avoid them.
    pub nodes: BTreeSet<String>,
}
