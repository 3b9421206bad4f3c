//! Deletes silent Nodes in each cluster whose API is available, if their JoinToken requests that:
//! `reapAfter`.
//!
//! ```text
//!  signer, before it signs: Lease of the Node, label reap-after                                    (tenant_client/node_leases.rs)
//!  successful probe of the API ─keep─▶ Keeper: Leases with that label ─▶ silent? (plan.rs)
//!      ─▶ mark ─▶ taint out-of-service: Kubernetes ends its Pods ─▶ Node deleted, if its Lease has not changed
//!      └─ Lease renewed meanwhile, or its label removed: mark and taint are removed
//! ```
//!
//! Each check takes at most one step per Node, and reads all objects again. Only the number of
//! checks that found a Lease unchanged is in memory: a restarted process counts again. How long the
//! API has been available is in the Cluster's status.

mod metrics;
mod plan;

pub use crate::node_reaper::metrics::ReaperMetrics;
pub use crate::node_reaper::plan::ReapIntervals;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use yoke_api::{Cluster, ClusterId, ConditionType};
use yoke_runtime::Drain;

use crate::host_api::Host;
use crate::model::conditions;
use crate::model::identity::Identity;
use crate::node_reaper::plan::{Liveness, Step, Watch};
use crate::tenant_client::{NODES_MAX, TAINTS_MAX, TenantApi, TenantApiError};

/// Capacity of the channel of clusters to check. A cluster that does not fit is sent again after
/// its next probe.
const CAPACITY: usize = 256;
/// Clusters checked concurrently.
const AT_ONCE: usize = 8;
/// Timeout of one check.
const LIMIT: Duration = Duration::from_secs(15);
/// After a check, the cluster rests this many times as long as the check took. Thus a slow API does
/// not delay other clusters.
const REST: u32 = 10;
/// Maximum number of Nodes that one check marks in one cluster.
const NEW_MAX: usize = 16;

/// Tells the [`ReaperTask`] which clusters have an available API.
#[derive(Clone, Debug)]
pub struct ReaperHandle {
    clusters: mpsc::Sender<WatchedCluster>,
}

/// Owns the observations of Leases.
#[derive(Debug)]
pub struct ReaperTask {
    clusters: mpsc::Receiver<WatchedCluster>,
    intervals: ReapIntervals,
}

/// Everything that the checks need.
struct Context {
    host: Arc<Host>,
    metrics: ReaperMetrics,
}

/// A cluster to check.
#[derive(Clone, Debug)]
struct WatchedCluster {
    identity: Identity,
    api: TenantApi,
}

/// State of a cluster between two checks.
#[derive(Debug, Default)]
struct Known {
    watch: Watch,
    /// Time from which the next check is allowed.
    rests_until: Option<Instant>,
}

impl Known {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|rests_until| now < rests_until)
    }
}

impl ReaperHandle {
    /// Creates a reaper and its keeper.
    pub fn new(intervals: ReapIntervals) -> (Self, ReaperTask) {
        let (sender, clusters) = mpsc::channel(CAPACITY);
        (Self { clusters: sender }, ReaperTask { clusters, intervals })
    }

    /// Checks the Nodes of a cluster whose API answered just now, through the Service and through
    /// the ingress.
    pub(crate) fn keep(&self, identity: &Identity, api: TenantApi) {
        let identity = identity.clone();
        if self.clusters.try_send(WatchedCluster { identity, api }).is_err() {
            tracing::debug!("channel of clusters to check is full; waiting for the next probe");
        }
    }
}

