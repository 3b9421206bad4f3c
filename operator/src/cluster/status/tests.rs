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
    condition_of(status, ConditionType::Ready)
}

/// A condition's status and reason.
fn condition_of(status: &ClusterStatus, type_: ConditionType) -> (&str, &str) {
    let found = conditions::find(&status.conditions, type_).unwrap();
    (&found.status, &found.reason)
}

#[test]
fn awake_time_is_counted_when_it_ends() {
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
fn ready_and_phase_follow_from_the_outcome() {
    let refused = Refusal {
        reason: Reason::UnknownVersion,
        message: "x".into(),
    };
    let pending = ControlPlane::Pending("x".into());
    let cases: Vec<(&str, Outcome, Phase, (&str, &str))> = vec![
        ("API answers", outcome(), Phase::Running, ("True", "AsExpected")),
        (
            "API answers inside the host only",
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
            "API does not answer",
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
            "queued to wake",
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
            "lost with its node, and queued",
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
    assert_eq!(
        condition_of(&status, ConditionType::Accepted),
        ("False", "UnknownVersion")
    );
}

#[test]
fn unchanged_outcome_is_the_same_status() {
    let first = plan(None, &outcome(), 1001);
    let second = plan(Some(first.clone()), &outcome(), 2000);
    assert!(is_same(&first, &second));
}

#[test]
fn failing_controller_sets_degraded_only() {
    let mut degraded = outcome();
    let ControlPlane::Running { failing, .. } = &mut degraded.control_plane else {
        unreachable!("it runs");
    };
    *failing = Some(Failure {
        container: "kube-scheduler".into(),
        why: "exit code 1".into(),
    });
    let status = plan(None, &degraded, 1001);
    assert_eq!(
        (status.phase, ready(&status)),
        (Some(Phase::Running), ("True", "AsExpected"))
    );
    assert_eq!(
        condition_of(&status, ConditionType::Degraded),
        ("True", "ContainerFailing")
    );
    let degraded = conditions::find(&status.conditions, ConditionType::Degraded).unwrap();
    let expected = "Container kube-scheduler is crash-looping (exit code 1).";
    assert_eq!(degraded.message, expected);
}

#[test]
fn history_lists_versions_that_ran() {
    let first = plan(None, &outcome(), 1001);
    assert_eq!(first.version.as_deref(), Some("v1.35.4"));
    let old_pod = ControlPlane::Running {
        pod: "p".into(),
        started: at(1000),
        current: false,
        failing: None,
    };
    let rolling = Outcome {
        version: Some("v1.35.5".into()),
        control_plane: old_pod,
        ..outcome()
    };
    let second = plan(Some(first), &rolling, 2000);
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
    let upgrading = plan(Some(third.clone()), &step, 3000);
    assert_eq!(
        (upgrading.phase, ready(&upgrading)),
        (Some(Phase::Updating), ("False", "Updating"))
    );
    assert_eq!(
        condition_of(&upgrading, ConditionType::Progressing),
        ("True", "Updating")
    );
    // Versions that never answered are removed oldest first.
    let last = (6..26).fold(third, |before, patch| {
        let requested = Outcome {
            version: Some(format!("v1.35.{patch}")),
            control_plane: ControlPlane::Asleep,
            ..outcome()
        };
        plan(Some(before), &requested, 4000)
    });
    let versions: Vec<_> = last.history.iter().map(|entry| entry.version.as_str()).collect();
    assert_eq!((versions.len(), versions[0], versions[9]), (10, "v1.35.25", "v1.35.5"));
}

#[test]
fn takeover_sets_progressing_or_degraded() {
    use crate::host_nodes::drain::State;
    let progressing = ("True", "MachineLeaving");
    for (rule, takeover, expected, degraded) in [
        ("no takeover", None, ("False", "AsExpected"), "False"),
        ("takeover waits", Some(State::Waiting), progressing, "False"),
        (
            "standby pod runs",
            Some(State::StandBy(std::time::Instant::now())),
            progressing,
            "False",
        ),
        ("no other node", Some(State::Nowhere), ("False", "AsExpected"), "False"),
        (
            "standby pod was not ready in time",
            Some(State::Failed(std::time::Instant::now())),
            ("False", "AsExpected"),
            "True",
        ),
    ] {
        let status = plan(None, &Outcome { takeover, ..outcome() }, 2000);
        let find = |type_| conditions::find(&status.conditions, type_).unwrap();
        let (progressing_found, degraded_found) = (find(ConditionType::Progressing), find(ConditionType::Degraded));
        assert_eq!(
            (progressing_found.status.as_str(), progressing_found.reason.as_str()),
            expected,
            "{rule}"
        );
        assert_eq!(degraded_found.status, degraded, "{rule}");
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
fn endpoint_has_a_port_other_than_443() {
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
fn addons_condition_is_that_of_the_last_check() {
    let state = |status: &ClusterStatus| {
        let found = conditions::find(&status.conditions, ConditionType::AddonsReady);
        found.map(|found| format!("{}/{}", found.status, found.reason))
    };
    let with = |addons: Option<State>| Outcome { addons, ..outcome() };
    assert_eq!(state(&plan(None, &with(None), 1)), None);
    let bad = plan(None, &with(Some(State::no(Reason::AddonConflict, "x"))), 1);
    assert_eq!(state(&bad).as_deref(), Some("False/AddonConflict"));
    assert_eq!(ready(&bad), ("True", "AsExpected"), "the API still answers");
    let later = plan(Some(bad), &with(None), 2);
    assert_eq!(
        state(&later).as_deref(),
        Some("False/AddonConflict"),
        "state of the last check"
    );
    let mut changed = later;
    for condition in &mut changed.conditions {
        condition.observed_generation = Some(0);
    }
    let unknown = Some("Unknown/AddonsPending");
    let now = plan(Some(changed.clone()), &with(None), 3);
    assert_eq!(state(&now).as_deref(), unknown, "last checked for another spec");
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
fn workers_condition_is_that_of_the_last_check() {
    let workers_of = |status: &ClusterStatus| {
        let found = conditions::find(&status.conditions, ConditionType::WorkersUpdated);
        let state = found.map(|found| format!("{}/{}", found.status, found.reason));
        (state, status.workers.as_ref().map(|workers| workers.total))
    };
    let checked = Outcome {
        workers: Some(Workers {
            status: WorkersStatus {
                total: 2,
                ..WorkersStatus::default()
            },
            state: State::no(Reason::WorkerUpgradeFailed, "x"),
        }),
        ..outcome()
    };
    assert_eq!(workers_of(&plan(None, &outcome(), 1)), (None, None), "no worker yet");
    let failed = plan(None, &checked, 1);
    let expected = (Some("False/WorkerUpgradeFailed".to_owned()), Some(2));
    assert_eq!(workers_of(&failed), expected);
    assert_eq!(ready(&failed), ("True", "AsExpected"), "the API still answers");
    let mut later = plan(Some(failed), &outcome(), 2);
    assert_eq!(workers_of(&later), expected);
    for condition in &mut later.conditions {
        condition.observed_generation = Some(0);
    }
    let unknown = (Some("Unknown/WorkersPending".to_owned()), Some(2));
    assert_eq!(
        workers_of(&plan(Some(later), &outcome(), 3)),
        unknown,
        "last checked for another spec"
    );
}

#[test]
fn store_size_is_published_when_it_differs_much() {
    const MIB: i64 = 1 << 20;
    for (published, found, expected) in [
        (None, Some(7), Some(7)),
        (Some(7), None, None),
        (Some(0), Some(MIB), Some(0)),
        (Some(0), Some(MIB + 1), Some(MIB + 1)),
        (Some(100 * MIB), Some(110 * MIB), Some(100 * MIB)),
        (Some(100 * MIB), Some(90 * MIB - 1), Some(90 * MIB - 1)),
        (Some(i64::MIN), Some(i64::MAX), Some(i64::MAX)),
    ] {
        assert_eq!(plan_bytes(published, found), expected, "{published:?}, {found:?}");
    }
}
