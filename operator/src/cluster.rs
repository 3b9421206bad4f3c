//! The Cluster controller. It reads one Cluster and its objects from the watch caches, and writes
//! host objects, status and events.
//!
//! ```text
//!  observe ─▶ requests ─▶ verdict ─▶ decide ─▶ execute ─▶ report
//!  reads      changes to  may the    one       writes     status, events,
//!  a View     sleep, wake, spec be    Action    to host    metrics, when to
//!             or expire   applied              and NATS   reconcile again
//! ```
//!
//! The steps `requests`, `verdict` and `decide` are pure. `execute` calls what the action needs:
//! `apply` for an accepted spec, `lifecycle::maintain` for a refused or paused one. A Cluster that is
//! being deleted goes to `lifecycle::delete` instead.

pub mod accepted;
mod apply;
pub mod context;
pub mod credentials;
mod decide;
mod execute;
pub mod failover;
pub(crate) mod history;
pub(crate) mod ingress_config;
pub(crate) mod intervals;
mod jitter;
pub mod lifecycle;
pub mod memory;
pub mod metrics;
pub mod namespace;
pub(crate) mod network_access;
pub(crate) mod object;
mod observe;
pub(crate) mod observed;
pub mod outcome;
pub(crate) mod ownership;
mod report;
mod requests;
pub(crate) mod requeue;
pub mod resources;
pub mod sleep;
pub mod status;
mod stop;
pub mod store;
pub mod tenant_cluster;
pub mod validate;
mod verdict;

pub(crate) use crate::cluster::credentials::retained_stores::find_retained_stores;
pub use crate::cluster::failover::start_queue::QueueLimits;
pub(crate) use crate::cluster::ownership::is_of_tenant;
pub(crate) use crate::cluster::tenant_cluster::konnectivity::agents_are_due;
pub use crate::model::CLUSTER_CONTROLLER as CONTROLLER;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action as Requeue;
use kube::runtime::reflector::ObjectRef;
use yoke_api::Cluster;
use yoke_runtime::Drain;

use crate::cluster::context::Context;
use crate::cluster::sleep::state::SleepState;
use crate::cluster::stop::Stop;
use crate::error::ReconcileError;
use crate::model::CLUSTER_CONTROLLER;

/// A Cluster whose last reconcile took at least this long counts as slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Interval for counting Clusters by phase, for metrics.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// Requeue delay after a concurrent change; not every change produces a watch event.
const CONFLICT_REQUEUE: Duration = Duration::from_secs(1);

/// Reconciles one Cluster as far as is possible now, and returns when to reconcile it again.
pub async fn reconcile(key: ObjectRef<Cluster>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    let started = Instant::now();
    let Some(cluster) = context.host.caches.clusters.get(&key) else {
        return Ok(Requeue::await_change());
    };
    let id = cluster.id();
    let is_slow = id
        .as_ref()
        .is_some_and(|id| context.memory.last_duration(id) >= SLOW_AFTER);
    let tenant = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let slot = is_slow.then(|| context.slow_cluster_slots.enter(tenant));
    if matches!(slot, Some(None)) {
        return Ok(Requeue::requeue(jitter::up_to_double(CONFLICT_REQUEUE)));
    }
    // Boxed because the futures are large: they have room for every await below, and hundreds run at
    // once.
    let result = match cluster.metadata.deletion_timestamp.is_some() {
        true => Box::pin(lifecycle::delete::delete_cluster(&context, &cluster)).await,
        false => match Box::pin(reconcile_existing(&context, &cluster)).await {
            Ok(requeue) => Ok(requeue),
            Err(Stop::Changed) => Ok(Requeue::requeue(CONFLICT_REQUEUE)),
            Err(Stop::NoIdentity) => Ok(Requeue::await_change()),
            Err(Stop::Failed(error)) => Err(error),
        },
    };
    let duration = started.elapsed();
    if let Some(id) = &id {
        context
            .memory
            .update_if_running(id, |running| running.last_duration = duration);
    }
    context
        .reconciles
        .reconciled(CLUSTER_CONTROLLER, duration.as_secs_f64());
    result
}

async fn reconcile_existing(context: &Context, cluster: &Cluster) -> Result<Requeue, Stop> {
    let cluster = object::ensure_identity(context, cluster).await?.ok_or(Stop::Changed)?;
    let now = Timestamp::now();
    let mut view = observe::observe(context, cluster, now).await?;
    let requests = requests::collect(&view, now);
    let verdict = verdict::validate(&view);
    let action = decide::decide(&view, verdict, &requests);
    let executed = execute::execute(context, &mut view, &requests, action).await?;
    Ok(report::report(context, &view, executed).await?)
}

/// Backoff per Cluster after failures in a row: 0.5 s after the first, doubled up to 64 s, with
/// jitter.
pub fn on_error(key: &ObjectRef<Cluster>, error: &ReconcileError, context: &Context) -> Requeue {
    context.reconciles.failed(CLUSTER_CONTROLLER, error.reason());
    tracing::warn!(
        namespace = key.namespace,
        cluster = key.name,
        error = %crate::chain(error),
        "Cluster reconcile failed"
    );
    let cluster = context.host.caches.clusters.get(key);
    let desired = |cluster: &Cluster| (cluster.metadata.generation, SleepState::of(cluster).is_asleep());
    let known = cluster.and_then(|cluster| Some((cluster.id()?, desired(&cluster))));
    let failures = known.map_or(1, |(id, desired)| {
        let mut count = 1;
        context.memory.update(&id, |memory| {
            // Failures with another spec, or in the other run state, do not count for this one.
            let before = memory.failures.filter(|(known, _)| *known == desired);
            count = before.map_or(0, |(_, count)| count).saturating_add(1);
            memory.failures = Some((desired, count));
        });
        count
    });
    Requeue::requeue(jitter::up_to_tenth(
        Duration::from_millis(250) * 2_u32.pow(failures.min(8)),
    ))
}

/// Publishes the number of Clusters by phase as a metric, until the drain starts.
pub async fn count_phases(context: Arc<Context>, drain: Drain) {
    while drain.until_started(tokio::time::sleep(COUNT_EVERY)).await.is_some() {
        publish_phase_counts(&context);
    }
}

fn publish_phase_counts(context: &Context) {
    let clusters = context.host.caches.clusters.summaries();
    let phases: Vec<_> = clusters.iter().map(|cluster| cluster.phase).collect();
    context.metrics.count_clusters(&phases);
}
