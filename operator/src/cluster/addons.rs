//! When a cluster's API is given its add-ons, and what the condition says of it.
//!
//! They come after everything that a cluster needs to be ready, and hold up nothing of that. Where nothing has changed and a
//! while has not passed, nobody asks the API; where nothing is to be changed, nobody writes.

use std::time::{Duration, Instant};

use yoke_api::Reason;

use super::apply::Applied;
use super::build::Blueprint;
use super::gate::ControlPlane;
use super::pace::STEADY;
use super::probe::BASE_EVERY;
use crate::addons::{Addon, Facts, plan};
use crate::conditions::State;
use crate::context::{AddonsSeen, Context};
use crate::tenant_api::{TenantApiError, Way};

/// How long one round may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Objects of others that are told of.
const TOLD: usize = 5;

/// Brings a cluster's add-ons to what its spec asks for, if they are due; `None` if nothing can be said yet.
pub(super) async fn ensure(context: &Context, blueprint: &Blueprint<'_>, applied: &Applied) -> Option<State> {
    let identity = blueprint.identity;
    // A pod that is to be replaced may run an older version than what is planned is for.
    let ControlPlane::Running { pod, current: true, .. } = &applied.control_plane else {
        return None;
    };
    if applied.inside.is_err() || applied.outside.is_err() || applied.believed {
        return None;
    }
    let api = context.apis.known(&identity.id, Way::Inside)?;
    let plan = plan(&Facts {
        spec: blueprint.spec,
        public_name: &identity.public_name,
        version: blueprint.accepted.version,
        catalogue: blueprint.accepted.catalogue,
        config: &context.config,
    });
    let key = (pod.clone(), plan.digest());
    let seen = context.seen(&identity.id).addons;
    let Some(due) = seen.due else {
        // That it is ready is told first.
        context.note(&identity.id, |seen| seen.addons.due = Some(Instant::now()));
        return None;
    };
    if seen.key.as_ref() == Some(&key) && Instant::now() < due {
        return seen.state;
    }
    let began = Instant::now();
    let result = tokio::time::timeout(LIMIT, api.apply_addons(&plan, context.clusters.params())).await;
    let (state, pause) = judge(result.unwrap_or(Err(TenantApiError::Limit)), blueprint, began.elapsed());
    context.note(&identity.id, |seen| {
        seen.addons = AddonsSeen {
            key: Some(key),
            due: Some(Instant::now() + pause),
            state: Some(state.clone()),
        };
    });
    Some(state)
}

/// What the condition says, and when to look again.
fn judge(result: Result<Vec<String>, TenantApiError>, blueprint: &Blueprint<'_>, took: Duration) -> (State, Duration) {
    match result {
        Ok(foreign) if foreign.is_empty() => {
            let enabled = Addon::ALL.into_iter().filter(|addon| addon.is_enabled(blueprint.spec));
            let names: Vec<_> = enabled.map(Addon::as_str).collect();
            let message = match names.join(", ") {
                names if names.is_empty() => "No add-on is turned on.".into(),
                names => format!("The cluster has {names}."),
            };
            (State::yes(Reason::AsExpected, message), BASE_EVERY)
        }
        Ok(foreign) => {
            let told = foreign[..foreign.len().min(TOLD)].join(", ");
            let message = format!("Not the operator's, and left alone: {told}. Delete it, or turn the add-on off.");
            (State::no(Reason::AddonConflict, message), STEADY)
        }
        // Who hangs must not take the time of the others.
        Err(error) => (
            State::no(
                Reason::AddonsPending,
                format!("Trying again: {}.", crate::chain(&error)),
            ),
            STEADY.max(took * 10),
        ),
    }
}
