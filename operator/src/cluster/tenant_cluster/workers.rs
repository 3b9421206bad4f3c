//! Checks the workers of a cluster, and requests their upgrade to its version.
//!
//! Workers follow everything that a cluster needs to be ready, and delay nothing of it. Requests
//! are stored in the Nodes themselves, so a restarted operator continues from there.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use yoke_api::workers::UpgradeSpec;
use yoke_api::{ClusterId, KubernetesVersion, Reason};

use crate::cluster::context::Context;
use crate::cluster::intervals::{BUSY, STEADY};
use crate::cluster::memory::WorkersSeen;
use crate::cluster::observe::View;
use crate::cluster::outcome::{Outcome, Workers};
use crate::cluster::tenant_cluster::worker_rollout::{Plan, UpgradeRequests, UpgradeStep, Worker, plan_rollout};
use crate::model::conditions::State;
use crate::model::control_plane::ControlPlane;
use crate::tenant_client::{TenantApi, TenantApiError, Way};

/// Timeout of one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Check interval while none is: an older worker may join.
const UPDATED_EVERY: Duration = Duration::from_secs(60);
/// Pause after a check: at least this many times its duration.
const PAUSE_PER_DURATION: u32 = 10;
/// Maximum number of characters of the reason why a request failed.
const REASON_MAX: usize = 200;

/// Checks a cluster's workers if that is due, and requests the next upgrades to the accepted
/// version. With a refused spec nothing is requested. `None` if nothing is known about workers.
pub(crate) async fn upgrade_workers(
    context: &Context,
    view: &View<'_>,
    accepted: Option<KubernetesVersion>,
    outcome: &Outcome,
) -> Option<Workers> {
    let (cluster, id) = (&view.cluster, &view.identity.id);
    // Workers may match the version of a pod that is about to be replaced.
    let ControlPlane::Running { current: true, .. } = &outcome.control_plane else {
        return None;
    };
    let mut seen = context.memory.running(id).workers;
    // A cluster that never had workers has no status of them.
    let had_any = cluster.status.as_ref().is_some_and(|status| status.workers.is_some());
    let has_any = outcome.nodes.is_some_and(|nodes| nodes > 0) || seen.key.is_some() || had_any;
    if !outcome.is_available() || outcome.assumed_ready || !has_any {
        return None;
    }
    let key = Some((cluster.metadata.generation, accepted));
    if seen.key != key {
        (seen.key, seen.due, seen.last_seen) = (key, None, None);
    }
    if seen.due.is_some_and(|due| Instant::now() < due) {
        return seen.last_seen;
    }
    let api = context.apis.known(id, Way::Inside)?;
    let started = Instant::now();
    let upgrade = &cluster.spec.workers.upgrade;
    let check = async {
        match accepted {
            Some(target) => upgrade_next(&api, id, target, upgrade, &mut seen.requests).await,
            None => count_updated(&api, &mut seen.requests).await,
        }
    };
    let found = tokio::time::timeout(CHECK_TIMEOUT, check).await;
    let interval = record_result(id, found.unwrap_or(Err(TenantApiError::Limit)), &mut seen);
    let now = Instant::now();
    seen.due = Some(now + interval.max((now - started) * PAUSE_PER_DURATION));
    let last_seen = seen.last_seen.clone();
    context.memory.update_running(id, |running| running.workers = seen);
    last_seen
}

/// Records the result of a check. Returns the interval until the next one.
fn record_result(id: &ClusterId, found: Result<Found, TenantApiError>, seen: &mut WorkersSeen) -> Duration {
    match found {
        Ok(found) => {
            let is_known = seen.last_seen.as_ref() == Some(&found.workers);
            if let Some(problem) = found.problem.filter(|_| !is_known) {
                tracing::warn!(cluster = %id, problem, "upgrade of a worker cannot be requested");
            }
            let is_updated = found.workers.state.status == Some(true);
            seen.last_seen = Some(found.workers);
            if is_updated { UPDATED_EVERY } else { BUSY }
        }
        Err(error) => {
            let error = crate::chain(&error);
            tracing::debug!(cluster = %id, error, "workers cannot be checked");
            STEADY
        }
    }
}

/// The result of a check.
#[derive(Debug)]
struct Found {
    workers: Workers,
    /// The Node whose upgrade could not be requested, and why.
    problem: Option<String>,
}

async fn upgrade_next(
    api: &TenantApi,
    id: &ClusterId,
    target: KubernetesVersion,
    upgrade: &UpgradeSpec,
    requests: &mut UpgradeRequests,
) -> Result<Found, TenantApiError> {
    let (served, nodes) = tokio::try_join!(api.version(), api.kubelets())?;
    // No kubelet may be newer than the API server that answers.
    if KubernetesVersion::parse_build(&served).ok() != Some(target) {
        return Err(TenantApiError::NotReady);
    }
    let workers = track_requests(requests, &nodes);
    let Plan {
        steps,
        status,
        mut state,
    } = plan_rollout(&workers, target, upgrade);
    let problem = write_requests(api, id, target, upgrade, &steps).await.err();
    if let Some(problem) = problem.as_ref().filter(|_| state.reason != Reason::WorkerUpgradeFailed) {
        let message = format!(
            "{} of {} Nodes have kubelet {target}. {problem}",
            status.updated, status.total
        );
        state = State::no(Reason::WorkersPending, message);
    }
    let workers = Workers { status, state };
    Ok(Found { workers, problem })
}

/// Counts the workers that have the version of the running API server.
async fn count_updated(api: &TenantApi, requests: &mut UpgradeRequests) -> Result<Found, TenantApiError> {
    let (served, nodes) = tokio::try_join!(api.version(), api.kubelets())?;
    let target = KubernetesVersion::parse_build(&served).map_err(|_| TenantApiError::NotReady)?;
    let no_upgrades = UpgradeSpec {
        paused: true,
        ..UpgradeSpec::default()
    };
    let status = plan_rollout(&track_requests(requests, &nodes), target, &no_upgrades).status;
    let message = format!(
        "{} of {} Nodes have kubelet {target}. No other Node is upgraded while the spec is refused.",
        status.updated, status.total
    );
    Ok(Found {
        workers: Workers {
            status,
            state: State::unknown(Reason::WorkersPending, message),
        },
        problem: None,
    })
}

fn track_requests<'a>(requests: &mut UpgradeRequests, nodes: &'a [Node]) -> Vec<Worker<'a>> {
    requests.record(nodes, Instant::now());
    nodes.iter().map(|node| Worker::of(node, requests)).collect()
}

/// Writes the requests, until one fails.
async fn write_requests(
    api: &TenantApi,
    id: &ClusterId,
    target: KubernetesVersion,
    upgrade: &UpgradeSpec,
    steps: &[UpgradeStep<'_>],
) -> Result<(), String> {
    for step in steps {
        let (node, wanted) = match step {
            UpgradeStep::Request(node) => (node, Some((target, upgrade.drain_timeout.as_str()))),
            UpgradeStep::Withdraw(node) => (node, None),
        };
        let name = node.metadata.name.as_deref();
        match api.ask_kubelet(node, wanted).await {
            // The Node was changed in between; the next check reads it again.
            Err(error) if error.is_of_another() => continue,
            Err(error) => {
                let why: String = crate::chain(&error).chars().take(REASON_MAX).collect();
                return Err(format!(
                    "The upgrade of Node {} cannot be requested: {why}.",
                    name.unwrap_or_default()
                ));
            }
            Ok(()) => {}
        }
        tracing::info!(cluster = %id, node = name, version = %target, asked = wanted.is_some(), "version requested from a worker");
    }
    Ok(())
}
