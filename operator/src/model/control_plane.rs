//! The state of a control plane, from its StatefulSet and its pods. Pure.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;
use yoke_api::labels;

use crate::model::control_plane;

/// Containers that the API depends on.
pub(crate) const API_PATH: [&str; 2] = ["kine-nats", API_SERVER];

pub(crate) const API_SERVER: &str = "kube-apiserver";

/// State of the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlPlane {
    /// There is no StatefulSet.
    Absent,
    /// No pod runs, and none should.
    Asleep,
    /// A pod still runs, and none should.
    GoingToSleep,
    /// No pod runs yet; the sentence says why.
    Pending(String),
    /// A container that the API depends on is crash-looping.
    Failing(Failure),
    /// The API server runs.
    Running {
        /// UID of the pod.
        pod: String,
        /// Start time of the API server.
        started: Timestamp,
        /// Whether the pod has the current template.
        current: bool,
        /// A failing container that the API does not depend on.
        failing: Option<Failure>,
    },
}

/// Number of restarts from which a container counts as failing.
pub(crate) const RESTARTS: i32 = 3;

/// A container that is crash-looping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Name of the container.
    pub container: String,
    /// Exit code of its last run, as text.
    pub why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, why } = self;
        write!(f, "Container {container} is crash-looping ({why}).")
    }
}

/// The state of the control plane, by its StatefulSet and its pods.
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
    let serving = control_plane::serving(set, pods).find(|pod| pod.metadata.deletion_timestamp.is_none());
    let Some(pod) = serving else {
        return ControlPlane::Pending("The control plane's pod is being created.".into());
    };
    plan_pod(set, pod)
}

/// The state of a control plane, by the state of its serving pod.
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
            // The incarnation, which every change of the template raises.
            current: running_incarnation(set) == incarnation_of(pod.metadata.annotations.as_ref()),
            failing: failing(false),
        },
        None => ControlPlane::Pending(describe_pending(pod)),
    }
}

/// Whether the StatefulSet controller has seen the current spec.
pub fn is_observed(set: &StatefulSet) -> bool {
    let seen = set.status.as_ref().and_then(|status| status.observed_generation);
    seen == set.metadata.generation
}

/// The incarnation in a StatefulSet.
pub fn running_incarnation(set: Option<&StatefulSet>) -> Option<u64> {
    let template = set?.spec.as_ref()?.template.metadata.as_ref()?;
    incarnation_of(template.annotations.as_ref())
}

pub(crate) fn incarnation_of(annotations: Option<&BTreeMap<String, String>>) -> Option<u64> {
    annotations?.get(labels::INCARNATION)?.parse().ok()
}

pub(crate) fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_deref());
    statuses.into_iter().flatten()
}

pub(crate) fn is_backing_off(status: &ContainerStatus) -> bool {
    let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.and_then(|waiting| waiting.reason.as_deref()) == Some("CrashLoopBackOff")
}

pub(crate) fn is_of_api(status: &ContainerStatus) -> bool {
    API_PATH.contains(&status.name.as_str())
}

pub(crate) fn find_failure(status: &ContainerStatus) -> Option<Failure> {
    let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
    to_failure(status).filter(|_| !runs)
}

/// How a container exited, if it was restarted often.
pub(crate) fn to_failure(status: &ContainerStatus) -> Option<Failure> {
    (status.restart_count >= RESTARTS).then(|| {
        let terminated = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        Failure {
            container: status.name.clone(),
            why: terminated.map_or_else(String::new, |terminated| format!("exit code {}", terminated.exit_code)),
        }
    })
}

/// The container of the API that was restarted often, in a pod that is not ready: it may run now,
/// and fail in a moment.
pub fn find_restarted(pod: &Pod) -> Option<Failure> {
    statuses(pod)
        .filter(|status| is_of_api(status) && !status.ready)
        .find_map(to_failure)
}

/// Start time of the running API server.
pub(crate) fn find_started(pod: &Pod) -> Option<Timestamp> {
    let status = statuses(pod).find(|status| status.name == API_SERVER)?;
    let running = status.state.as_ref()?.running.as_ref()?;
    Some(running.started_at.as_ref()?.0)
}

/// The scheduler's condition of a pod that it cannot place.
pub(crate) fn find_unscheduled(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

pub(crate) fn describe_pending(pod: &Pod) -> String {
    if let Some(message) = find_unscheduled(pod).and_then(|condition| condition.message.as_deref()) {
        return format!("No node has room for the control plane: {message}.");
    }
    let waiting = statuses(pod).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        Some((status.name.as_str(), waiting.reason.as_deref()?))
    });
    match waiting {
        Some((container, reason)) => format!("Container {container} has not started yet ({reason})."),
        None => "The control plane's pod is starting.".into(),
    }
}

/// Ordinal of the serving pod.
pub fn first_of(set: Option<&StatefulSet>) -> i32 {
    let ordinals = set.and_then(|set| set.spec.as_ref()?.ordinals.as_ref()?.start);
    ordinals.unwrap_or_default()
}

/// The pods that serve. They may be a terminating pod and its successor of the same name. Neither a
/// standby pod nor an earlier serving pod is among them.
pub fn serving<'p, P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &'p [P]) -> impl Iterator<Item = &'p Pod> {
    numbered(pods, first_of(set))
}

/// Whether callers can still reach the serving pod: not if it is being deleted, is gone, or has
/// only just started.
pub fn has_other<P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &[P]) -> bool {
    serving(set, pods).any(|pod| !ends(pod) && has_ready_api(pod))
}

pub(crate) fn numbered<P: AsRef<Pod>>(pods: &[P], number: i32) -> impl Iterator<Item = &Pod> {
    let name = control_plane::pod_name(number);
    let pods = pods.iter().map(AsRef::as_ref);
    pods.filter(move |pod| pod.metadata.name.as_ref() == Some(&name))
}

/// Whether a pod is being deleted.
pub fn ends(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the kubelet reports the pod as ready.
pub fn is_ready(pod: &Pod) -> bool {
    find_ready(pod).is_some_and(|ready| ready.status == "True")
}

/// Whether the pod is ready, or its API is ready and every other container fails: then nothing more
/// will become ready.
pub fn has_ready_api(pod: &Pod) -> bool {
    // For a node without contact the node controller changes the condition but leaves the reason.
    let has_unready_container = |ready: &PodCondition| ready.reason.as_deref() == Some("ContainersNotReady");
    let is_serving = |name: &str| statuses(pod).any(|status| status.name == name && status.ready);
    let is_settled = |status: &ContainerStatus| status.ready || find_failure(status).is_some();
    is_ready(pod)
        || find_ready(pod).is_some_and(has_unready_container)
            && API_PATH.into_iter().all(is_serving)
            && statuses(pod).all(is_settled)
}

pub(crate) fn find_ready(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == "Ready")
}

/// Name of the StatefulSet. Its first pod is `control-plane-0`, and each planned takeover raises
/// the ordinal.
pub const NAME: &str = "control-plane";

/// Name of the pod with an ordinal.
pub fn pod_name(number: i32) -> String {
    format!("{NAME}-{number}")
}
