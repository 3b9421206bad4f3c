//! Wires the controllers to each other.

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Semaphore;
use yoke_api::Cluster;
use yoke_runtime::Metrics;

use crate::cluster;
use crate::cluster::context::{COPIED_AT_ONCE, SLOW_AT_ONCE};
use crate::cluster::failover::start_queue::{QueueLimits, Queues, StartQueue};
use crate::cluster::metrics::ClusterMetrics;
use crate::cluster::tenant_cluster::endpoint_guard::{EndpointGuardHandle, EndpointGuardTask};
use crate::csr_signer::{self, SignerHandle, SignerMetrics};
use crate::host_api::Host;
use crate::host_api::apply::Applier;
use crate::host_nodes::drain::{DrainNotices, TakeoverMetrics};
use crate::host_nodes::loss::{self, LossMetrics, LostPods};
use crate::metrics::ReconcileMetrics;
use crate::model::CLUSTER_CONTROLLER;
use crate::nats::Nats;
use crate::node_reaper::{self, ReapIntervals, ReaperHandle, ReaperMetrics};
use crate::tenant_client::{TenantApis, build_base};
use crate::tenant_slots::Slots;
use crate::{join_token, tenant};

/// The context of each controller.
#[derive(Debug)]
pub struct Contexts {
    /// The host.
    pub host: Arc<Host>,
    /// Context of the Cluster controller.
    pub cluster: Arc<cluster::context::Context>,
    /// Context of the Tenant controller.
    pub tenant: Arc<tenant::Context>,
    /// Context of the JoinToken controller.
    pub join_token: Arc<join_token::Context>,
    /// Context of the detection of lost nodes.
    pub loss: Arc<loss::Context>,
}

/// Tasks beside the controllers, and what they are started with.
pub struct Tasks {
    /// Answers requests for certificates.
    pub signer: csr_signer::SignerTask,
    /// Metrics of the signer.
    pub signer_metrics: SignerMetrics,
    /// Removes silent Nodes.
    pub reaper: node_reaper::ReaperTask,
    /// Metrics of the reaper.
    pub reaper_metrics: ReaperMetrics,
    /// Corrects the API's addresses in tenant clusters.
    pub endpoint_guard: EndpointGuardTask,
    /// Clusters that an admission queue admits.
    pub due: BoxStream<'static, ObjectRef<Cluster>>,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

impl Contexts {
    /// Creates the contexts of an operator that starts, and the tasks that it runs.
    pub fn new(
        host: Arc<Host>,
        nats: Nats,
        nats_ca: String,
        reap_intervals: ReapIntervals,
        metrics: &Metrics,
    ) -> (Self, Tasks) {
        let (guard, endpoint_guard) = EndpointGuardHandle::new();
        let (creations, creation_admissions) = StartQueue::new(QueueLimits::MADE);
        let (restarts, restart_admissions) = StartQueue::new(QueueLimits::RESTARTED);
        let (starts, start_admissions) = StartQueue::new(QueueLimits::of_starts(0));
        let (signer, signing) = SignerHandle::new();
        let (reaper, reaping) = ReaperHandle::new(reap_intervals);
        let apis = Arc::new(TenantApis::default());
        let losses = Arc::new(LostPods::default());
        let reconciles = ReconcileMetrics::new(metrics);
        let cluster = cluster::context::Context {
            applier: Applier::new(host.client.clone(), CLUSTER_CONTROLLER),
            base_objects: build_base(&host.config.ingress.address, host.config.ingress.port),
            host: Arc::clone(&host),
            nats: nats.clone(),
            nats_ca,
            apis: Arc::clone(&apis),
            guard,
            signer,
            reaper,
            queues: Queues {
                creations,
                restarts,
                starts,
            },
            losses: Arc::clone(&losses),
            notices: Arc::new(DrainNotices::new(TakeoverMetrics::new(metrics))),
            slow_cluster_slots: Slots::new(SLOW_AT_ONCE),
            copying: Semaphore::new(COPIED_AT_ONCE),
            memory: Arc::default(),
            reconciles: reconciles.clone(),
            metrics: ClusterMetrics::new(metrics),
        };
        let contexts = Self {
            cluster: Arc::new(cluster),
            tenant: Arc::new(tenant::Context::new(
                Arc::clone(&host),
                nats.clone(),
                reconciles.clone(),
            )),
            join_token: Arc::new(join_token::Context::new(
                Arc::clone(&host),
                Arc::clone(&apis),
                reconciles,
            )),
            loss: Arc::new(loss::Context {
                host: Arc::clone(&host),
                nats,
                apis,
                losses,
                metrics: LossMetrics::new(metrics),
            }),
            host,
        };
        let tasks = Tasks {
            signer: signing,
            signer_metrics: SignerMetrics::new(metrics),
            reaper: reaping,
            reaper_metrics: ReaperMetrics::new(metrics),
            endpoint_guard,
            due: stream::select_all([creation_admissions, restart_admissions, start_admissions]).boxed(),
        };
        (contexts, tasks)
    }
}
