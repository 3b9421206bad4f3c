use std::sync::Arc;

use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use yoke_api::labels;

use crate::cluster::failover::pods::*;
use crate::cluster::failover::start_queue::Admission;
use crate::model::control_plane::{Failure, find_restarted, plan_control_plane};

fn set(replicas: i32) -> StatefulSet {
    serde_json::from_value(serde_json::json!({
        "spec": {"replicas": replicas, "selector": {}, "serviceName": "a",
            "template": {"metadata": {"annotations": {"yoke.drzzl.io/incarnation": "7"}}}},
    }))
    .unwrap()
}

fn pod(statuses: serde_json::Value) -> Arc<Pod> {
    let pod = serde_json::json!({
        "metadata": {"name": "control-plane-0", "uid": "p", "annotations": {
            "yoke.drzzl.io/incarnation": "7"}},
        "status": {"containerStatuses": statuses},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn container(name: &str, state: serde_json::Value, restarts: i32) -> serde_json::Value {
    serde_json::json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state,
        "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-11-21T00:00:00Z"}}})
}

fn running() -> serde_json::Value {
    serde_json::json!({"running": {"startedAt": "2026-11-21T00:00:00Z"}})
}

fn waiting(reason: &str) -> serde_json::Value {
    serde_json::json!({"waiting": {"reason": reason}})
}

fn failure(container: &str) -> Failure {
    Failure {
        container: container.into(),
        why: "exit code 1".into(),
    }
}

#[test]
fn state_follows_set_and_pods() {
    let running_with = |failing: Option<Failure>| ControlPlane::Running {
        pod: "p".into(),
        started: "2026-11-21T00:00:00Z".parse().unwrap(),
        current: true,
        failing,
    };
    let limping = pod(serde_json::json!([
        container("kube-scheduler", waiting("CrashLoopBackOff"), 3),
        container("kube-apiserver", running(), 0)
    ]));
    let up = pod(serde_json::json!([container("kube-apiserver", running(), 0)]));
    let back_off = pod(serde_json::json!([container(
        "kube-apiserver",
        waiting("CrashLoopBackOff"),
        3
    )]));
    let young = pod(serde_json::json!([container(
        "kube-apiserver",
        waiting("PodInitializing"),
        0
    )]));
    for (rule, set, pods, expected) in [
        ("nothing", None, vec![], ControlPlane::Absent),
        ("asleep", Some(set(0)), vec![], ControlPlane::Asleep),
        (
            "going to sleep",
            Some(set(0)),
            vec![up.clone()],
            ControlPlane::GoingToSleep,
        ),
        (
            "no pod yet",
            Some(set(1)),
            vec![],
            ControlPlane::Pending("The control plane's pod is being created.".into()),
        ),
        (
            "starting",
            Some(set(1)),
            vec![young],
            ControlPlane::Pending("Container kube-apiserver has not started yet (PodInitializing).".into()),
        ),
        (
            "back-off",
            Some(set(1)),
            vec![back_off],
            ControlPlane::Failing(failure("kube-apiserver")),
        ),
        ("running", Some(set(1)), vec![up], running_with(None)),
        (
            "a controller in back-off",
            Some(set(1)),
            vec![limping],
            running_with(Some(failure("kube-scheduler"))),
        ),
    ] {
        assert_eq!(plan_control_plane(set.as_ref(), &pods), expected, "{rule}");
    }
}

#[test]
fn pod_of_another_start_is_not_current() {
    let up = [pod(serde_json::json!([container("kube-apiserver", running(), 0)]))];
    for (incarnation, expected) in [(7, true), (8, false)] {
        let mut set = set(1);
        let template = set.spec.as_mut().unwrap().template.metadata.as_mut().unwrap();
        template.annotations = Some([(labels::INCARNATION.to_owned(), incarnation.to_string())].into());
        let ControlPlane::Running { current, .. } = plan_control_plane(Some(&set), &up) else {
            unreachable!("it runs");
        };
        assert_eq!(current, expected, "{incarnation}");
    }
}

