//! When the workers of a cluster are looked at, and asked to come to its version.
//!
//! They come after everything that a cluster needs to be ready, and hold up nothing of that. What was asked is on the Nodes
//! themselves: a process that starts anew goes on with what it finds there.

use std::time::{Duration, Instant};

use yoke_api::KubernetesVersion;
use yoke_api::workers::WorkersStatus;

use super::apply::Applied;
use super::build::Blueprint;
use super::gate::ControlPlane;
use super::pace::STEADY;
use crate::conditions::State;
use crate::context::Context;
use crate::tenant_api::{TenantApi, TenantApiError, Way};
use crate::upgrade::{Asking, Step, Worker, plan};

/// How long one look may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Pace of looking while something is to be done.
pub(super) const BUSY: Duration = Duration::from_secs(5);
/// Pace of looking while nothing is: an older worker may join.
const CALM: Duration = Duration::from_secs(60);
/// Who takes long is left alone this many times as long.
const REST: u32 = 10;

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
    /// For what: the generation of the spec, and the version that is run.
    key: Option<(Option<i64>, KubernetesVersion)>,
    due: Option<Instant>,
    asking: Asking,
    said: Option<Workers>,
}

/// Looks at a cluster's workers if it is time, and asks who comes next. `None` if nothing can be said of them.
pub(super) async fn ensure(
    context: &Context,
    blueprint: &Blueprint<'_>,
    generation: Option<i64>,
    applied: &Applied,
) -> Option<Workers> {
    let id = &blueprint.identity.id;
    // Of the pod that is to be replaced they may be the right ones.
    let ControlPlane::Running { current: true, .. } = &applied.control_plane else {
        return None;
    };
    let answers = applied.inside.is_ok() && applied.outside.is_ok() && !applied.believed;
    let mut seen = context.seen(id).workers;
    // Of a cluster that never had any nothing is said.
    let any = applied.nodes.is_some_and(|nodes| nodes > 0) || seen.key.is_some();
    if !answers || !any {
        return None;
    }
    let key = Some((generation, blueprint.accepted.version));
    if seen.key != key {
        (seen.key, seen.due, seen.said) = (key, None, None);
    }
    if seen.due.is_some_and(|due| Instant::now() < due) {
        return seen.said;
    }
    let api = context.apis.known(id, Way::Inside)?;
    let began = Instant::now();
    let looked = tokio::time::timeout(LIMIT, look(&api, blueprint, &mut seen.asking)).await;
    let pause = match looked.unwrap_or(Err(TenantApiError::Limit)) {
        Ok(said) => {
            let pause = if said.state.status == Some(true) { CALM } else { BUSY };
            seen.said = Some(said);
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
    context.note(id, |all| all.workers = seen);
    said
}

async fn look(api: &TenantApi, blueprint: &Blueprint<'_>, asking: &mut Asking) -> Result<Workers, TenantApiError> {
    let target = blueprint.accepted.version;
    let (serves, nodes) = tokio::try_join!(api.version(), api.kubelets())?;
    // No kubelet is to be newer than who answers.
    if KubernetesVersion::parse_build(&serves).ok() != Some(target) {
        return Err(TenantApiError::NotReady);
    }
    let now = Instant::now();
    asking.note(&nodes, now);
    let workers: Vec<_> = nodes.iter().map(|node| Worker::of(node, asking, now)).collect();
    let spec = &blueprint.spec.workers.upgrade;
    let plan = plan(&workers, target, spec);
    let id = &blueprint.identity.id;
    for step in &plan.steps {
        let (node, wanted) = match step {
            Step::Ask(node) => (node, Some((target, spec.drain_timeout.as_str()))),
            Step::Withdraw(node) => (node, None),
        };
        match api.ask_kubelet(node, wanted).await {
            // It has changed since: the next look sees what it is.
            Err(error) if error.is_of_another() => {}
            done => done?,
        }
        let node = node.metadata.name.as_deref();
        tracing::info!(cluster = %id, node, version = %target, asked = wanted.is_some(), "a worker's version");
    }
    Ok(Workers {
        status: plan.status,
        state: plan.state,
    })
}
