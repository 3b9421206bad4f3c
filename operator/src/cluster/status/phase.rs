//! The phase of a Cluster, and the history of its versions. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use yoke_api::cluster::{ClusterStatus, Phase, VersionHistory};

use crate::cluster::outcome::Outcome;
use crate::model::control_plane::ControlPlane;

const HISTORY_LENGTH: usize = 10;
/// A control plane that does not answer for longer than this after its start counts as unavailable,
/// not as starting.
const START_TIME: SignedDuration = SignedDuration::from_secs(60);

/// Adds an entry when the rollout of another version starts, and completes it when the API answers
/// with that version.
pub(super) fn plan_history(before: &[VersionHistory], outcome: &Outcome, now: Timestamp) -> Vec<VersionHistory> {
    let mut history = before.to_vec();
    let Some(version) = &outcome.version else {
        return history;
    };
    if history.first().is_none_or(|latest| latest.version != *version) {
        history.insert(
            0,
            VersionHistory {
                version: version.clone(),
                started: Time(now),
                completed: None,
            },
        );
        if history.len() > HISTORY_LENGTH {
            // The entry whose API answered last shows the format of the stored objects, so it
            // stays.
            let answered = history.iter().position(|entry| entry.completed.is_some());
            let removed = HISTORY_LENGTH - usize::from(answered == Some(HISTORY_LENGTH));
            history.remove(removed);
        }
    }
    let current = matches!(outcome.control_plane, ControlPlane::Running { current: true, .. });
    // Without an update in this reconcile the pod may still run the previous version.
    if current
        && outcome.published
        && outcome.inside.is_ok()
        && let Some(latest) = history.first_mut()
        && latest.completed.is_none()
    {
        latest.completed = Some(Time(now));
    }
    history
}

pub(super) fn plan_phase(
    outcome: &Outcome,
    before: &ClusterStatus,
    history: &[VersionHistory],
    ready: bool,
    now: Timestamp,
) -> Phase {
    let absent = matches!(outcome.control_plane, ControlPlane::Absent);
    if outcome.accepted.is_err() && absent {
        return Phase::Refused;
    }
    match outcome.control_plane {
        ControlPlane::Asleep | ControlPlane::Absent if outcome.run_state.is_asleep() => return Phase::Asleep,
        ControlPlane::GoingToSleep => return Phase::Updating,
        _ => {}
    }
    let replaced = matches!(outcome.control_plane, ControlPlane::Running { current: false, .. });
    let has_rollout = history.len() > 1 && history.first().is_some_and(|latest| latest.completed.is_none());
    let rolling = has_rollout || outcome.heads_for.is_some();
    if ready && !replaced && !rolling {
        return Phase::Running;
    }
    let ran = history.iter().any(|entry| entry.completed.is_some());
    if ran && (replaced || rolling) {
        return Phase::Updating;
    }
    let starting = match &outcome.control_plane {
        ControlPlane::Running { started, .. } => now.duration_since(*started) < START_TIME,
        ControlPlane::Failing(_) => false,
        _ => before.phase != Some(Phase::Unavailable),
    };
    if ran && !starting {
        Phase::Unavailable
    } else {
        Phase::Provisioning
    }
}
