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
pub use crate::node_reaper::plan::Pace;

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
use crate::node_reaper::plan::{Sight, Step, Watch};
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
    wards: mpsc::Sender<WatchedCluster>,
}

/// Owns the observations of Leases.
#[derive(Debug)]
pub struct ReaperTask {
    wards: mpsc::Receiver<WatchedCluster>,
    pace: Pace,
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
    rested: Option<Instant>,
}

impl Known {
    fn rests(&self, now: Instant) -> bool {
        self.rested.is_some_and(|rested| now < rested)
    }
}

impl ReaperHandle {
    /// Creates a reaper and its keeper.
    pub fn new(pace: Pace) -> (Self, ReaperTask) {
        let (sender, wards) = mpsc::channel(CAPACITY);
        (Self { wards: sender }, ReaperTask { wards, pace })
    }

    /// Checks the Nodes of a cluster whose API answered just now, through the Service and through
    /// the ingress.
    pub(crate) fn keep(&self, identity: &Identity, api: TenantApi) {
        let identity = identity.clone();
        if self.wards.try_send(WatchedCluster { identity, api }).is_err() {
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
        let mut looks = JoinSet::new();
        loop {
            tokio::select! {
                () = drain.started() => return,
                Some(ward) = self.wards.recv(), if looks.len() < AT_ONCE => {
                    let (id, now) = (ward.identity.id.clone(), Instant::now());
                    let before = known.get(&id);
                    let waits = before.is_some_and(|known| known.rests(now) || !known.watch.is_due(&self.pace, now));
                    if !waits && busy.insert(id.clone()) {
                        let watch = known.remove(&id).unwrap_or_default().watch;
                        looks.spawn(look(Arc::clone(&context), ward, watch, self.pace));
                    }
                }
                Some(ended) = looks.join_next() => match ended {
                    Ok((id, ended)) => {
                        busy.remove(&id);
                        let now = Instant::now();
                        // Otherwise the entries of sleeping or deleted clusters would stay forever.
                        known.retain(|_, known| known.watch.is_fresh(now) || known.rests(now));
                        known.insert(id, ended);
                    }
                    // No task is cancelled before this returns, so the error is a panic.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
            }
        }
    }
}

/// Checks one cluster.
async fn look(context: Arc<Context>, ward: WatchedCluster, mut watch: Watch, pace: Pace) -> (ClusterId, Known) {
    let began = Instant::now();
    let looked = tokio::time::timeout(LIMIT, look_at(&context, &ward, &mut watch, &pace)).await;
    if let Err(error) = looked.unwrap_or(Err(TenantApiError::Limit)) {
        context.metrics.reaping_failed();
        let error = crate::chain(&error);
        tracing::debug!(cluster = %ward.identity.id, error, "checking for silent Nodes failed; retrying");
    }
    let rested = Instant::now() + began.elapsed() * REST;
    let known = Known {
        watch,
        rested: Some(rested),
    };
    (ward.identity.id, known)
}

async fn look_at(
    context: &Context,
    ward: &WatchedCluster,
    watch: &mut Watch,
    pace: &Pace,
) -> Result<(), TenantApiError> {
    let well = well_for(context, &ward.identity);
    let (leases, marked) = tokio::try_join!(ward.api.reap_leases(), ward.api.reaping_nodes())?;
    watch.note(&leases, Instant::now());
    let now = (Timestamp::now(), Instant::now());
    let by_name: HashMap<String, &Lease> = leases.iter().map(|lease| (lease.name_any(), lease)).collect();
    let room = NODES_MAX.saturating_sub(marked.len()).min(NEW_MAX);
    // A failure with one Node does not delay the others.
    let mut first = Ok(());
    for node in &marked {
        let sight = watch.sight(by_name.get(&node.name_any()).copied(), well, now, pace);
        first = first.and(step(context, ward, node, sight, pace).await);
    }
    let is_marked = |name: &str| marked.iter().any(|node| node.metadata.name.as_deref() == Some(name));
    let silent = |(name, lease): &(String, &Lease)| !is_marked(name) && watch.is_silent(lease, well, now, pace);
    let mut left: Vec<_> = by_name.into_iter().filter(silent).collect();
    left.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    // Rotates the order: there may be more Leases without a Node than one check processes.
    let turn = watch.count.wrapping_mul(NEW_MAX).checked_rem(left.len());
    left.rotate_left(turn.unwrap_or(0));
    for (name, lease) in left.into_iter().take(room) {
        let begun = async {
            match ward.api.node(&name).await? {
                Some(found) => match &found.0 {
                    Ok(node) => step(context, ward, node, Sight::Silent(lease), pace).await,
                    Err(_) => Ok(()),
                },
                None if plan::is_unclaimed(lease, Timestamp::now()) => ward.api.delete_lease(&name, lease.uid()).await,
                None => Ok(()),
            }
        };
        first = first.and(begun.await);
    }
    first
}

/// Takes the next step for a Node. If the Node has changed meanwhile, the next check sees its new
/// state.
async fn step(
    context: &Context,
    ward: &WatchedCluster,
    node: &Node,
    sight: Sight<'_>,
    pace: &Pace,
) -> Result<(), TenantApiError> {
    let (api, now) = (&ward.api, Timestamp::now());
    let step = plan::plan(node, sight, now, pace);
    let done = match step {
        Step::Nothing => return Ok(()),
        Step::Mark => api.mark_node(node, Some(now), None).await,
        Step::Taint => {
            let note = "The Lease was not renewed for the time in reapAfter of the Node's JoinToken. The operator ends the \
         Node's Pods and deletes the Node.";
            api.publish_node_event(node, "NodeSilent", note.into()).await;
            api.mark_node(node, Some(now), Some(&plan::with_taint(node, now))).await
        }
        Step::Delete => match (sight, api.lease(&node.name_any()).await?) {
            (Sight::Silent(seen), Some(found)) if plan::is_same(seen, &found) => api.delete_node(node).await,
            _ => return Ok(()),
        },
        Step::Release => {
            let taints = plan::without_taint(node);
            if taints.is_some() {
                let note = "The Lease is renewed again, or reapAfter was removed. The Node stays.";
                api.publish_node_event(node, "NodeReturned", note.into()).await;
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
    let (cluster, node) = (&ward.identity.id, node.name_any());
    tracing::info!(cluster = %cluster, node, step = ?step, "handled a Node that may be silent");
    Ok(())
}

/// How long a cluster has been Ready without a break. While an API is not available, its Nodes
/// cannot renew their Leases.
fn well_for(context: &Context, identity: &Identity) -> Duration {
    let key = ObjectRef::<Cluster>::new(&identity.cluster).within(&identity.tenant);
    let cluster = context.host.caches.clusters.get(&key);
    let cluster = cluster.filter(|cluster| cluster.id().as_ref() == Some(&identity.id));
    let conditions = cluster.as_ref().and_then(|cluster| cluster.status.as_ref());
    let ready = conditions.and_then(|status| conditions::find(&status.conditions, ConditionType::Ready));
    let since = ready
        .filter(|ready| ready.status == "True")
        .map(|ready| ready.last_transition_time.0);
    let well = since.map(|since| Timestamp::now().duration_since(since));
    well.and_then(|well| Duration::try_from(well).ok()).unwrap_or_default()
}
