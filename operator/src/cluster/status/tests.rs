use yoke_api::Reason;
use yoke_api::workers::WorkersStatus;

use crate::cluster::outcome::{Store, Workers};
use crate::cluster::sleep::state::SleepState;
use crate::cluster::status::*;
use crate::fixtures::{cluster, config, identity, outcome};
use crate::model::control_plane::Failure;
use crate::model::not_ready::NotReady;
use crate::model::refusal::Refusal;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn plan(before: Option<ClusterStatus>, outcome: &Outcome, now: i64) -> ClusterStatus {
    let mut cluster = cluster("a");
    cluster.status = before;
    plan_status(&cluster, &identity(&cluster), &config(), outcome, at(now)).0
}

fn ready(status: &ClusterStatus) -> (&str, &str) {
    said(status, ConditionType::Ready)
}

/// A condition's status and reason.
fn said(status: &ClusterStatus, type_: ConditionType) -> (&str, &str) {
    let found = conditions::find(&status.conditions, type_).unwrap();
    (&found.status, &found.reason)
}

#[test]
fn hours_awake_are_counted_when_they_end() {
    let seconds = |status: &ClusterStatus| {
        status
            .usage
            .as_ref()
            .map(|usage| (usage.awake_seconds, usage.awake_since.is_some()))
    };
    let refused = Outcome {
        accepted: Err(Refusal {
            reason: Reason::UnknownVersion,
            message: "x".into(),
        }),
        ..outcome()
    };
    let asleep = Outcome {
        run_state: SleepState::ByOwner,
        ..outcome()
    };
    let never = Outcome {
        control_plane: ControlPlane::Absent,
        ..refused.clone()
    };
    let paused_before = Outcome {
        paused: true,
        control_plane: ControlPlane::Absent,
        ..outcome()
    };
    let stopped = Outcome {
        run_state: SleepState::ByOwner,
        control_plane: ControlPlane::Asleep,
        ..refused.clone()
    };
    for nothing in [&never, &paused_before, &stopped, &asleep] {
        assert_eq!(seconds(&plan(None, nothing, 5)), None, "{nothing:?}");
    }
    let mut status = None;
    for (outcome, now, expected) in [
        (&outcome(), 10, (0, true)),
        (&outcome(), 100, (0, true)),
        // Refused while maintained or paused: the control plane still runs.
        (&refused, 110, (0, true)),
        (&asleep, 130, (120, false)),
        (&asleep, 230, (120, false)),
        (&outcome(), 300, (120, true)),
        (&stopped, 330, (150, false)),
    ] {
        let planned = plan(status, outcome, now);
        assert_eq!(seconds(&planned), Some(expected), "at {now}");
        status = Some(planned);
    }
}

