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
    let with_failing_controller = pod(serde_json::json!([
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
        ("no StatefulSet", None, vec![], ControlPlane::Absent),
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
            vec![with_failing_controller],
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
    let ran_since = |started: &str| {
        let mut pod = stuck[0].clone();
        let status = Arc::make_mut(&mut pod).status.as_mut().unwrap();
        let status = &mut status.container_statuses.as_mut().unwrap()[0];
        let ended = status.last_state.as_mut().unwrap().terminated.as_mut().unwrap();
        ended.started_at = Some(Time(started.parse().unwrap()));
        [pod]
    };
    let (killed, failed) = (ran_since("2026-11-20T23:55:00Z"), ran_since("2026-11-20T23:55:01Z"));
    // The container ran for a minute, in a pod created at `created` and ready until `until`.
    let ready_until = |created: &str, until: &str| {
        let [mut pod] = ran_since("2026-11-20T23:59:00Z");
        let changed = Arc::make_mut(&mut pod);
        changed.metadata.creation_timestamp = Some(Time(created.parse().unwrap()));
        changed.status.as_mut().unwrap().conditions = Some(vec![PodCondition {
            type_: "Ready".into(),
            status: "False".into(),
            last_transition_time: Some(Time(until.parse().unwrap())),
            ..PodCondition::default()
        }]);
        [pod]
    };
    let served_again = ready_until("2026-11-20T23:55:00Z", "2026-11-20T23:59:01Z");
    let never_served = ready_until("2026-11-20T23:55:00Z", "2026-11-20T23:59:00Z");
    let young = ready_until("2026-11-20T23:55:01Z", "2026-11-21T00:00:00Z");
    for (rule, pods, second, expected) in [
        ("unknown start", &stuck, 20, false),
        ("unknown start, long backoff", &stuck, 21, true),
        ("failed early", &failed, 20, false),
        ("failed early, long backoff", &failed, 21, true),
        ("had served, short backoff", &killed, 3, false),
        ("had served, longer backoff", &killed, 4, true),
        ("had served for a moment", &served_again, 4, true),
        ("was ready only before its last start", &never_served, 20, false),
        ("young pod exits each time that it serves", &young, 20, false),
    ] {
        let now = format!("2026-11-21T00:00:{second:02}Z").parse().unwrap();
        assert_eq!(plan_replacement(pods, now).is_some(), expected, "{rule}");
    }
    let up = container("kube-apiserver", running(), 4);
    for (rule, statuses) in [
        ("API server runs", serde_json::json!([up])),
        (
            "API server runs, scheduler fails",
            serde_json::json!([up, container("kube-scheduler", waiting("CrashLoopBackOff"), 4)]),
        ),
    ] {
        let pods = [pod(statuses)];
        let planned = plan_replacement(&pods, "2026-11-22T00:00:00Z".parse().unwrap());
        assert!(planned.is_none(), "{rule}");
    }
}

#[test]
fn start_slot_is_freed_when_no_node_works_on_the_start() {
    let unscheduled: Pod = serde_json::from_value(serde_json::json!({
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    }))
    .unwrap();
    let (none, unschedulable): (&[Arc<Pod>], _) = (&[], [Arc::new(unscheduled)]);
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
            "created",
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
            "woken while it goes to sleep",
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
            "created asleep",
            ControlPlane::Absent,
            none,
            (true, false, false),
            Admission::Finish,
        ),
        ("lost", runs(), none, (false, true, true), Admission::Acquire),
        (
            "lost, and going to sleep",
            ControlPlane::GoingToSleep,
            none,
            (true, true, false),
            Admission::Finish,
        ),
        (
            "pod is pending",
            pending(),
            none,
            (false, false, false),
            Admission::Continue,
        ),
        (
            "no node has room",
            pending(),
            &unschedulable,
            (false, false, false),
            Admission::Finish,
        ),
        (
            "API server starts",
            runs(),
            none,
            (false, false, false),
            Admission::Continue,
        ),
        (
            "API server answers",
            runs(),
            none,
            (false, false, true),
            Admission::Finish,
        ),
        (
            "container fails",
            failing,
            none,
            (false, false, false),
            Admission::Finish,
        ),
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
    let last_start = |number, template: &str| LastStart {
        number,
        template: template.into(),
    };
    for (rule, running, last, expected) in [
        ("first start", None, None, Incarnation::New(1)),
        ("created again", None, Some(last_start(7, "a")), Incarnation::New(8)),
        (
            "nothing changed",
            Some(7),
            Some(last_start(7, "a")),
            Incarnation::Same(7),
        ),
        (
            "persisted and not applied yet",
            Some(7),
            Some(last_start(8, "a")),
            Incarnation::Same(8),
        ),
        (
            "restored with an old number",
            Some(7),
            Some(last_start(9, "b")),
            Incarnation::New(10),
        ),
        (
            "template changed",
            Some(7),
            Some(last_start(7, "b")),
            Incarnation::New(8),
        ),
        ("number lost", Some(7), None, Incarnation::New(7)),
    ] {
        assert_eq!(plan_incarnation(running, last.as_ref(), "a", 1), expected, "{rule}");
    }
    assert_eq!(running_incarnation(Some(&set(1))), Some(7));
}

#[test]
fn pods_are_forced_after_their_grace() {
    let mut ending = (*pod(serde_json::json!([]))).clone();
    let now = "2026-11-21T00:00:30Z".parse().unwrap();
    assert!(
        plan_forced(&[Arc::new(ending.clone())], now).is_empty(),
        "a pod that is not deleted"
    );
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
fn stuck_pod_is_replaced_by_another_incarnation() {
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
    let (serving, previous) = ("control-plane-0", "control-plane-9");
    for (rule, replicas, pods, stuck, replaced) in [
        (
            "within its grace period",
            1,
            vec![ending(serving, 7, in_time)],
            None,
            &[][..],
        ),
        (
            "serving pod is stuck",
            1,
            vec![ending(serving, 7, over)],
            Some(serving),
            &[],
        ),
        (
            "another incarnation is due",
            1,
            vec![ending(serving, 6, over)],
            Some(serving),
            &[serving],
        ),
        (
            "another pod serves",
            1,
            vec![ending(previous, 7, over)],
            None,
            &[previous],
        ),
        ("asleep", 0, vec![ending(previous, 7, over)], Some(previous), &[]),
        (
            "asleep, another incarnation",
            0,
            vec![ending(previous, 6, over)],
            Some(previous),
            &[previous],
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
fn crash_looping_container_may_run_now() {
    let ready = |mut status: serde_json::Value| {
        status["ready"] = true.into();
        status
    };
    for (rule, status, expected) in [
        (
            "runs after many restarts",
            container("kube-apiserver", running(), 3),
            Some(failure("kube-apiserver")),
        ),
        (
            "store runs after many restarts",
            container("kine-nats", running(), 9),
            Some(failure("kine-nats")),
        ),
        (
            "waits in backoff",
            container("kube-apiserver", waiting("CrashLoopBackOff"), 3),
            Some(failure("kube-apiserver")),
        ),
        ("restarted twice", container("kube-apiserver", running(), 2), None),
        ("ready again", ready(container("kube-apiserver", running(), 9)), None),
        (
            "container without waiting callers",
            container("kube-scheduler", running(), 9),
            None,
        ),
    ] {
        assert_eq!(find_restarted(&pod(serde_json::json!([status]))), expected, "{rule}");
    }
}
