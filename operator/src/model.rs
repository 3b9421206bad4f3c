//! Types that several controllers share. Pure: no client, clock or configuration of a process.

pub(crate) mod cluster_summary;
pub mod conditions;
pub mod control_plane;
pub mod dynamic;
pub mod host_node;
pub mod identity;
pub mod join_token_term;
pub mod lost_pod;
pub mod not_ready;
pub(crate) mod pod_security;
pub mod public_ranges;
pub mod quantity;
pub(crate) mod rbac;
pub mod refusal;
pub mod tenant_namespace;

/// Name of the Cluster controller, in metrics and field managers.
pub const CLUSTER_CONTROLLER: &str = "cluster";
