//! What may be done now, and what the control plane is doing, from what is observed. Pure.

pub mod takeover;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use yoke_api::labels;

use super::build::stateful_set;

/// A pod whose API waits longer than this between two starts is replaced: the wait grows to five minutes.
const LONGEST_BACK_OFF: SignedDuration = SignedDuration::from_secs(20);

/// The same of an API server that had served. A kubelet waits for ten seconds at the second end within ten minutes, whether
/// something fails or was killed (<https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy>); one that was
/// told to wait for a second only is quicker than this.
const BACK_OFF_OF_SERVING: SignedDuration = SignedDuration::from_secs(3);

/// What ran for longer than its startup probe gives it has served. The same age is asked of a pod that was ready for a moment only: a
/// younger one may have come for one whose API server ends each time that it serves.
const SERVED: SignedDuration = SignedDuration::from_mins(5);

/// Containers without which no API answers.
const API_PATH: [&str; 2] = ["kine-nats", API_SERVER];
const API_SERVER: &str = "kube-apiserver";

/// A pod that is still there this long after its grace period is on a machine that does not answer.
const LONGEST_END: SignedDuration = SignedDuration::from_secs(10);

/// What the control plane is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlPlane {
    /// There is none.
    Absent,
    /// None runs, and none should.
    Asleep,
    /// None should run, and one still does.
    GoingToSleep,
    /// No pod runs yet; a sentence says why.
    Pending(String),
    /// A container ends again and again without which no API answers.
    Failing(Failure),
    /// The API server runs.
    Running {
        /// UID of the pod.
        pod: String,
        /// Since when.
        started: Timestamp,
        /// Whether the pod is of the present template.
        current: bool,
        /// What goes on failing beside it.
        failing: Option<Failure>,
    },
}

/// How often a container was started again that ends again and again.
const RESTARTS: i32 = 3;

/// A container that ends again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which one.
    pub container: String,
    /// How it ended.
    pub why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, why } = self;
        write!(f, "Container {container} ends again and again ({why}).")
    }
}

/// The state of the control plane.
pub fn plan_control_plane(set: Option<&StatefulSet>, pods: &[impl AsRef<Pod>]) -> ControlPlane {
    let Some(spec) = set.and_then(|set| set.spec.as_ref()) else {
        return ControlPlane::Absent;
    };
    if spec.replicas == Some(0) {
        return if pods.is_empty() {
            ControlPlane::Asleep
        } else {
            ControlPlane::GoingToSleep
        };
    }
    let serving = takeover::serving(set, pods).find(|pod| pod.metadata.deletion_timestamp.is_none());
    let Some(pod) = serving else {
        return ControlPlane::Pending("The control plane's pod is being made.".into());
    };
    plan_pod(set, pod)
}

/// The state of a control plane by that of the pod that serves.
pub fn plan_pod(set: Option<&StatefulSet>, pod: &Pod) -> ControlPlane {
    let failing = |of_api: bool| {
        let mut statuses = statuses(pod).filter(|status| is_of_api(status) == of_api);
        statuses.find_map(find_failure)
    };
    if let Some(failure) = failing(true) {
        return ControlPlane::Failing(failure);
    }
    match find_started(pod) {
        Some(started) => ControlPlane::Running {
            pod: pod.metadata.uid.clone().unwrap_or_default(),
            started,
            // The number of the start, which every change of the template raises.
            current: running_incarnation(set) == incarnation_of(pod.metadata.annotations.as_ref()),
            failing: failing(false),
        },
        None => ControlPlane::Pending(describe_pending(pod)),
    }
}

/// The pod to delete because the wait before its API's next start has grown too long, and the kubelet would not start it sooner.
/// For what fails beside an API that is not ended.
pub fn plan_replacement<P: AsRef<Pod>>(pods: &[P], now: Timestamp) -> Option<&Pod> {
    pods.iter().map(AsRef::as_ref).find(|pod| {
        pod.metadata.deletion_timestamp.is_none()
            && statuses(pod).any(|status| {
                let ended = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
                is_of_api(status)
                    && is_backing_off(status)
                    && ended.is_some_and(|ended| waits_long(pod, status, ended, now))
            })
    })
}

