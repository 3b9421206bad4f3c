//! Everything that a spec is validated against.

use std::sync::Arc;

use yoke_api::{KubernetesVersion, Tenant};

use crate::config::Config;
use crate::host_api::cache::ByIdentity;
use crate::model::cluster_summary::ClusterSummary;

/// Everything that a spec is validated against.
#[derive(Debug)]
pub struct ValidationContext<'c, 'o> {
    /// The host's configuration.
    pub config: &'c Config,
    /// The Tenant of the Cluster's namespace, if it exists.
    pub tenant: Option<&'o Tenant>,
    /// Whether the operator created the Cluster's namespace for the Tenant.
    pub namespace_is_tenants: bool,
    /// All Tenants of the host.
    pub tenants: &'o [Arc<Tenant>],
    /// Clusters of its namespace, itself included, and Clusters elsewhere that may claim the same
    /// names.
    pub clusters: &'o [Arc<ClusterSummary>],
    /// Bytes that the stores of the Tenant have reserved at NATS, by identity; stores of deleted
    /// Clusters count too.
    pub reserved: ByIdentity,
    /// The running version, if any.
    pub running: Option<KubernetesVersion>,
    /// The version whose API answered last.
    pub answered: Option<KubernetesVersion>,
}