#[test]
fn long_back_off_is_cut_short() {
    let stuck = [pod(serde_json::json!([container(
        "kube-apiserver",
        waiting("CrashLoopBackOff"),
        4
    )]))];
    let ran_for = |began: &str| {
        let mut pod = stuck[0].clone();
        let status = Arc::make_mut(&mut pod).status.as_mut().unwrap();
        let status = &mut status.container_statuses.as_mut().unwrap()[0];
        let ended = status.last_state.as_mut().unwrap().terminated.as_mut().unwrap();
        ended.started_at = Some(Time(began.parse().unwrap()));
        [pod]
    };
    let (killed, failed) = (ran_for("2026-11-20T23:55:00Z"), ran_for("2026-11-20T23:55:01Z"));
    // The container ran for a minute, in a pod created at `made` and ready until `until`.
    let ready_until = |made: &str, until: &str| {
        let [mut pod] = ran_for("2026-11-20T23:59:00Z");
        let changed = Arc::make_mut(&mut pod);
        changed.metadata.creation_timestamp = Some(Time(made.parse().unwrap()));
        changed.status.as_mut().unwrap().conditions = Some(vec![PodCondition {
            type_: "Ready".into(),
            status: "False".into(),
            last_transition_time: Some(Time(until.parse().unwrap())),
            ..PodCondition::default()
        }]);
        [pod]
    };
    let again = ready_until("2026-11-20T23:55:00Z", "2026-11-20T23:59:01Z");
    let never = ready_until("2026-11-20T23:55:00Z", "2026-11-20T23:59:00Z");
    let young = ready_until("2026-11-20T23:55:01Z", "2026-11-21T00:00:00Z");
    for (rule, pods, second, expected) in [
        ("of unknown life", &stuck, 20, false),
        ("of unknown life, for long", &stuck, 21, true),
        ("it fails", &failed, 20, false),
        ("it fails, for long", &failed, 21, true),
        ("it had served, and a kubelet may be quick", &killed, 3, false),
        ("it had served, and the kubelet waits", &killed, 4, true),
        ("it had served for a moment", &again, 4, true),
        ("it had not, since it was killed before", &never, 20, false),
        ("it ends each time that it serves", &young, 20, false),
    ] {
        let now = format!("2026-11-21T00:00:{second:02}Z").parse().unwrap();
        assert_eq!(plan_replacement(pods, now).is_some(), expected, "{rule}");
    }
    let up = container("kube-apiserver", running(), 4);
    for (rule, statuses) in [
        ("it runs", serde_json::json!([up])),
        (
            "the API does",
            serde_json::json!([up, container("kube-scheduler", waiting("CrashLoopBackOff"), 4)]),
        ),
    ] {
        let pods = [pod(statuses)];
        let planned = plan_replacement(&pods, "2026-11-22T00:00:00Z".parse().unwrap());
        assert!(planned.is_none(), "{rule}");
    }
}

#[test]
fn a_turn_to_start_is_over_when_no_machine_works_on_it() {
    let nowhere: Pod = serde_json::from_value(serde_json::json!({
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    }))
    .unwrap();
    let (none, nowhere): (&[Arc<Pod>], _) = (&[], [Arc::new(nowhere)]);
    let pending = || ControlPlane::Pending("x".into());
    let runs = || ControlPlane::Running {
        pod: "p".into(),
        started: "2026-11-21T00:00:00Z".parse().unwrap(),
        current: true,
        failing: None,
    };
    let failing = ControlPlane::Failing(failure("x"));
    for (rule, control_plane, pods, (asleep, lost, answers), expected) in [
        (
            "made",
            ControlPlane::Absent,
            none,
            (false, false, false),
            Admission::Acquire,
        ),
        (
            "woken",
            ControlPlane::Asleep,
            none,
            (false, false, false),
            Admission::Acquire,
        ),
        (
            "woken early",
            ControlPlane::GoingToSleep,
            none,
            (false, false, false),
            Admission::Acquire,
        ),
        (
            "asleep",
            ControlPlane::Asleep,
            none,
            (true, false, false),
            Admission::Finish,
        ),
        (
            "made asleep",
            ControlPlane::Absent,
            none,
            (true, false, false),
            Admission::Finish,
        ),
        ("lost", runs(), none, (false, true, true), Admission::Acquire),
        (
            "lost, and to sleep",
            ControlPlane::GoingToSleep,
            none,
            (true, true, false),
            Admission::Finish,
        ),
        (
            "its pod comes",
            pending(),
            none,
            (false, false, false),
            Admission::Continue,
        ),
        (
            "no machine has room",
            pending(),
            &nowhere,
            (false, false, false),
            Admission::Finish,
        ),
        ("it starts", runs(), none, (false, false, false), Admission::Continue),
        ("it serves", runs(), none, (false, false, true), Admission::Finish),
        ("it fails", failing, none, (false, false, false), Admission::Finish),
    ] {
        assert_eq!(
            plan_start(&control_plane, pods, asleep, lost, answers),
            expected,
            "{rule}"
        );
    }
}

