//! Reads what may send a Cluster to sleep: the activity report of its store, and what prevents sleep.
//!
//! The store is queried only when sleep may be due: a cluster that sleeps after an hour is queried
//! once an hour while it is unused. The answer is remembered until the next query is due.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use yoke_api::Cluster;

use crate::cluster::context::Context;
use crate::cluster::memory::ActivitySeen;
use crate::cluster::observed::Observed;
use crate::cluster::sleep::blockers::find_possible;
use crate::cluster::sleep::idle::{self, Next};
use crate::cluster::sleep::schedule;
use crate::cluster::sleep::state::SleepState;
use crate::cluster::store::http::{self, StoreApiError};
use crate::model::conditions::{self, State};
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;

/// Interval for querying a store that did not answer, and for checking whether an obstacle to sleep
/// is gone.
const RETRY_EVERY: Duration = Duration::from_secs(15);
/// Interval while something is not known yet.
const UNKNOWN_EVERY: Duration = Duration::from_secs(1);

/// Inputs that may send a Cluster to sleep.
#[derive(Clone, Debug, Default)]
pub(crate) struct SleepInputs {
    /// Whether the store reports that no client has used the cluster for
    /// `spec.sleep.afterInactivity`.
    pub(crate) is_unused: bool,
    /// Whether nothing prevents sleep; `None` if that was not checked, as no sleep is due.
    pub(crate) possible: Option<State>,
}

/// Reads the inputs that are due.
pub(crate) async fn read_sleep_inputs(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    now: Timestamp,
) -> SleepInputs {
    let is_unused = match find_query(cluster, observed) {
        Some(query) => is_unused(context, cluster, identity, observed, query).await,
        None => {
            if context.memory.running(&identity.id).activity.is_some() {
                context
                    .memory
                    .update_running(&identity.id, |running| running.activity = None);
            }
            false
        }
    };
    let is_due = is_unused || is_sleep_scheduled(cluster, now);
    SleepInputs {
        is_unused,
        possible: match is_due {
            true => Some(find_possible(context, cluster, &identity.id, Some(RETRY_EVERY)).await),
            false => None,
        },
    }
}

/// Time until the next query is due.
pub(crate) fn until_next_query(context: &Context, identity: &Identity) -> Duration {
    let Some(seen) = context.memory.running(&identity.id).activity else {
        return Duration::MAX;
    };
    seen.due.saturating_duration_since(Instant::now()).max(UNKNOWN_EVERY)
}

/// A question to the store of a running cluster.
struct Query {
    /// UID of the serving pod.
    pod: String,
    /// Start time of its API server.
    started: Timestamp,
    /// The cluster sleeps after it was unused for this long.
    after: Duration,
}

/// The question to the store of a Cluster that sleeps when it is unused; `None` if it does not, or
/// not now.
fn find_query(cluster: &Cluster, observed: &Observed) -> Option<Query> {
    let after = cluster.spec.sleep.inactivity()?;
    let set = observed.stateful_set.as_deref();
    let ControlPlane::Running { pod, started, .. } = control_plane::plan_control_plane(set, &observed.pods) else {
        return None;
    };
    let is_awake = conditions::is_current(cluster) && !SleepState::of(cluster).is_asleep();
    is_awake.then_some(Query { pod, started, after })
}

/// Whether no client has used the cluster for long enough. Not so while the last answer still holds.
async fn is_unused(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    query: Query,
) -> bool {
    let Query { pod, started, after } = query;
    let id = &identity.id;
    let key = (pod, cluster.metadata.generation);
    let known = context.memory.running(id);
    if let Some(last) = known.activity
        && last.key == key
        && Instant::now() < last.due
    {
        return false;
    }
    let mut pods = observed.pods.iter();
    let report = match pods.find(|pod| pod.metadata.uid.as_ref() == Some(&key.0)) {
        Some(pod) => http::read_activity(pod).await,
        None => Err(StoreApiError::NoAddress),
    };
    let known = context.memory.running(id);
    let served = known.ingress_opened.filter(|(pod, _)| *pod == key.0);
    let served = served.map(|(_, since)| since.elapsed());
    let next = match &report {
        Ok(report) => idle::plan_next(report, started, served, after),
        Err(error) => {
            tracing::info!(cluster = %id, error = %crate::chain(error), "store did not report when the cluster was last used");
            Next::QueryAfter(RETRY_EVERY)
        }
    };
    let delay = match next {
        Next::Sleep => RETRY_EVERY,
        Next::QueryAfter(delay) => delay,
    };
    let last_used = report.ok().and_then(|report| report.last_used(started));
    // The number of Nodes is known soon after the operator has started.
    let due = Instant::now()
        + match known.nodes {
            None => delay.min(UNKNOWN_EVERY),
            Some(_) => delay,
        };
    context.memory.update_running(id, |running| {
        running.activity = Some(ActivitySeen { key, due, last_used })
    });
    next == Next::Sleep
}

/// Whether a schedule sends the Cluster to sleep now.
fn is_sleep_scheduled(cluster: &Cluster, now: Timestamp) -> bool {
    schedule::plan_due(cluster, now).is_some_and(|due| due.sleeps()) && conditions::is_current(cluster)
}
