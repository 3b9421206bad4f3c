//! When the workers of a cluster are looked at, and asked to come to its version.
//!
//! They come after everything that a cluster needs to be ready, and hold up nothing of that. What was asked is on the Nodes
//! themselves: a process that starts anew goes on with what it finds there.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use yoke_api::workers::{UpgradeSpec, WorkersStatus};
use yoke_api::{Cluster, ClusterId, KubernetesVersion, Reason};

use super::apply::Applied;
use super::gate::ControlPlane;
use super::pace::STEADY;
use crate::conditions::State;
use crate::context::Context;
use crate::tenant_api::{TenantApi, TenantApiError, Way};
use crate::upgrade::{Asking, Plan, Step, Worker, plan};

/// How long one look may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Pace of looking while something is to be done.
pub(super) const BUSY: Duration = Duration::from_secs(5);
/// Pace of looking while nothing is: an older worker may join.
const CALM: Duration = Duration::from_secs(60);
/// Who takes long is left alone this many times as long.
const REST: u32 = 10;
/// Of why a Node cannot be asked.
const WHY_MAX: usize = 200;

/// What is said of a cluster's workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// How many there are, and how far.
    pub status: WorkersStatus,
    /// The condition.
    pub state: State,
}

/// What was last seen of a cluster's workers.
#[derive(Clone, Debug, Default)]
pub struct WorkersSeen {
    /// For what: the generation of the spec, and the version that was accepted.
    key: Option<(Option<i64>, Option<KubernetesVersion>)>,
    due: Option<Instant>,
    asking: Asking,
    said: Option<Workers>,
}

/// Looks at a cluster's workers if it is time, and asks who comes next to come to the accepted version; of a spec that is refused
/// nobody is asked anything. `None` if nothing can be said of them.
pub(super) async fn ensure(
    context: &Context,
    cluster: &Cluster,
    id: &ClusterId,
    accepted: Option<KubernetesVersion>,
    applied: &Applied,
) -> Option<Workers> {
    // Of the pod that is to be replaced they may be the right ones.
    let ControlPlane::Running { current: true, .. } = &applied.control_plane else {
        return None;
    };
    let answers = applied.inside.is_ok() && applied.outside.is_ok() && !applied.believed;
    let mut seen = context.awake(id).workers;
    // Of a cluster that never had any nothing is said.
    let had_any = cluster.status.as_ref().is_some_and(|status| status.workers.is_some());
    let any = applied.nodes.is_some_and(|nodes| nodes > 0) || seen.key.is_some() || had_any;
    if !answers || !any {
        return None;
    }
    let key = Some((cluster.metadata.generation, accepted));
    if seen.key != key {
        (seen.key, seen.due, seen.said) = (key, None, None);
    }
    if seen.due.is_some_and(|due| Instant::now() < due) {
        return seen.said;
    }
    let api = context.apis.known(id, Way::Inside)?;
    let began = Instant::now();
    let upgrade = &cluster.spec.workers.upgrade;
    let looking = async {
        match accepted {
            Some(target) => look(&api, id, target, upgrade, &mut seen.asking).await,
            None => count(&api, &mut seen.asking).await,
        }
    };
    let pause = match tokio::time::timeout(LIMIT, looking)
        .await
        .unwrap_or(Err(TenantApiError::Limit))
    {
        Ok(found) => {
            let pause = if found.workers.state.status == Some(true) {
                CALM
            } else {
                BUSY
            };
            let is_known = seen.said.as_ref() == Some(&found.workers);
            if let Some(problem) = found.problem.filter(|_| !is_known) {
                tracing::warn!(cluster = %id, problem, "a worker is not asked");
            }
            seen.said = Some(found.workers);
            pause
        }
        Err(error) => {
            let error = crate::chain(&error);
            tracing::debug!(cluster = %id, error, "workers are looked at again");
            STEADY
        }
    };
    let now = Instant::now();
    seen.due = Some(now + pause.max((now - began) * REST));
    let said = seen.said.clone();
    context.note_awake(id, |awake| awake.workers = seen);
    said
}

/// What came of a look.
#[derive(Debug)]
struct Found {
    workers: Workers,
    /// Who could not be asked, and why.
    problem: Option<String>,
}

async fn look(
    api: &TenantApi,
    id: &ClusterId,
    target: KubernetesVersion,
    upgrade: &UpgradeSpec,
    asking: &mut Asking,
) -> Result<Found, TenantApiError> {
    let (serves, nodes) = tokio::try_join!(api.version(), api.kubelets())?;
    // No kubelet is to be newer than who answers.
    if KubernetesVersion::parse_build(&serves).ok() != Some(target) {
        return Err(TenantApiError::NotReady);
    }
    let workers = note(asking, &nodes);
    let Plan {
        steps,
        status,
        mut state,
    } = plan(&workers, target, upgrade);
    let problem = take(api, id, target, upgrade, &steps).await.err();
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

/// Says how workers are, by what the API is now.
async fn count(api: &TenantApi, asking: &mut Asking) -> Result<Found, TenantApiError> {
    let (serves, nodes) = tokio::try_join!(api.version(), api.kubelets())?;
    let target = KubernetesVersion::parse_build(&serves).map_err(|_| TenantApiError::NotReady)?;
    let nobody = UpgradeSpec {
        paused: true,
        ..UpgradeSpec::default()
    };
    let status = plan(&note(asking, &nodes), target, &nobody).status;
    let message = format!(
        "{} of {} Nodes have kubelet {target}. No other is asked to while the spec is refused.",
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

fn note<'a>(asking: &mut Asking, nodes: &'a [Node]) -> Vec<Worker<'a>> {
    asking.note(nodes, Instant::now());
    nodes.iter().map(|node| Worker::of(node, asking)).collect()
}

/// Asks, until one cannot be asked.
async fn take(
    api: &TenantApi,
    id: &ClusterId,
    target: KubernetesVersion,
    upgrade: &UpgradeSpec,
    steps: &[Step<'_>],
) -> Result<(), String> {
    for step in steps {
        let (node, wanted) = match step {
            Step::Ask(node) => (node, Some((target, upgrade.drain_timeout.as_str()))),
            Step::Withdraw(node) => (node, None),
        };
        let name = node.metadata.name.as_deref();
        match api.ask_kubelet(node, wanted).await {
            // It has changed since: the next look sees what it is.
            Err(error) if error.is_of_another() => continue,
            Err(error) => {
                let why: String = crate::chain(&error).chars().take(WHY_MAX).collect();
                return Err(format!("Cannot ask Node {}: {why}.", name.unwrap_or_default()));
            }
            Ok(()) => {}
        }
        tracing::info!(cluster = %id, node = name, version = %target, asked = wanted.is_some(), "a worker's version");
    }
    Ok(())
}