#[test]
fn incarnation_is_raised_once_for_each_change() {
    let kept = |number, template: &str| LastStart {
        number,
        template: template.into(),
    };
    for (rule, running, kept, expected) in [
        ("first start", None, None, Incarnation::New(1)),
        ("made again", None, Some(kept(7, "a")), Incarnation::New(8)),
        ("nothing changed", Some(7), Some(kept(7, "a")), Incarnation::Same(7)),
        (
            "kept and not applied yet",
            Some(7),
            Some(kept(8, "a")),
            Incarnation::Same(8),
        ),
        (
            "restored with an old number",
            Some(7),
            Some(kept(9, "b")),
            Incarnation::New(10),
        ),
        ("template changed", Some(7), Some(kept(7, "b")), Incarnation::New(8)),
        ("number lost", Some(7), None, Incarnation::New(7)),
    ] {
        assert_eq!(plan_incarnation(running, kept.as_ref(), "a", 1), expected, "{rule}");
    }
    assert_eq!(running_incarnation(Some(&set(1))), Some(7));
}

#[test]
fn pods_are_forced_after_their_grace() {
    let mut ending = (*pod(serde_json::json!([]))).clone();
    let now = "2026-11-21T00:00:30Z".parse().unwrap();
    assert!(plan_forced(&[Arc::new(ending.clone())], now).is_empty(), "a living pod");
    for (end, forced) in [
        ("2026-11-21T00:00:40Z", 0),
        ("2026-11-21T00:00:20Z", 0),
        ("2026-11-21T00:00:19Z", 1),
    ] {
        ending.metadata.deletion_timestamp = Some(serde_json::from_value(end.into()).unwrap());
        assert_eq!(plan_forced(&[Arc::new(ending.clone())], now).len(), forced, "{end}");
    }
}

#[test]
fn a_pod_that_nobody_ends_is_followed_by_another_start() {
    let now = "2026-11-21T00:01:00Z".parse().unwrap();
    let ending = |name: &str, number: u64, end: &str| {
        let mut pod = (*pod(serde_json::json!([]))).clone();
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(name.into());
        pod.metadata.annotations = Some([(labels::INCARNATION.to_owned(), number.to_string())].into());
        pod.metadata.deletion_timestamp = Some(serde_json::from_value(end.into()).unwrap());
        Arc::new(pod)
    };
    let (over, in_time) = ("2026-11-21T00:00:30Z", "2026-11-21T00:00:55Z");
    let (serves, former) = ("control-plane-0", "control-plane-9");
    for (rule, replicas, pods, stuck, replaced) in [
        ("in time", 1, vec![ending(serves, 7, in_time)], None, &[][..]),
        ("it serves", 1, vec![ending(serves, 7, over)], Some(serves), &[]),
        (
            "another start is due",
            1,
            vec![ending(serves, 6, over)],
            Some(serves),
            &[serves],
        ),
        ("another one serves", 1, vec![ending(former, 7, over)], None, &[former]),
        ("asleep", 0, vec![ending(former, 7, over)], Some(former), &[]),
        (
            "asleep, and another start",
            0,
            vec![ending(former, 6, over)],
            Some(former),
            &[former],
        ),
    ] {
        let set = set(replicas);
        let name = |pod: &Pod| pod.metadata.name.clone();
        assert_eq!(
            plan_stuck(Some(&set), &pods, now).and_then(name).as_deref(),
            stuck,
            "{rule}"
        );
        let found: Vec<_> = plan_replaced(Some(&set), &pods, now)
            .into_iter()
            .filter_map(name)
            .collect();
        assert_eq!(found, replaced, "{rule}");
    }
}

#[test]
fn what_ends_again_and_again_may_run_just_now() {
    let ready = |mut status: serde_json::Value| {
        status["ready"] = true.into();
        status
    };
    for (rule, status, expected) in [
        (
            "it runs, and has ended often",
            container("kube-apiserver", running(), 3),
            Some(failure("kube-apiserver")),
        ),
        (
            "so does its store",
            container("kine-nats", running(), 9),
            Some(failure("kine-nats")),
        ),
        (
            "it waits",
            container("kube-apiserver", waiting("CrashLoopBackOff"), 3),
            Some(failure("kube-apiserver")),
        ),
        ("it has ended twice", container("kube-apiserver", running(), 2), None),
        (
            "it serves again",
            ready(container("kube-apiserver", running(), 9)),
            None,
        ),
        ("nobody waits for it", container("kube-scheduler", running(), 9), None),
    ] {
        assert_eq!(find_restarted(&pod(serde_json::json!([status]))), expected, "{rule}");
    }
}