#[test]
fn ready_and_phase_follow_what_was_found() {
    let refused = Refusal {
        reason: Reason::UnknownVersion,
        message: "x".into(),
    };
    let pending = ControlPlane::Pending("x".into());
    let cases: Vec<(&str, Outcome, Phase, (&str, &str))> = vec![
        ("works", outcome(), Phase::Running, ("True", "AsExpected")),
        (
            "inside only",
            Outcome {
                outside: Err(NotReady {
                    reason: Reason::IngressPending,
                    message: "x".into(),
                }),
                ..outcome()
            },
            Phase::Provisioning,
            ("False", "IngressPending"),
        ),
        (
            "not inside",
            Outcome {
                inside: Err(NotReady::api_server("x")),
                outside: Err(NotReady::api_server("x")),
                ..outcome()
            },
            Phase::Provisioning,
            ("False", "APIServerNotReady"),
        ),
        (
            "no pod",
            Outcome {
                inside: Err(NotReady::api_server("x")),
                outside: Err(NotReady::api_server("x")),
                control_plane: pending,
                ..outcome()
            },
            Phase::Provisioning,
            ("False", "PodPending"),
        ),
        (
            "store missing",
            Outcome {
                inside: Err(NotReady::api_server("x")),
                outside: Err(NotReady::api_server("x")),
                control_plane: ControlPlane::Absent,
                store: Store::of(State::no(Reason::StoreUnavailable, "x")),
                ..outcome()
            },
            Phase::Provisioning,
            ("False", "StoreUnavailable"),
        ),
        (
            "asleep",
            Outcome {
                run_state: SleepState::ByOwner,
                control_plane: ControlPlane::Asleep,
                inside: Err(NotReady::api_server("x")),
                ..outcome()
            },
            Phase::Asleep,
            ("False", "AsleepByOwner"),
        ),
        (
            "its turn to wake comes",
            Outcome {
                control_plane: ControlPlane::Asleep,
                inside: Err(NotReady::api_server("x")),
                outside: Err(NotReady::api_server("x")),
                queued: true,
                ..outcome()
            },
            Phase::Provisioning,
            ("False", "Queued"),
        ),
        (
            "lost with its machine, and its turn comes",
            Outcome {
                control_plane: ControlPlane::Asleep,
                inside: Err(NotReady::api_server("x")),
                outside: Err(NotReady::api_server("x")),
                queued: true,
                lost: true,
                ..outcome()
            },
            Phase::Provisioning,
            ("False", "MachineLost"),
        ),
        (
            "going to sleep",
            Outcome {
                run_state: SleepState::ByOwner,
                control_plane: ControlPlane::GoingToSleep,
                ..outcome()
            },
            Phase::Updating,
            ("False", "AsleepByOwner"),
        ),
        (
            "refused at first",
            Outcome {
                accepted: Err(refused.clone()),
                control_plane: ControlPlane::Absent,
                inside: Err(NotReady::api_server("x")),
                outside: Err(NotReady::api_server("x")),
                version: None,
                ..outcome()
            },
            Phase::Refused,
            ("False", "UnknownVersion"),
        ),
    ];
    for (rule, outcome, phase, expected) in cases {
        let status = plan(None, &outcome, 1001);
        assert_eq!((status.phase, ready(&status)), (Some(phase), expected), "{rule}");
    }
    // A later refusal leaves the running control plane as it is.
    let before = plan(None, &outcome(), 1001);
    let status = plan(
        Some(before),
        &Outcome {
            accepted: Err(refused),
            version: None,
            ..outcome()
        },
        1002,
    );
    assert_eq!(
        (status.phase, ready(&status)),
        (Some(Phase::Running), ("True", "AsExpected"))
    );
    assert_eq!(said(&status, ConditionType::Accepted), ("False", "UnknownVersion"));
}

#[test]
fn unchanged_outcome_is_the_same_status() {
    let first = plan(None, &outcome(), 1001);
    let second = plan(Some(first.clone()), &outcome(), 2000);
    assert!(is_same(&first, &second));
}

#[test]
fn what_fails_beside_an_api_degrades_it_and_no_more() {
    let mut limping = outcome();
    let ControlPlane::Running { failing, .. } = &mut limping.control_plane else {
        unreachable!("it runs");
    };
    *failing = Some(Failure {
        container: "kube-scheduler".into(),
        why: "exit code 1".into(),
    });
    let status = plan(None, &limping, 1001);
    assert_eq!(
        (status.phase, ready(&status)),
        (Some(Phase::Running), ("True", "AsExpected"))
    );
    assert_eq!(said(&status, ConditionType::Degraded), ("True", "ContainerFailing"));
    let degraded = conditions::find(&status.conditions, ConditionType::Degraded).unwrap();
    let expected = "Container kube-scheduler is crash-looping (exit code 1).";
    assert_eq!(degraded.message, expected);
}

