//! Groups of Kubernetes whose members are workers.

/// Group of clients with a bootstrap token of a JoinToken.
pub(super) const JOINING_GROUP: &str = "system:bootstrappers:yoke";
/// Group of kubelets.
pub(super) const NODES_GROUP: &str = "system:nodes";
