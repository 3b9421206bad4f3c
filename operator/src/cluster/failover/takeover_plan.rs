//! The planned takeover of a control plane whose node is about to leave, or whose pod is being
//! deleted: which pod serves, and which step is next. Pure.
//!
//! ```text
//!  serves: N                       ordinals.start N, replicas 1
//!  drain notice, or N is being deleted
//!     ─▶ standby: N + 1            replicas 2      its store follows, its API server serves,
//!                                                  its controllers wait for its store
//!  it is ready ─▶ serves: N + 1    ordinals.start N + 1, replicas 1
//!                                                  N is released: it gets SIGTERM, its store resigns
//! ```
//!
//! The template stays the same, or a rolling update would stop the previous pod first.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::cluster::resources::stateful_set;
use crate::host_nodes::drain::State;
use crate::model::control_plane::{self, ControlPlane, ends, first_of, has_ready_api, numbered, serving};
use crate::model::control_plane::{incarnation_of, running_incarnation};

/// The next step of a takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One pod serves, and there is no standby pod.
    Alone,
    /// A standby pod must run.
    StandBy,
    /// The standby pod is ready, and must serve now.
    TakeOver,
    /// The standby pod must serve before it is ready: the previous pod is terminating already.
    Replace,
}

/// Reason for a planned takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The node of the pod is about to leave, and another node has room.
    HostNode,
    /// The pod is being deleted, and still serves for a while.
    End,
}

/// The next step for a control plane that must run with this incarnation.
pub fn plan_step<P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &[P], incarnation: u64, cause: Option<Cause>) -> Step {
    // Another incarnation replaces the pod, and so moves it.
    if running_incarnation(set) != Some(incarnation) {
        return Step::Alone;
    }
    let first = first_of(set);
    let of_this_start = |pod: &&Pod| !ends(pod) && has_incarnation(pod, incarnation);
    let standby = numbered(pods, first.saturating_add(1)).find(of_this_start);
    // An evicted pod is not replaced before the standby pod serves.
    let ended = numbered(pods, first).any(ends);
    let leaves = cause == Some(Cause::HostNode);
    // A replacement of the serving pod may become ready later than the standby pod.
    let serves = numbered(pods, first).any(|pod| of_this_start(&pod) && has_ready_api(pod));
    // A class may tolerate the taints of a node that is about to leave.
    let is_elsewhere = |standby| numbered(pods, first).all(|pod| node_of(pod) != node_of(standby));
    match standby {
        Some(standby) if has_ready_api(standby) && (ended || !serves || leaves && is_elsewhere(standby)) => {
            Step::TakeOver
        }
        _ if cause == Some(Cause::End) => Step::StandBy,
        Some(_) if ended => Step::Replace,
        Some(_) if !serves => Step::StandBy,
        _ if leaves => Step::StandBy,
        _ => Step::Alone,
    }
}

/// The wanted pods of a control plane.
#[derive(Clone, Debug)]
pub struct Pods {
    /// Ordinal of the serving pod.
    pub first: i32,
    /// Number of pods.
    pub replicas: i32,
    /// The next step of the takeover.
    pub step: Step,
    /// The pod that still serves while it is being deleted, and the state of its takeover.
    pub lingering: Option<(Arc<Pod>, State)>,
}

impl Pods {
    /// No pods, for a control plane that is asleep.
    pub const fn none(first: i32) -> Self {
        Self {
            first,
            replicas: 0,
            step: Step::Alone,
            lingering: None,
        }
    }

    /// The pods of an awake control plane after a step, when pod `first` serves.
    pub const fn after(step: Step, first: i32, lingering: Option<(Arc<Pod>, State)>) -> Self {
        let (first, replicas) = match step {
            Step::Alone => (first, 1),
            Step::StandBy => (first, 2),
            Step::TakeOver | Step::Replace => (first.saturating_add(1), 1),
        };
        Self {
            first,
            replicas,
            step,
            lingering,
        }
    }

    /// State of a control plane whose pod still serves while it is being deleted.
    pub fn plan_lingering(&self, set: &StatefulSet) -> Option<ControlPlane> {
        let (pod, _) = self.lingering.as_ref()?;
        let serves = pod.metadata.name == Some(control_plane::pod_name(self.first));
        serves.then(|| control_plane::plan_pod(Some(set), pod))
    }
}