#[test]
fn history_tells_versions_that_ran() {
    let first = plan(None, &outcome(), 1001);
    assert_eq!(first.version.as_deref(), Some("v1.35.4"));
    let old_pod = ControlPlane::Running {
        pod: "p".into(),
        started: at(1000),
        current: false,
        failing: None,
    };
    let begun = Outcome {
        version: Some("v1.35.5".into()),
        control_plane: old_pod,
        ..outcome()
    };
    let second = plan(Some(first), &begun, 2000);
    assert_eq!(
        (second.phase, ready(&second)),
        (Some(Phase::Updating), ("False", "Updating"))
    );
    assert_eq!(second.version.as_deref(), Some("v1.35.4"));
    assert_eq!((second.history.len(), second.history[0].completed.clone()), (2, None));
    let done = Outcome {
        version: Some("v1.35.5".into()),
        ..outcome()
    };
    let third = plan(Some(second), &done, 3000);
    assert_eq!(
        (third.phase, third.version.as_deref()),
        (Some(Phase::Running), Some("v1.35.5"))
    );
    assert_eq!(third.history[0].completed, Some(Time(at(3000))));
    assert_eq!(third.history[1].version, "v1.35.4");
    // A version that is only a step towards another one.
    let step = Outcome {
        heads_for: Some("v1.36.0".into()),
        ..done
    };
    let on_the_way = plan(Some(third.clone()), &step, 3000);
    assert_eq!(
        (on_the_way.phase, ready(&on_the_way)),
        (Some(Phase::Updating), ("False", "Updating"))
    );
    assert_eq!(said(&on_the_way, ConditionType::Progressing), ("True", "Updating"));
    // Versions that never answered are removed oldest first.
    let last = (6..26).fold(third, |before, patch| {
        let asked = Outcome {
            version: Some(format!("v1.35.{patch}")),
            control_plane: ControlPlane::Asleep,
            ..outcome()
        };
        plan(Some(before), &asked, 4000)
    });
    let versions: Vec<_> = last.history.iter().map(|entry| entry.version.as_str()).collect();
    assert_eq!((versions.len(), versions[0], versions[9]), (10, "v1.35.25", "v1.35.5"));
}

#[test]
fn a_machine_that_is_about_to_go_shows() {
    use crate::host_nodes::drain::State;
    let progressing = ("True", "MachineLeaving");
    for (rule, takeover, expected, degraded) in [
        ("all is well", None, ("False", "AsExpected"), "False"),
        ("others come first", Some(State::Waiting), progressing, "False"),
        (
            "another pod stands by",
            Some(State::StandBy(std::time::Instant::now())),
            progressing,
            "False",
        ),
        (
            "there is no other machine",
            Some(State::Nowhere),
            ("False", "AsExpected"),
            "False",
        ),
        (
            "none came in time",
            Some(State::Failed(std::time::Instant::now())),
            ("False", "AsExpected"),
            "True",
        ),
    ] {
        let status = plan(None, &Outcome {
                takeover,
                ..outcome()
            }, 2000);
        let find = |type_| conditions::find(&status.conditions, type_).unwrap();
        let (found, attention) = (find(ConditionType::Progressing), find(ConditionType::Degraded));
        assert_eq!((found.status.as_str(), found.reason.as_str()), expected, "{rule}");
        assert_eq!(attention.status, degraded, "{rule}");
        assert_eq!(find(ConditionType::Ready).status, "True", "{rule}");
    }
}

#[test]
fn silence_after_the_start_time_is_unavailable() {
    let ran = plan(None, &outcome(), 1001);
    let silent = Outcome {
        inside: Err(NotReady::api_server("x")),
        outside: Err(NotReady::api_server("x")),
        ..outcome()
    };
    assert_eq!(plan(Some(ran.clone()), &silent, 1030).phase, Some(Phase::Provisioning));
    assert_eq!(plan(Some(ran), &silent, 1061).phase, Some(Phase::Unavailable));
}

