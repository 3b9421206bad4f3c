//! Everything that the Cluster controller works with.

use std::sync::Arc;

use tokio::sync::Semaphore;
use yoke_api::ClusterId;

use crate::cluster::failover::start_queue::Queues;
use crate::cluster::memory::Memory;
use crate::cluster::metrics::ClusterMetrics;
use crate::cluster::tenant_cluster::endpoint_guard::EndpointGuardHandle;
use crate::csr_signer::SignerHandle;
use crate::host_api::Host;
use crate::host_api::apply::Applier;
use crate::host_nodes::drain::DrainNotices;
use crate::host_nodes::loss::LostPods;
use crate::metrics::ReconcileMetrics;
use crate::nats::Nats;
use crate::node_reaper::ReaperHandle;
use crate::tenant_client::{BaseObjects, TenantApis};
use crate::tenant_slots::Slots;

/// Clusters of one Tenant whose reconciles are slow and run concurrently: half of all concurrent
/// reconciles.
pub const SLOW_AT_ONCE: usize = 16;
/// Clusters whose Secrets are read concurrently. Each read has its own connection to the host API,
/// of some 100 KiB.
pub const COPIED_AT_ONCE: usize = 8;

/// Everything that the Cluster controller works with.
pub struct Context {
    /// The host.
    pub host: Arc<Host>,
    /// Writes to the host API, as this controller.
    pub applier: Applier,
    /// The NATS server of all stores.
    pub nats: Nats,
    /// CA certificate of NATS, which every control plane gets, PEM.
    pub nats_ca: String,
    /// Clients of the tenants' APIs.
    pub apis: Arc<TenantApis>,
    /// Objects that every tenant cluster must have.
    pub base_objects: BaseObjects,
    /// Keeps the API's addresses in tenant clusters correct.
    pub guard: EndpointGuardHandle,
    /// Signs certificates of kubelets.
    pub signer: SignerHandle,
    /// Removes Nodes whose workers are silent.
    pub reaper: ReaperHandle,
    /// Admission to creation, start and restart.
    pub queues: Queues,
    /// Pods that were lost with their nodes.
    pub losses: Arc<LostPods>,
    /// Planned takeovers.
    pub notices: Arc<DrainNotices>,
    /// Slots for Clusters whose reconciles are slow.
    pub slow_cluster_slots: Slots,
    /// Permits to read the Secrets of a Cluster in order to copy them.
    pub copying: Semaphore,
    /// Last observations of sources that cannot be watched.
    pub memory: Arc<Memory>,
    /// Metrics of reconciles.
    pub reconciles: ReconcileMetrics,
    /// Metrics of Clusters.
    pub metrics: ClusterMetrics,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Forgets a cluster.
    pub fn forget(&self, id: &ClusterId) {
        self.memory.forget(id);
        self.apis.forget(id);
        self.nats.forget(id);
        self.queues.finish(id);
    }

    /// Forgets the observations of a cluster that goes to sleep: the next start makes another pod.
    pub fn forget_running(&self, id: &ClusterId) {
        self.memory.forget_running(id);
        self.apis.forget(id);
    }
}
