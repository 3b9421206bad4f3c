//! Decides when to reconcile a Cluster again if no watch event comes before. Pure.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use yoke_api::Reason;

use crate::cluster::intervals::{ASLEEP, BUSY, STARTING, STEADY};
use crate::cluster::outcome::Outcome;
use crate::model::control_plane::ControlPlane;

/// How long a control plane counts as starting, in seconds.
const YOUNG: i64 = 60;
/// Requeue interval while a missing store prevents a start: at first, and after a while.
const STORELESS: Duration = Duration::from_millis(500);
const STORELESS_LONGEST: Duration = Duration::from_secs(10);
/// Requeue interval while another step must finish first.
const WAITING: Duration = Duration::from_secs(2);
/// Requeue interval for a store that the host's NATS has no room for, if nothing else is pending.
const LIMITED: Duration = Duration::from_secs(300);

/// The requeue delay after an outcome. `store_missing_since`: since when the store is known to be missing.
pub(super) fn requeue_after(outcome: &Outcome, store_missing_since: Option<Timestamp>, now: Timestamp) -> Duration {
    if (outcome.accepted.is_err() && !outcome.maintained) || outcome.paused {
        return STEADY;
    }
    if outcome.queued {
        // The queue enqueues the Cluster.
        return STEADY;
    }
    let answers = outcome.is_available();
    // No event reports new room: other stores are deleted, or NATS gets more storage.
    let is_limited = outcome.store.state.reason == Reason::StoreQuotaExceeded;
    match &outcome.control_plane {
        // Readiness is only assumed. A late check would leave a wrong state of the previous process
        // in place.
        _ if outcome.assumed_ready => STARTING,
        // A young control plane answers in a moment; an old one may never.
        ControlPlane::Running { started, .. } if !answers => {
            if now.duration_since(*started).as_secs() < YOUNG {
                STARTING
            } else {
                WAITING
            }
        }
        ControlPlane::Running { .. } if outcome.heads_for.is_some() => WAITING,
        ControlPlane::Running { .. } | ControlPlane::Asleep | ControlPlane::Absent if is_limited => LIMITED,
        ControlPlane::Running { .. } if is_upgrading(outcome) => BUSY,
        ControlPlane::Asleep if !outcome.maintained && outcome.store.state.status == Some(true) => ASLEEP,
        ControlPlane::Running { .. } | ControlPlane::Asleep => STEADY,
        // A lost store recovers only by manual action.
        _ if !outcome.maintained && outcome.store.state.reason == Reason::StoreLost => STEADY,
        _ if !outcome.maintained && outcome.store.state.status != Some(true) && !is_limited => {
            let missing = store_missing_since.map(|since| now.duration_since(since).unsigned_abs());
            (missing.unwrap_or_default() / 8).clamp(STORELESS, STORELESS_LONGEST)
        }
        _ => WAITING,
    }
}

/// Whether a worker is being upgraded, or the next one is due.
fn is_upgrading(outcome: &Outcome) -> bool {
    let workers = outcome.workers.as_ref();
    workers.is_some_and(|workers| workers.state.reason == Reason::Updating)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::outcome::{Store, Workers};
    use crate::fixtures::outcome;
    use crate::model::conditions::State;
    use crate::model::control_plane::Failure;
    use crate::model::not_ready::NotReady;

    #[test]
    fn requeue_delay_follows_from_the_outcome() {
        let limited = || State::no(Reason::StoreQuotaExceeded, "x");
        let silent = |control_plane: ControlPlane| Outcome {
            inside: Err(NotReady::api_server("x")),
            outside: Err(NotReady::api_server("x")),
            control_plane,
            ..outcome()
        };
        let failing = || {
            ControlPlane::Failing(Failure {
                container: "x".into(),
                why: "x".into(),
            })
        };
        let running = || outcome().control_plane;
        let (absent, asleep) = (silent(ControlPlane::Absent), silent(ControlPlane::Asleep));
        let with = |store: State, outcome: Outcome| Outcome {
            store: Store::of(store),
            ..outcome
        };
        let ingress_pending = Outcome {
            outside: Err(NotReady {
                reason: Reason::IngressPending,
                message: "x".into(),
            }),
            ..outcome()
        };
        let assumed_ready = Outcome {
            assumed_ready: true,
            ..outcome()
        };
        let upgrading = || Outcome {
            heads_for: Some("v1.36.0".into()),
            ..outcome()
        };
        let queued = Outcome {
            queued: true,
            ..silent(ControlPlane::Absent)
        };
        let missing = || State::no(Reason::StoreUnavailable, "x");
        let lost = || State::no(Reason::StoreLost, "x");
        let with_workers = |reason: Reason| Outcome {
            workers: Some(Workers {
                status: Default::default(),
                state: State::no(reason, "x"),
            }),
            ..outcome()
        };
        // The control plane of the fixture started at second 1000, and its store is missing since
        // then.
        let store_missing_since = Timestamp::from_second(1000).ok();
        for (rule, outcome, now, expected) in [
            ("healthy", outcome(), 1001, STEADY),
            ("a worker is upgraded", with_workers(Reason::Updating), 1001, BUSY),
            (
                "a worker has failed",
                with_workers(Reason::WorkerUpgradeFailed),
                1001,
                STEADY,
            ),
            ("upgrade needs another step", upgrading(), 1001, WAITING),
            (
                "upgrade needs another step, and store has no room",
                with(limited(), upgrading()),
                1001,
                WAITING,
            ),
            ("queued", queued, 1001, STEADY),
            ("readiness assumed", assumed_ready, 1001, STARTING),
            ("young, silent", silent(running()), 1059, STARTING),
            ("old, silent", silent(running()), 1060, WAITING),
            ("ingress is pending", ingress_pending.clone(), 1001, STARTING),
            ("no store yet", with(missing(), absent.clone()), 1001, STORELESS),
            (
                "no store for 40 s",
                with(missing(), absent.clone()),
                1040,
                Duration::from_secs(5),
            ),
            (
                "no store for long",
                with(missing(), absent.clone()),
                2000,
                STORELESS_LONGEST,
            ),
            ("its store is lost", with(lost(), absent.clone()), 1001, STEADY),
            ("no control plane yet", absent.clone(), 1001, WAITING),
            ("asleep", asleep.clone(), 1001, ASLEEP),
            (
                "asleep, without its store",
                with(missing(), asleep.clone()),
                1001,
                STEADY,
            ),
            ("no room, nothing runs", with(limited(), absent), 1001, LIMITED),
            ("no room, asleep", with(limited(), asleep), 1001, LIMITED),
            ("no room, healthy", with(limited(), outcome()), 1001, LIMITED),
            (
                "no room, young, silent",
                with(limited(), silent(running())),
                1001,
                STARTING,
            ),
            (
                "no room, old, silent",
                with(limited(), silent(running())),
                1060,
                WAITING,
            ),
            (
                "no room, ingress is pending",
                with(limited(), ingress_pending),
                1001,
                STARTING,
            ),
            ("no room, failing", with(limited(), silent(failing())), 1001, WAITING),
        ] {
            let now = Timestamp::from_second(now).unwrap();
            assert_eq!(requeue_after(&outcome, store_missing_since, now), expected, "{rule}");
        }
    }
}