/// Why the serving pod must be taken over, if it must. `lingering` is the takeover of a pod that is being
/// deleted, `leaving` that of a pod whose node is about to leave.
pub const fn plan_cause(lingering: Option<State>, leaving: Option<State>) -> Option<Cause> {
    match (lingering, leaving) {
        (Some(State::StandBy(_)), _) => Some(Cause::End),
        (None, Some(State::StandBy(_))) => Some(Cause::HostNode),
        _ => None,
    }
}

/// The pods to release, so that they exit at once: all but the wanted ones of this incarnation. A
/// lingering pod still serves although it is being deleted.
pub fn plan_released<'p, P: AsRef<Pod>>(pods: &'p [P], incarnation: u64, wanted: &Pods) -> Vec<&'p Pod> {
    let lingers = wanted.lingering.is_some();
    let names: Vec<_> = (wanted.first..wanted.first.saturating_add(wanted.replicas))
        .map(control_plane::pod_name)
        .collect();
    let stays = |pod: &Pod| {
        let position = names.iter().position(|name| pod.metadata.name.as_ref() == Some(name));
        let terminates = ends(pod) && !(position == Some(0) && lingers);
        has_incarnation(pod, incarnation) && position.is_some() && !terminates
    };
    pods.iter().map(AsRef::as_ref).filter(|pod| !stays(pod)).collect()
}

/// The pod that still serves although it is being deleted. A pod of this incarnation does so for a
/// while, unless it is released.
pub fn find_lingering<'p, P: AsRef<Pod>>(
    set: Option<&StatefulSet>,
    pods: &'p [P],
    incarnation: u64,
    now: Timestamp,
) -> Option<&'p Pod> {
    let lingers = |pod: &&Pod| {
        has_incarnation(pod, incarnation) && has_ready_api(pod) && lingers_until(pod).is_some_and(|end| now < end)
    };
    serving(set, pods).find(lingers)
}

/// Until when a pod that is being deleted serves at most.
fn lingers_until(pod: &Pod) -> Option<Timestamp> {
    let end = pod.metadata.deletion_timestamp.as_ref()?.0;
    // The deletion timestamp includes the grace period.
    let grace = pod.metadata.deletion_grace_period_seconds?;
    let deleted_at = end.checked_sub(SignedDuration::from_secs(grace)).ok()?;
    let longest = SignedDuration::from_secs(grace.min(stateful_set::LINGER_SECONDS));
    deleted_at.checked_add(longest).ok()
}

fn has_incarnation(pod: &Pod, incarnation: u64) -> bool {
    incarnation_of(pod.metadata.annotations.as_ref()) == Some(incarnation)
}

