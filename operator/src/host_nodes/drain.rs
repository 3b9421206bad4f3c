//! Watches for nodes of the host that are about to shut down, and starts planned takeovers: another
//! pod takes over each control plane first, on another node.
//!
//! - A node is about to shut down if its Node has a configured taint, or its kubelet reports the
//!   shutdown.
//! - A takeover also starts for a single pod that is terminating.
//!
//! ```text
//!  each second: Nodes with such a taint ─▶ pods on them ─plan.rs─▶ DrainNotices ─▶ each of their Clusters is requeued
//!      ─▶ another pod is standby, then takes over (cluster/failover/takeover.rs)
//!  reconciliation: the pod that serves is terminating ─▶ DrainNotices
//! ```
//!
//! See docs/adr/0023-planned-takeover.md.

mod metrics;
pub mod plan;

pub use crate::host_nodes::drain::metrics::TakeoverMetrics;
pub use crate::host_nodes::drain::plan::{PlannedTakeover, State};

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::SinkExt as _;
use futures::channel::mpsc;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::ObjectRef;
use tokio::time::{MissedTickBehavior, interval};
use yoke_api::Cluster;
use yoke_runtime::Drain;

use crate::host_api::Host;
use crate::model::conditions;

/// Interval of checks of Nodes.
const EVERY: Duration = Duration::from_secs(1);

/// Control planes to take over, by the UID of their pod: the node is about to shut down, or the pod
/// is terminating.
#[derive(Debug)]
pub struct DrainNotices {
    memory: Mutex<Memory>,
    pub(crate) metrics: TakeoverMetrics,
}

#[derive(Debug, Default)]
struct Memory {
    notices: HashMap<String, PlannedTakeover>,
    /// When takeovers were started.
    past: VecDeque<Instant>,
}

impl DrainNotices {
    /// Creates an empty collection.
    pub fn new(metrics: TakeoverMetrics) -> Self {
        Self {
            memory: Mutex::default(),
            metrics,
        }
    }

    /// Returns the takeover state of a pod.
    pub fn of(&self, pod: &str) -> Option<State> {
        Some(self.lock().notices.get(pod)?.state)
    }

    /// Checks all Nodes. Returns the Clusters to requeue.
    pub fn check(&self, host: &Host) -> Vec<ObjectRef<Cluster>> {
        let settings = &host.config.planned_takeover;
        if settings.per_minute == 0 {
            return Vec::new();
        }
        let nodes = host.caches.nodes.state();
        let is_any_draining = nodes.iter().any(|node| plan::is_draining(node, &settings.taints));
        let mut memory = self.lock();
        // Fast path: no node is about to shut down.
        if !is_any_draining && memory.notices.is_empty() {
            return Vec::new();
        }
        let pods = host.caches.pods.state();
        let before = std::mem::take(&mut memory.notices);
        let mut draining = plan::plan_draining(&nodes, &pods, &settings.taints, &before);
        // Only Clusters that are reconciled can be taken over.
        draining.retain(|control_plane| {
            let cluster = host.caches.clusters.get(&control_plane.cluster);
            cluster.is_some_and(|cluster| conditions::is_reconciled(&cluster))
        });
        let now = Instant::now();
        memory.notices = plan::plan_takeovers(&before, draining, &mut memory.past, settings.per_minute, now);
        for (pod, takeover) in &memory.notices {
            if before.get(pod).is_none_or(|known| known.state != takeover.state) {
                log_takeover(&self.metrics, takeover);
            }
        }
        plan::plan_requeues(&before, &memory.notices)
    }

    /// Records that a control plane's pod is terminating, and tracks it until it is gone. Returns
    /// its takeover state; `None` if there is no takeover.
    pub fn record_end(&self, host: &Host, pod: &Pod) -> Option<State> {
        let settings = &host.config.planned_takeover;
        if settings.per_minute == 0 {
            return None;
        }
        let nodes = host.caches.nodes.state();
        let draining = plan::describe_draining(&nodes, pod, &settings.taints)?;
        let uid = draining.pod.clone();
        let Memory { notices, past } = &mut *self.lock();
        let before = notices.get(&uid);
        let takeover = plan::plan_takeover(before, draining, past, settings.per_minute, Instant::now());
        if before.is_none_or(|known| known.state != takeover.state) {
            log_takeover(&self.metrics, &takeover);
        }
        let state = takeover.state;
        notices.insert(uid, takeover);
        Some(state)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        // Every change is one insert or removal, so each entry is complete after a panic.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_takeover(metrics: &TakeoverMetrics, takeover: &PlannedTakeover) {
    let (node, cluster) = (&takeover.node, &takeover.cluster);
    match takeover.state {
        State::StandBy(_) => {
            metrics.count_started();
            let what = if takeover.is_terminating {
                "pod is terminating"
            } else {
                "node is about to shut down"
            };
            tracing::info!(node, %cluster, what, "another pod takes over");
        }
        State::Failed(_) => {
            metrics.count_failed();
            tracing::warn!(node, %cluster, "node is about to shut down, and no standby pod was ready in time");
        }
        State::Nowhere => {
            tracing::warn!(node, %cluster, "node is about to shut down, and no other node can take its control plane")
        }
        State::Waiting => {
            tracing::info!(node, %cluster, "node is about to shut down; the takeover waits for the limit per minute (plannedTakeover.perMinute)")
        }
    }
}

/// Returns whether a pod's control plane could run on another node, by the Nodes' taints.
pub fn has_other(host: &Host, pod: &Pod) -> bool {
    let nodes = host.caches.nodes.state();
    plan::has_other(&nodes, pod, &host.config.planned_takeover.taints)
}

/// Checks Nodes, and requeues Clusters whose control planes are to be taken over, until the drain
/// starts.
pub async fn run(
    host: Arc<Host>,
    notices: Arc<DrainNotices>,
    mut requeues: mpsc::Sender<ObjectRef<Cluster>>,
    drain: Drain,
) {
    if host.config.planned_takeover.per_minute == 0 {
        return;
    }
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while drain.until_started(tick.tick()).await.is_some() {
        for cluster in notices.check(&host) {
            // An error means that the controller has ended. The process ends soon after.
            let _ = requeues.send(cluster).await;
        }
    }
}