impl ReaperTask {
    /// Checks clusters until the drain starts.
    pub async fn run(mut self, host: Arc<Host>, metrics: ReaperMetrics, drain: Drain) {
        let context = Arc::new(Context { host, metrics });
        let mut known = HashMap::<ClusterId, Known>::new();
        let mut busy = HashSet::new();
        let mut checks = JoinSet::new();
        loop {
            tokio::select! {
                () = drain.started() => return,
                Some(target) = self.clusters.recv(), if checks.len() < AT_ONCE => {
                    let (id, now) = (target.identity.id.clone(), Instant::now());
                    let before = known.get(&id);
                    let waits = before.is_some_and(|known| known.rests(now) || !known.watch.is_due(&self.intervals, now));
                    if !waits && busy.insert(id.clone()) {
                        let watch = known.remove(&id).unwrap_or_default().watch;
                        checks.spawn(check(Arc::clone(&context), target, watch, self.intervals));
                    }
                }
                Some(finished) = checks.join_next() => match finished {
                    Ok((id, state)) => {
                        busy.remove(&id);
                        let now = Instant::now();
                        // Otherwise the entries of sleeping or deleted clusters would stay forever.
                        known.retain(|_, known| known.watch.is_fresh(now) || known.rests(now));
                        known.insert(id, state);
                    }
                    // No task is cancelled before this returns, so the error is a panic.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
            }
        }
    }
}

/// Checks one cluster.
async fn check(
    context: Arc<Context>,
    target: WatchedCluster,
    mut watch: Watch,
    intervals: ReapIntervals,
) -> (ClusterId, Known) {
    let start = Instant::now();
    let checked = tokio::time::timeout(LIMIT, check_nodes(&context, &target, &mut watch, &intervals)).await;
    if let Err(error) = checked.unwrap_or(Err(TenantApiError::Limit)) {
        context.metrics.reaping_failed();
        let error = crate::chain(&error);
        tracing::debug!(cluster = %target.identity.id, error, "checking for silent Nodes failed; retrying");
    }
    let rests_until = Instant::now() + start.elapsed() * REST;
    let known = Known {
        watch,
        rests_until: Some(rests_until),
    };
    (target.identity.id, known)
}

async fn check_nodes(
    context: &Context,
    target: &WatchedCluster,
    watch: &mut Watch,
    intervals: &ReapIntervals,
) -> Result<(), TenantApiError> {
    let ready_for = ready_duration(context, &target.identity);
    let (leases, marked) = tokio::try_join!(target.api.reap_leases(), target.api.reaping_nodes())?;
    watch.record(&leases, Instant::now());
    let now = (Timestamp::now(), Instant::now());
    let by_name: HashMap<String, &Lease> = leases.iter().map(|lease| (lease.name_any(), lease)).collect();
    let room = NODES_MAX.saturating_sub(marked.len()).min(NEW_MAX);
    // A failure with one Node does not delay the others.
    let mut first = Ok(());
    for node in &marked {
        let liveness = watch.liveness(by_name.get(&node.name_any()).copied(), ready_for, now, intervals);
        first = first.and(step(context, target, node, liveness, intervals).await);
    }
    let is_marked = |name: &str| marked.iter().any(|node| node.metadata.name.as_deref() == Some(name));
    let is_silent =
        |(name, lease): &(String, &Lease)| !is_marked(name) && watch.is_silent(lease, ready_for, now, intervals);
    let mut silent: Vec<_> = by_name.into_iter().filter(is_silent).collect();
    silent.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    // Rotates the order: there may be more Leases without a Node than one check processes.
    let first_index = watch.count.wrapping_mul(NEW_MAX).checked_rem(silent.len());
    silent.rotate_left(first_index.unwrap_or(0));
    for (name, lease) in silent.into_iter().take(room) {
        let handled = async {
            match target.api.node(&name).await? {
                Some(found) => match &found.0 {
                    Ok(node) => step(context, target, node, Liveness::Silent(lease), intervals).await,
                    Err(_) => Ok(()),
                },
                None if plan::is_unclaimed(lease, Timestamp::now()) => {
                    target.api.delete_lease(&name, lease.uid()).await
                }
                None => Ok(()),
            }
        };
        first = first.and(handled.await);
    }
    first
}

/// Takes the next step for a Node. If the Node has changed meanwhile, the next check sees its new
/// state.
async fn step(
    context: &Context,
    target: &WatchedCluster,
    node: &Node,
    liveness: Liveness<'_>,
    intervals: &ReapIntervals,
) -> Result<(), TenantApiError> {
    let (api, now) = (&target.api, Timestamp::now());
    let step = plan::plan(node, liveness, now, intervals);
    let done = match step {
        Step::Nothing => return Ok(()),
        Step::Mark => api.mark_node(node, Some(now), None).await,
        Step::Taint => {
            let message = "The Lease was not renewed for the time in reapAfter of the Node's JoinToken. The operator ends the \
         Node's Pods and deletes the Node.";
            api.publish_node_event(node, "NodeSilent", message.into()).await;
            api.mark_node(node, Some(now), Some(&plan::with_taint(node, now))).await
        }
        Step::Delete => match (liveness, api.lease(&node.name_any()).await?) {
            (Liveness::Silent(before), Some(found)) if plan::is_same(before, &found) => api.delete_node(node).await,
            _ => return Ok(()),
        },
        Step::Release => {
            let taints = plan::without_taint(node);
            if taints.is_some() {
                let message = "The Lease is renewed again, or reapAfter was removed. The Node stays.";
                api.publish_node_event(node, "NodeReturned", message.into()).await;
            }
            // At the limit the list may be truncated. Writing it back would drop taints.
            let taints = taints.filter(|taints| taints.len() + 1 < TAINTS_MAX);
            api.mark_node(node, None, taints.as_deref()).await
        }
    };
    match done {
        Err(error) if error.is_of_another() => return Ok(()),
        done => done?,
    }
    if step == Step::Delete {
        context.metrics.reaped();
    }
    let (cluster, node) = (&target.identity.id, node.name_any());
    tracing::info!(cluster = %cluster, node, step = ?step, "handled a Node that may be silent");
    Ok(())
}

/// How long a cluster has been Ready without a break. While an API is not available, its Nodes
/// cannot renew their Leases.
fn ready_duration(context: &Context, identity: &Identity) -> Duration {
    let key = ObjectRef::<Cluster>::new(&identity.cluster).within(&identity.tenant);
    let cluster = context.host.caches.clusters.get(&key);
    let cluster = cluster.filter(|cluster| cluster.id().as_ref() == Some(&identity.id));
    let conditions = cluster.as_ref().and_then(|cluster| cluster.status.as_ref());
    let ready = conditions.and_then(|status| conditions::find(&status.conditions, ConditionType::Ready));
    let since = ready
        .filter(|ready| ready.status == "True")
        .map(|ready| ready.last_transition_time.0);
    let duration = since.map(|since| Timestamp::now().duration_since(since));
    duration
        .and_then(|duration| Duration::try_from(duration).ok())
        .unwrap_or_default()
}
