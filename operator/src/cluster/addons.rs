//! When a cluster's API is given its add-ons, and what the condition says of it.
//!
//! They come after everything that a cluster needs to be ready, and hold up nothing of that. Where nothing has changed and a
//! while has not passed, nobody asks the API; where nothing is to be changed, nobody writes.

use std::time::{Duration, Instant};

use yoke_api::{Reason, labels};

use super::apply::Applied;
use super::build::Blueprint;
use super::gate::ControlPlane;
use super::pace::STEADY;
use super::probe::BASE_EVERY;
use crate::addons::{Addon, Facts, plan};
use crate::conditions::State;
use crate::context::{AddonsSeen, Context};
use crate::tenant_api::{Foreign, TenantApiError, Way};

/// How long one round may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Objects of others that are told of.
const TOLD: usize = 5;

/// Brings a cluster's add-ons to what its spec asks for, if they are due; `None` if nothing can be said yet.
pub(super) async fn ensure(
    context: &Context,
    blueprint: &Blueprint<'_>,
    generation: Option<i64>,
    kubelet_ca: &str,
    applied: &Applied,
) -> Option<State> {
    let identity = blueprint.identity;
    // A pod that is to be replaced may run an older version than what is planned is for.
    let ControlPlane::Running { pod, current: true, .. } = &applied.control_plane else {
        return None;
    };
    if applied.inside.is_err() || applied.outside.is_err() || applied.believed {
        return None;
    }
    let api = context.apis.known(&identity.id, Way::Inside)?;
    // What is planned follows from these, as long as a process lives.
    let key = (pod.clone(), generation, blueprint.accepted.version);
    let seen = context.awake(&identity.id).addons;
    let Some(due) = seen.due else {
        // That it is ready is told first.
        context.note_awake(&identity.id, |awake| awake.addons.due = Some(Instant::now()));
        return None;
    };
    if seen.key.as_ref() == Some(&key) && Instant::now() < due {
        return seen.state;
    }
    let began = Instant::now();
    let plan = plan(&Facts {
        spec: blueprint.spec,
        public_name: &identity.public_name,
        version: blueprint.accepted.version,
        catalogue: blueprint.accepted.catalogue,
        kubelet_ca,
        config: &context.config,
    });
    let result = tokio::time::timeout(LIMIT, api.apply_addons(&plan, context.clusters.params())).await;
    let result = match result {
        Ok(applied) => applied.map_err(|error| crate::chain(&error)),
        Err(_) => Err(crate::chain(&TenantApiError::Limit)),
    };
    let (state, pause) = judge(result, blueprint, began.elapsed());
    context.note_awake(&identity.id, |awake| {
        awake.addons = AddonsSeen {
            key: Some(key),
            due: Some(Instant::now() + pause),
            state: Some(state.clone()),
        };
    });
    Some(state)
}

/// What the condition says, and when to look again.
fn judge(result: Result<Foreign, String>, blueprint: &Blueprint<'_>, took: Duration) -> (State, Duration) {
    match result {
        Ok(foreign) if foreign == Foreign::default() => {
            let enabled = Addon::ALL.into_iter().filter(|addon| addon.is_enabled(blueprint.spec));
            let names: Vec<_> = enabled.map(Addon::as_str).collect();
            let message = match names.join(", ") {
                names if names.is_empty() => "No add-on is turned on.".into(),
                names => format!("The cluster has {names}."),
            };
            (State::yes(Reason::AsExpected, message), BASE_EVERY)
        }
        Ok(Foreign { in_the_way, keeping }) => {
            let told = |names: &[String]| names[..names.len().min(TOLD)].join(", ");
            let first = (!in_the_way.is_empty()).then(|| {
                let names = told(&in_the_way);
                format!("Not the operator's, and left alone: {names}. Delete it, or turn the add-on off.")
            });
            let second = (!keeping.is_empty()).then(|| {
                let (names, label) = (told(&keeping), labels::ADDON);
                format!(
                    "Turned off, and nothing is removed, because somebody else has {names}: delete it, or take the label \
                     {label} away from the others."
                )
            });
            let message = Vec::from_iter(first.into_iter().chain(second)).join(" ");
            (State::no(Reason::AddonConflict, message), STEADY)
        }
        // Who hangs must not take the time of the others.
        Err(error) => (
            State::no(Reason::AddonsPending, format!("Trying again: {error}.")),
            STEADY.max(took * 10),
        ),
    }
}