fn waits_long(pod: &Pod, status: &ContainerStatus, ended: &ContainerStateTerminated, now: Timestamp) -> bool {
    let Some(end) = ended.finished_at.as_ref().map(|end| end.0) else {
        return false;
    };
    let began = ended.started_at.as_ref().map(|began| began.0);
    let has_served = began.is_some_and(|began| has_served(pod, began, end));
    // Without its store an API server stays, and goes on sooner than another pod would.
    let longest = match has_served && status.name == API_SERVER {
        true => BACK_OFF_OF_SERVING,
        false => LONGEST_BACK_OFF,
    };
    now.duration_since(end) > longest
}

/// Whether what ran from `began` to `end` has served: it ran for long, or its pod, which is no new one, was ready meanwhile.
fn has_served(pod: &Pod, began: Timestamp, end: Timestamp) -> bool {
    let is_old = |since: Timestamp| end.duration_since(since) >= SERVED;
    let changed = takeover::find_ready(pod).and_then(|ready| ready.last_transition_time.as_ref());
    let was_ready = changed.is_some_and(|changed| changed.0 > began);
    is_old(began) || was_ready && pod.creation_timestamp().is_some_and(|made| is_old(made.0))
}

/// What becomes of the turn of a control plane to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It is started now, if it has one.
    Begins,
    /// It is being started.
    Goes,
    /// It needs none, or none any more.
    Over,
}

/// Whether a control plane is being started where none runs. `is_lost`: what runs was lost with its machine, and nothing was
/// asked for in its place yet.
pub fn plan_start<P: AsRef<Pod>>(
    control_plane: &ControlPlane,
    pods: &[P],
    is_asleep: bool,
    is_lost: bool,
    answers: bool,
) -> Start {
    match control_plane {
        _ if is_asleep => Start::Over,
        _ if is_lost => Start::Begins,
        ControlPlane::Absent | ControlPlane::Asleep | ControlPlane::GoingToSleep => Start::Begins,
        ControlPlane::Failing(_) => Start::Over,
        // It is not a machine's work that is in the way.
        ControlPlane::Pending(_) if is_unschedulable(pods) => Start::Over,
        ControlPlane::Running { .. } if answers => Start::Over,
        ControlPlane::Pending(_) | ControlPlane::Running { .. } => Start::Goes,
    }
}

/// Whether no machine has room for a pod.
fn is_unschedulable<P: AsRef<Pod>>(pods: &[P]) -> bool {
    pods.iter().any(|pod| find_unscheduled(pod.as_ref()).is_some())
}

/// The pods whose time to end is over by more than a kubelet that lives would need.
pub fn plan_forced<P: AsRef<Pod>>(pods: &[P], now: Timestamp) -> Vec<&Pod> {
    let pods = pods.iter().map(AsRef::as_ref);
    pods.filter(|pod| {
        // The grace period is in the timestamp already.
        let end = pod.metadata.deletion_timestamp.as_ref();
        end.is_some_and(|end| now.duration_since(end.0) > LONGEST_END)
    })
    .collect()
}

/// The pod that must go before another one of its name can come, or the control plane is asleep, and that no kubelet ends.
pub fn plan_stuck<'p, P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &'p [P], now: Timestamp) -> Option<&'p Pod> {
    let forced = plan_forced(pods, now);
    let is_last = set.and_then(|set| set.spec.as_ref()?.replicas) == Some(0);
    let name = stateful_set::pod_name(takeover::first_of(set));
    let mut stuck = forced.into_iter();
    stuck.find(|pod| is_last || pod.metadata.name.as_ref() == Some(&name))
}

/// The pods that no kubelet ends and that may be taken away: all but the one in whose place another one of the same number of a
/// start would come. It may run on, and two of one number would fight for the store.
pub fn plan_replaced<'p, P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &'p [P], now: Timestamp) -> Vec<&'p Pod> {
    let stuck = plan_stuck(set, pods, now).and_then(|pod| pod.metadata.uid.as_ref());
    let number = running_incarnation(set);
    let is_followed = |pod: &&Pod| {
        let is_stuck = pod.metadata.uid.as_ref() == stuck;
        !is_stuck || incarnation_of(pod.metadata.annotations.as_ref()) != number
    };
    plan_forced(pods, now).into_iter().filter(is_followed).collect()
}