fn node_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::control_plane::{has_other, is_ready};

    fn set(first: i32, replicas: i32) -> StatefulSet {
        serde_json::from_value(serde_json::json!({
            "spec": {"replicas": replicas, "ordinals": {"start": first}, "selector": {}, "serviceName": "a",
                "template": {"metadata": {"annotations": {"yoke.drzzl.io/incarnation": "7"}}}},
        }))
        .unwrap()
    }

    fn pod(number: i32, is_ready: bool) -> Arc<Pod> {
        let ready = if is_ready { "True" } else { "False" };
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": format!("control-plane-{number}"), "annotations": {"yoke.drzzl.io/incarnation": "7"}},
            "spec": {"containers": [], "nodeName": format!("node-{number}")},
            "status": {"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]},
        }))
        .unwrap();
        Arc::new(pod)
    }

    fn ending(mut pod: Arc<Pod>) -> Arc<Pod> {
        Arc::make_mut(&mut pod).metadata.deletion_timestamp =
            Some(serde_json::from_value("2026-11-21T00:00:10Z".into()).unwrap());
        pod
    }

    #[test]
    fn api_is_ready_without_a_ready_controller() {
        let pod = |ready: &str, reason: Option<&str>, api_server: bool, restarts: i32| -> Pod {
            let container = |name: &str, is_ready: bool| {
                serde_json::json!({"name": name, "image": "", "imageID": "", "ready": is_ready,
                    "restartCount": restarts, "state": {"waiting": {"reason": "x"}}})
            };
            serde_json::from_value(serde_json::json!({"status": {
                "conditions": [{"type": "Ready", "status": ready, "reason": reason}],
                "containerStatuses": [container("kine-nats", true), container("kube-apiserver", api_server),
                    container("kube-scheduler", false)]}}))
            .unwrap()
        };
        let not_ready = Some("ContainersNotReady");
        for (rule, pod, expected) in [
            ("every container is ready", pod("True", None, true, 0), (true, true)),
            ("a controller fails", pod("False", not_ready, true, 3), (false, true)),
            (
                "a controller has not started",
                pod("False", not_ready, true, 0),
                (false, false),
            ),
            (
                "the API server is not ready",
                pod("False", not_ready, false, 3),
                (false, false),
            ),
            ("the node is silent", pod("False", None, true, 3), (false, false)),
            ("no status", Pod::default(), (false, false)),
        ] {
            assert_eq!((is_ready(&pod), has_ready_api(&pod)), expected, "{rule}");
        }
    }

    #[test]
    fn step_follows_from_cause_and_pods() {
        let old = || pod(3, true);
        let (next, early) = (|| pod(4, true), || pod(4, false));
        let mut foreign = next();
        Arc::make_mut(&mut foreign).metadata.annotations =
            Some([("yoke.drzzl.io/incarnation".to_owned(), "6".to_owned())].into());
        let mut beside = next();
        Arc::make_mut(&mut beside).spec = old().spec.clone();
        let (leaving, deleted) = (Some(Cause::HostNode), Some(Cause::End));
        for (rule, incarnation, cause, pods, expected) in [
            (
                "standby pod on the same node",
                7,
                leaving,
                vec![old(), beside.clone()],
                Step::StandBy,
            ),
            ("no cause", 7, None, vec![old()], Step::Alone),
            ("the node leaves", 7, leaving, vec![old()], Step::StandBy),
            (
                "standby pod is not ready",
                7,
                leaving,
                vec![old(), early()],
                Step::StandBy,
            ),
            ("standby pod is ready", 7, leaving, vec![old(), next()], Step::TakeOver),
            (
                "pod of another incarnation",
                7,
                leaving,
                vec![old(), foreign],
                Step::StandBy,
            ),
            (
                "standby pod terminates",
                7,
                leaving,
                vec![old(), ending(next())],
                Step::StandBy,
            ),
            ("the node stays", 7, None, vec![old(), next()], Step::Alone),
            ("the pod is deleted", 7, deleted, vec![ending(old())], Step::StandBy),
            (
                "deleted pod, standby pod not ready",
                7,
                deleted,
                vec![ending(old()), early()],
                Step::StandBy,
            ),
            (
                "deleted pod, standby pod ready",
                7,
                deleted,
                vec![ending(old()), next()],
                Step::TakeOver,
            ),
            (
                "deleted pod, standby pod on the same node",
                7,
                deleted,
                vec![ending(old()), beside],
                Step::TakeOver,
            ),
            (
                "the pod terminates, standby pod not ready",
                7,
                None,
                vec![ending(old()), early()],
                Step::Replace,
            ),
            (
                "the pod terminates, standby pod ready",
                7,
                None,
                vec![ending(old()), next()],
                Step::TakeOver,
            ),
            (
                "the pod terminates, no standby pod",
                7,
                None,
                vec![ending(old())],
                Step::Alone,
            ),
            ("the pod is gone", 7, None, vec![early()], Step::StandBy),
            (
                "replacement and standby pod not ready",
                7,
                None,
                vec![pod(3, false), early()],
                Step::StandBy,
            ),
            (
                "standby pod is ready first",
                7,
                None,
                vec![pod(3, false), next()],
                Step::TakeOver,
            ),
            ("replacement is ready first", 7, None, vec![old(), early()], Step::Alone),
            (
                "another incarnation is due",
                8,
                leaving,
                vec![old(), next()],
                Step::Alone,
            ),
        ] {
            let step = plan_step(Some(&set(3, 1)), &pods, incarnation, cause);
            assert_eq!(step, expected, "{rule}");
        }
        assert_eq!(
            plan_step::<Arc<Pod>>(None, &[], 7, leaving),
            Step::Alone,
            "no StatefulSet"
        );
    }

    #[test]
    fn other_pod_exists_while_the_previous_pod_serves() {
        let standby = || pod(1, true);
        for (rule, pods, expected) in [
            ("the previous pod serves", vec![pod(0, true), standby()], true),
            ("the previous pod is gone", vec![standby()], false),
            (
                "the previous pod has just started",
                vec![pod(0, false), standby()],
                false,
            ),
            (
                "the previous pod terminates",
                vec![ending(pod(0, true)), standby()],
                false,
            ),
        ] {
            assert_eq!(has_other(Some(&set(0, 2)), &pods), expected, "{rule}");
        }
    }

    #[test]
    fn unwanted_pods_are_released() {
        let (old, next) = (|| pod(3, true), || pod(4, false));
        let ends = || vec![ending(old()), next()];
        for (rule, incarnation, wanted, lingers, pods, expected) in [
            ("no takeover", 7, (3, 1), false, vec![old()], &[][..]),
            ("standby pod runs", 7, (3, 2), false, vec![old(), next()], &[]),
            ("the deleted pod lingers", 7, (3, 2), true, ends(), &[]),
            (
                "the deleted pod lingers no more",
                7,
                (3, 1),
                false,
                vec![ending(old())],
                &[3],
            ),
            ("standby pod has taken over", 7, (4, 1), true, ends(), &[3]),
            (
                "previous pod is not deleted yet",
                7,
                (4, 1),
                false,
                vec![old(), next()],
                &[3],
            ),
            ("standby pod is not wanted", 7, (3, 1), false, vec![old(), next()], &[4]),
            (
                "standby pod terminates",
                7,
                (3, 2),
                true,
                vec![ending(old()), ending(next())],
                &[4],
            ),
            ("another incarnation", 8, (3, 1), false, vec![old()], &[3]),
            ("asleep", 7, (3, 0), false, ends(), &[3, 4]),
        ] {
            let (first, replicas) = wanted;
            let wanted = Pods {
                first,
                replicas,
                step: Step::Alone,
                lingering: lingers.then(|| (old(), State::Waiting)),
            };
            let released = plan_released(&pods, incarnation, &wanted);
            let names: Vec<_> = released.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|number| format!("control-plane-{number}"))
                .collect();
            assert_eq!(names, expected, "{rule}");
        }
    }

    #[test]
    fn terminating_pod_serves_for_a_while() {
        let at = |second: i64| "2026-11-21T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second);
        // SIGTERM at second 0.
        let deleted_at = |is_ready: bool, grace: i64| {
            let mut pod = pod(3, is_ready);
            let meta = &mut Arc::make_mut(&mut pod).metadata;
            meta.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(grace)));
            meta.deletion_grace_period_seconds = Some(grace);
            pod
        };
        for (rule, pod, incarnation, second, expected) in [
            ("just deleted", deleted_at(true, 35), 7, 1, true),
            ("deleted for 19 s", deleted_at(true, 35), 7, 19, true),
            ("deleted for 20 s", deleted_at(true, 35), 7, 20, false),
            ("shorter grace period", deleted_at(true, 5), 7, 5, false),
            ("not ready", deleted_at(false, 35), 7, 1, false),
            ("another incarnation is due", deleted_at(true, 35), 8, 1, false),
            ("not deleted", pod(3, true), 7, 1, false),
        ] {
            let pods = [pod];
            let found = find_lingering(Some(&set(3, 1)), &pods, incarnation, at(second));
            assert_eq!(found.is_some(), expected, "{rule}");
        }
    }

    #[test]
    fn serving_pod_follows_from_the_stateful_set() {
        let pods = [pod(3, true), pod(4, true), pod(10, true)];
        let names = |first| {
            let set = set(first, 1);
            let serving = serving(Some(&set), &pods).map(|pod| pod.metadata.name.clone().unwrap());
            serving.collect::<Vec<_>>()
        };
        assert_eq!(names(4), ["control-plane-4"]);
        assert_eq!(names(1), Vec::<String>::new());
        assert_eq!(first_of(None), 0);
    }
}
