//! Applies the add-ons of a cluster through its API, and builds the condition `AddonsReady`.
//!
//! Add-ons follow everything that a cluster needs to be ready, and delay nothing of it. Without a
//! change they are checked only after an interval, and written only where they differ.

use std::time::{Duration, Instant};

use yoke_api::{Reason, labels};

use crate::addons::{Addon, Facts, plan};
use crate::cluster::context::Context;
use crate::cluster::intervals::{BASE_EVERY, STARTING, STEADY};
use crate::cluster::memory::AddonsSeen;
use crate::cluster::observe::View;
use crate::cluster::outcome::Outcome;
use crate::cluster::resources::Blueprint;
use crate::model::conditions::State;
use crate::model::control_plane::ControlPlane;
use crate::model::identity::Identity;
use crate::tenant_client::{Foreign, TenantApiError, Way};

/// Timeout of one round.
const ROUND_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of objects of other owners that a message names.
const OBJECTS_IN_MESSAGE: usize = 5;

/// Applies the add-ons of a spec if they are due; `None` while their state is not known.
pub(crate) async fn ensure_addons(
    context: &Context,
    view: &View<'_>,
    blueprint: &Blueprint<'_>,
    kubelet_ca: &str,
    outcome: &Outcome,
) -> Option<State> {
    let (identity, generation) = (&view.identity, view.cluster.metadata.generation);
    // A pod that is about to be replaced may run an older version than the plan is made for.
    let ControlPlane::Running { pod, current: true, .. } = &outcome.control_plane else {
        return None;
    };
    if !outcome.is_available() || outcome.assumed_ready {
        return None;
    }
    let api = context.apis.known(&identity.id, Way::Inside)?;
    // The plan depends on these only, for the life of a process.
    let key = (pod.clone(), generation, blueprint.accepted.version);
    let seen = context.memory.running(&identity.id).addons;
    let Some(due) = seen.due else {
        // Readiness is published first.
        context
            .memory
            .update_running(&identity.id, |running| running.addons.due = Some(Instant::now()));
        return None;
    };
    if seen.key.as_ref() == Some(&key) && Instant::now() < due {
        return seen.state;
    }
    let started = Instant::now();
    let plan = plan(&Facts {
        spec: blueprint.spec,
        public_name: &identity.public_name,
        version: blueprint.accepted.version,
        catalogue: blueprint.accepted.catalogue,
        kubelet_ca,
        config: &context.host.config,
    });
    let result = tokio::time::timeout(ROUND_TIMEOUT, api.apply_addons(&plan, context.applier.params())).await;
    let is_late = result.is_err();
    let result = match result {
        Ok(applied) => applied.map_err(|error| crate::chain(&error)),
        Err(_) => Err(crate::chain(&TenantApiError::Limit)),
    };
    let (state, interval) = plan_condition(result, blueprint, started.elapsed());
    let is_same = seen.key.as_ref() == Some(&key);
    let before = seen.state.filter(|_| is_same);
    let state = state_to_publish(before, seen.is_late, state, is_late);
    context.memory.update_running(&identity.id, |running| {
        running.addons = AddonsSeen {
            key: Some(key),
            due: Some(Instant::now() + interval),
            state: state.clone(),
            is_late,
        };
    });
    state
}

/// Time until add-ons need the next reconcile.
pub(crate) fn until_next_check(context: &Context, identity: &Identity) -> Duration {
    plan_until_next_check(&context.memory.running(&identity.id).addons, Instant::now())
}

/// The first round follows right after readiness. A round after a timeout is not the first one.
fn plan_until_next_check(seen: &AddonsSeen, now: Instant) -> Duration {
    let is_first = seen.key.is_none() && seen.due.is_some_and(|due| now.duration_since(due) < ROUND_TIMEOUT);
    if is_first { STARTING } else { Duration::MAX }
}

/// The state to publish after a round. A single timeout does not change it, but a second one in a
/// row does: an operator that starts checks all clusters at once.
fn state_to_publish(before: Option<State>, was_late: bool, state: State, is_late: bool) -> Option<State> {
    match is_late && !was_late {
        true => before,
        false => Some(state),
    }
}

/// The state of the condition, and the time until the next check.
fn plan_condition(result: Result<Foreign, String>, blueprint: &Blueprint<'_>, duration: Duration) -> (State, Duration) {
    match result {
        Ok(foreign) if foreign == Foreign::default() => {
            let enabled = Addon::ALL.into_iter().filter(|addon| addon.is_enabled(blueprint.spec));
            let names: Vec<_> = enabled.map(Addon::as_str).collect();
            let message = match names.join(", ") {
                names if names.is_empty() => "No add-on is enabled.".into(),
                names => format!("The cluster has {names}."),
            };
            (State::yes(Reason::AsExpected, message), BASE_EVERY)
        }
        Ok(Foreign { in_the_way, keeping }) => {
            let list = |names: &[String]| names[..names.len().min(OBJECTS_IN_MESSAGE)].join(", ");
            let first = (!in_the_way.is_empty()).then(|| {
                let names = list(&in_the_way);
                format!("Objects of another owner are in the way: {names}. Delete them, or disable the add-on.")
            });
            let second = (!keeping.is_empty()).then(|| {
                let (names, label) = (list(&keeping), labels::ADDON);
                format!(
                    "The add-on is disabled, but its objects are not removed, because another owner uses {names}. Delete \
         those, or remove the label {label} from the add-on's objects."
                )
            });
            let message = Vec::from_iter(first.into_iter().chain(second)).join(" ");
            (State::no(Reason::AddonConflict, message), STEADY)
        }
        // An API that hangs must not take time from the others.
        Err(error) => (
            State::no(
                Reason::AddonsPending,
                format!("Applying the add-ons failed and is retried: {error}."),
            ),
            STEADY.max(duration * 10),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_round_is_due_at_once() {
        let now = Instant::now();
        let seen = |due: Option<Instant>, was_checked: bool| AddonsSeen {
            key: was_checked.then(|| ("a".to_owned(), Some(1), "v1.35.4".parse().unwrap())),
            due,
            is_late: was_checked,
            ..AddonsSeen::default()
        };
        for (rule, seen, expected) in [
            ("not started", seen(None, false), Duration::MAX),
            ("first round", seen(Some(now), false), STARTING),
            (
                "timeout in the first round",
                seen(Some(now + STEADY), true),
                Duration::MAX,
            ),
        ] {
            assert_eq!(plan_until_next_check(&seen, now), expected, "{rule}");
        }
        let later = now + ROUND_TIMEOUT;
        assert_eq!(
            plan_until_next_check(&seen(Some(now), false), later),
            Duration::MAX,
            "first round did not run"
        );
    }

    #[test]
    fn single_timeout_does_not_change_the_state() {
        let healthy = || State::yes(Reason::AsExpected, "fine");
        let pending = || State::no(Reason::AddonsPending, "late");
        for (rule, before, state, is_late, expected) in [
            ("healthy", (None, false), healthy(), false, Some(healthy())),
            ("failed", (Some(healthy()), false), pending(), false, Some(pending())),
            ("timeout after a start", (None, false), pending(), true, None),
            (
                "first timeout",
                (Some(healthy()), false),
                pending(),
                true,
                Some(healthy()),
            ),
            (
                "second timeout",
                (Some(healthy()), true),
                pending(),
                true,
                Some(pending()),
            ),
            (
                "healthy again",
                (Some(pending()), true),
                healthy(),
                false,
                Some(healthy()),
            ),
        ] {
            let (before, was_late) = before;
            assert_eq!(state_to_publish(before, was_late, state, is_late), expected, "{rule}");
        }
    }
}