/// What is kept of the last start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastStart {
    /// Its number.
    pub number: u64,
    /// Digest of the template that it was for.
    pub template: String,
}

/// The number that a control plane is to run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incarnation {
    /// The one that it has, or that is kept for it.
    Same(u64),
    /// One that must be kept before it is used.
    New(u64),
}

/// The number for a template: another one for each StatefulSet that is made and each change of its template. `first` is
/// for a control plane of which nothing is known.
pub fn plan_incarnation(running: Option<u64>, kept: Option<&LastStart>, template: &str, first: u64) -> Incarnation {
    match (running, kept) {
        (None, None) => Incarnation::New(first),
        (None, Some(kept)) => Incarnation::New(kept.number.saturating_add(1)),
        // Whether it is of this template is not known: to count on would start every such control plane again.
        (Some(running), None) => Incarnation::New(running),
        (Some(running), Some(kept)) if kept.template == template => Incarnation::Same(running.max(kept.number)),
        (Some(running), Some(kept)) => Incarnation::New(running.max(kept.number).saturating_add(1)),
    }
}

/// Whether the controller of StatefulSets knows what is asked for now.
pub fn is_observed(set: &StatefulSet) -> bool {
    let seen = set.status.as_ref().and_then(|status| status.observed_generation);
    seen == set.metadata.generation
}

/// The number in a StatefulSet.
pub fn running_incarnation(set: Option<&StatefulSet>) -> Option<u64> {
    let template = set?.spec.as_ref()?.template.metadata.as_ref()?;
    incarnation_of(template.annotations.as_ref())
}

fn incarnation_of(annotations: Option<&BTreeMap<String, String>>) -> Option<u64> {
    annotations?.get(labels::INCARNATION)?.parse().ok()
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_deref());
    statuses.into_iter().flatten()
}

fn is_backing_off(status: &ContainerStatus) -> bool {
    let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.and_then(|waiting| waiting.reason.as_deref()) == Some("CrashLoopBackOff")
}

fn is_of_api(status: &ContainerStatus) -> bool {
    API_PATH.contains(&status.name.as_str())
}

fn find_failure(status: &ContainerStatus) -> Option<Failure> {
    let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
    to_failure(status).filter(|_| !runs)
}

/// How a container has ended that was started again often.
fn to_failure(status: &ContainerStatus) -> Option<Failure> {
    (status.restart_count >= RESTARTS).then(|| {
        let ended = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        Failure {
            container: status.name.clone(),
            why: ended.map_or_else(String::new, |ended| format!("exit code {}", ended.exit_code)),
        }
    })
}

/// The part of the API that was started again often, of a pod that does not answer: it may run just now, and end in a moment.
pub fn find_restarted(pod: &Pod) -> Option<Failure> {
    statuses(pod)
        .filter(|status| is_of_api(status) && !status.ready)
        .find_map(to_failure)
}

/// Since when the API server runs.
fn find_started(pod: &Pod) -> Option<Timestamp> {
    let status = statuses(pod).find(|status| status.name == API_SERVER)?;
    let running = status.state.as_ref()?.running.as_ref()?;
    Some(running.started_at.as_ref()?.0)
}

/// What the scheduler says of a pod that it puts nowhere.
fn find_unscheduled(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

fn describe_pending(pod: &Pod) -> String {
    if let Some(message) = find_unscheduled(pod).and_then(|condition| condition.message.as_deref()) {
        return format!("No machine takes the control plane: {message}.");
    }
    let waiting = statuses(pod).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        Some((status.name.as_str(), waiting.reason.as_deref()?))
    });
    match waiting {
        Some((container, reason)) => format!("Container {container} is not started yet ({reason})."),
        None => "The control plane's pod is being started.".into(),
    }
}

#[cfg(test)]
#[path = "gate/tests.rs"]
mod tests;
