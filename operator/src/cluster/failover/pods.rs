//! Derives the state of a control plane from its StatefulSet and pods, and decides what may be done
//! with it now: start, replacement, forced deletion, incarnation. Pure.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::cluster::failover::start_queue::Admission;
use crate::model::control_plane::{
    self, API_SERVER, ControlPlane, find_unscheduled, incarnation_of, is_backing_off, is_of_api, running_incarnation,
    statuses,
};

/// A pod whose API waits longer than this between two restarts is replaced: the backoff grows to
/// five minutes.
const LONGEST_BACK_OFF: SignedDuration = SignedDuration::from_secs(20);

/// The shorter limit for an API server that has served before.
///
/// A kubelet waits for ten seconds before the second restart within ten minutes, whether the
/// container failed or was killed
/// (<https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy>). A kubelet
/// that is configured to wait for one second only is faster than this limit.
const BACK_OFF_OF_SERVING: SignedDuration = SignedDuration::from_secs(3);

/// A container that ran longer than its startup probe allows has served. A pod that was ready for a
/// moment only must be this old too: a younger one may have replaced a pod whose API server exits
/// each time that it serves.
const SERVED: SignedDuration = SignedDuration::from_mins(5);

/// A pod that still exists this long after its grace period is on a node that does not respond.
const LONGEST_END: SignedDuration = SignedDuration::from_secs(10);

/// The pod to delete because the restart backoff of its API has grown too long, which the kubelet
/// would not shorten. A pod whose other containers fail stays, as its API runs.
pub fn plan_replacement<P: AsRef<Pod>>(pods: &[P], now: Timestamp) -> Option<&Pod> {
    pods.iter().map(AsRef::as_ref).find(|pod| {
        pod.metadata.deletion_timestamp.is_none()
            && statuses(pod).any(|status| {
                let ended = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
                is_of_api(status)
                    && is_backing_off(status)
                    && ended.is_some_and(|ended| backs_off_long(pod, status, ended, now))
            })
    })
}

fn backs_off_long(pod: &Pod, status: &ContainerStatus, ended: &ContainerStateTerminated, now: Timestamp) -> bool {
    let Some(end) = ended.finished_at.as_ref().map(|end| end.0) else {
        return false;
    };
    let started = ended.started_at.as_ref().map(|started| started.0);
    let has_served = started.is_some_and(|started| has_served(pod, started, end));
    // Without its store an API server keeps running, and recovers sooner than a new pod would
    // start.
    let longest = match has_served && status.name == API_SERVER {
        true => BACK_OFF_OF_SERVING,
        false => LONGEST_BACK_OFF,
    };
    now.duration_since(end) > longest
}

/// Whether a container that ran from `started` to `end` has served: it ran for long, or
/// its pod was ready in between and is not new.
fn has_served(pod: &Pod, started: Timestamp, end: Timestamp) -> bool {
    let is_old = |since: Timestamp| end.duration_since(since) >= SERVED;
    let changed = control_plane::find_ready(pod).and_then(|ready| ready.last_transition_time.as_ref());
    let was_ready = changed.is_some_and(|changed| changed.0 > started);
    is_old(started) || was_ready && pod.creation_timestamp().is_some_and(|created| is_old(created.0))
}

/// The admission that a control plane needs from the start queue. `is_lost`: its pod was lost with its node, and no
/// replacement was requested yet.
pub fn plan_start<P: AsRef<Pod>>(
    control_plane: &ControlPlane,
    pods: &[P],
    is_asleep: bool,
    is_lost: bool,
    answers: bool,
) -> Admission {
    match control_plane {
        _ if is_asleep => Admission::Finish,
        _ if is_lost => Admission::Acquire,
        ControlPlane::Absent | ControlPlane::Asleep | ControlPlane::GoingToSleep => Admission::Acquire,
        ControlPlane::Failing(_) => Admission::Finish,
        // The node's work is not what delays it.
        ControlPlane::Pending(_) if is_unschedulable(pods) => Admission::Finish,
        ControlPlane::Running { .. } if answers => Admission::Finish,
        ControlPlane::Pending(_) | ControlPlane::Running { .. } => Admission::Continue,
    }
}

/// Whether the scheduler finds no node for a pod.
fn is_unschedulable<P: AsRef<Pod>>(pods: &[P]) -> bool {
    pods.iter().any(|pod| find_unscheduled(pod.as_ref()).is_some())
}

/// The pods whose grace period is over by more than a responsive kubelet would need.
pub fn plan_forced<P: AsRef<Pod>>(pods: &[P], now: Timestamp) -> Vec<&Pod> {
    let pods = pods.iter().map(AsRef::as_ref);
    pods.filter(|pod| {
        // The deletion timestamp includes the grace period.
        let end = pod.metadata.deletion_timestamp.as_ref();
        end.is_some_and(|end| now.duration_since(end.0) > LONGEST_END)
    })
    .collect()
}

/// The pod that blocks its successor of the same name, or the sleep of the control plane, and that
/// no kubelet terminates.
pub fn plan_stuck<'p, P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &'p [P], now: Timestamp) -> Option<&'p Pod> {
    let forced = plan_forced(pods, now);
    let is_last = set.and_then(|set| set.spec.as_ref()?.replicas) == Some(0);
    let name = control_plane::pod_name(control_plane::first_of(set));
    let mut stuck = forced.into_iter();
    stuck.find(|pod| is_last || pod.metadata.name.as_ref() == Some(&name))
}

/// The pods that no kubelet terminates and that may be deleted by force. A pod whose successor
/// would have the same incarnation may not: it may still run, and the two would fight for the
/// store.
pub fn plan_replaced<'p, P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &'p [P], now: Timestamp) -> Vec<&'p Pod> {
    let stuck = plan_stuck(set, pods, now).and_then(|pod| pod.metadata.uid.as_ref());
    let number = running_incarnation(set);
    let is_followed = |pod: &&Pod| {
        let is_stuck = pod.metadata.uid.as_ref() == stuck;
        !is_stuck || incarnation_of(pod.metadata.annotations.as_ref()) != number
    };
    plan_forced(pods, now).into_iter().filter(is_followed).collect()
}

/// The persisted record of the last start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastStart {
    /// Incarnation of the start.
    pub number: u64,
    /// Digest of the template that it was started with.
    pub template: String,
}

/// The incarnation that a control plane must run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incarnation {
    /// The one that it has, or that is persisted for it.
    Same(u64),
    /// A new one that must be persisted before it is used.
    New(u64),
}

/// The incarnation for a template: a new one for each created StatefulSet and each change of its
/// template. `first` is for a control plane without any record.
pub fn plan_incarnation(
    running: Option<u64>,
    last_start: Option<&LastStart>,
    template: &str,
    first: u64,
) -> Incarnation {
    match (running, last_start) {
        (None, None) => Incarnation::New(first),
        (None, Some(last)) => Incarnation::New(last.number.saturating_add(1)),
        // The template of the running incarnation is not known. A new incarnation would restart
        // every such control plane.
        (Some(running), None) => Incarnation::New(running),
        (Some(running), Some(last)) if last.template == template => Incarnation::Same(running.max(last.number)),
        (Some(running), Some(last)) => Incarnation::New(running.max(last.number).saturating_add(1)),
    }
}

#[cfg(test)]
#[path = "pods/tests.rs"]
mod tests;