#[test]
fn endpoint_shows_the_port_that_is_not_common() {
    let mut config = config();
    let cluster = cluster("a");
    let endpoint = build_endpoint(&identity(&cluster), &config);
    assert_eq!(endpoint.url, "https://a-bcdfghjk.yoke.test");
    assert_eq!(endpoint.address, "https://100.64.0.2:443");
    config.ingress.port = 8443;
    let endpoint = build_endpoint(&identity(&cluster), &config);
    assert_eq!(endpoint.url, "https://a-bcdfghjk.yoke.test:8443");
    assert_eq!(endpoint.issuer, "https://a-bcdfghjk.yoke.test");
}

#[test]
fn add_ons_are_told_of_when_they_were_looked_at() {
    let state = |status: &ClusterStatus| {
        let found = conditions::find(&status.conditions, ConditionType::AddonsReady);
        found.map(|found| format!("{}/{}", found.status, found.reason))
    };
    let with = |addons: Option<State>| Outcome { addons, ..outcome() };
    assert_eq!(state(&plan(None, &with(None), 1)), None);
    let bad = plan(None, &with(Some(State::no(Reason::AddonConflict, "x"))), 1);
    assert_eq!(state(&bad).as_deref(), Some("False/AddonConflict"));
    assert_eq!(ready(&bad), ("True", "AsExpected"), "the API answers all the same");
    let later = plan(Some(bad), &with(None), 2);
    assert_eq!(
        state(&later).as_deref(),
        Some("False/AddonConflict"),
        "as it was last seen"
    );
    let mut changed = later;
    for condition in &mut changed.conditions {
        condition.observed_generation = Some(0);
    }
    let unknown = Some("Unknown/AddonsPending");
    let now = plan(Some(changed.clone()), &with(None), 3);
    assert_eq!(state(&now).as_deref(), unknown, "of another spec");
    let paused = Outcome {
        paused: true,
        ..with(None)
    };
    assert_eq!(
        state(&plan(Some(changed), &paused, 3)).as_deref(),
        unknown,
        "paused since"
    );
}

#[test]
fn workers_are_told_of_as_they_were_last_seen() {
    let said = |status: &ClusterStatus| {
        let found = conditions::find(&status.conditions, ConditionType::WorkersUpdated);
        let state = found.map(|found| format!("{}/{}", found.status, found.reason));
        (state, status.workers.as_ref().map(|workers| workers.total))
    };
    let looked = Outcome {
        workers: Some(Workers {
            status: WorkersStatus {
                total: 2,
                ..WorkersStatus::default()
            },
            state: State::no(Reason::WorkerUpgradeFailed, "x"),
        }),
        ..outcome()
    };
    assert_eq!(said(&plan(None, &outcome(), 1)), (None, None), "there were never any");
    let failed = plan(None, &looked, 1);
    let expected = (Some("False/WorkerUpgradeFailed".to_owned()), Some(2));
    assert_eq!(said(&failed), expected);
    assert_eq!(ready(&failed), ("True", "AsExpected"), "the API answers all the same");
    let mut later = plan(Some(failed), &outcome(), 2);
    assert_eq!(said(&later), expected);
    for condition in &mut later.conditions {
        condition.observed_generation = Some(0);
    }
    let unknown = (Some("Unknown/WorkersPending".to_owned()), Some(2));
    assert_eq!(said(&plan(Some(later), &outcome(), 3)), unknown, "of another spec");
}

#[test]
fn a_store_is_told_of_when_it_has_changed() {
    const MIB: i64 = 1 << 20;
    for (told, found, expected) in [
        (None, Some(7), Some(7)),
        (Some(7), None, None),
        (Some(0), Some(MIB), Some(0)),
        (Some(0), Some(MIB + 1), Some(MIB + 1)),
        (Some(100 * MIB), Some(110 * MIB), Some(100 * MIB)),
        (Some(100 * MIB), Some(90 * MIB - 1), Some(90 * MIB - 1)),
        (Some(i64::MIN), Some(i64::MAX), Some(i64::MAX)),
    ] {
        assert_eq!(plan_bytes(told, found), expected, "{told:?}, {found:?}");
    }
}
