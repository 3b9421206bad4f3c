//! Decides which control planes are taken over now: those on nodes that are about to shut down, and
//! those with a terminating pod. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, labels};

use crate::host_nodes::budget::plan_room;
use crate::model::control_plane;
use crate::model::host_node::HostNode;
use crate::model::quantity::to_millicores;

/// Timeout until the other pod is standby. Shutdowns are usually announced two minutes ahead.
pub const LIMIT: Duration = Duration::from_secs(110);
/// Delay of the next attempt after a failed takeover: there may be a node with free resources by
/// then.
pub const AGAIN: Duration = Duration::from_mins(10);

/// Taints of nodes that are out of operation.
const AWAY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Message of a kubelet that has received the signal of `GracefulNodeShutdown`
/// (pkg/kubelet/nodeshutdown of Kubernetes 1.35).
const SHUTTING_DOWN: &str = "node is shutting down";

/// A control plane's pod that is terminating, or is on a node that is about to shut down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainingControlPlane {
    /// UID of the pod.
    pub pod: String,
    /// Key of its Cluster.
    pub cluster: ObjectRef<Cluster>,
    /// Name of its node.
    pub node: String,
    /// Whether another node can take a pod like this one.
    pub has_other: bool,
    /// Whether the pod is already terminating.
    pub ends: bool,
}

/// A planned takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Key of the Cluster.
    pub cluster: ObjectRef<Cluster>,
    /// Name of the node.
    pub node: String,
    /// Whether the pod is already terminating.
    pub ends: bool,
    /// State of the takeover.
    pub state: State,
}

/// State of a planned takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Other takeovers come first.
    Waiting,
    /// Another pod is becoming standby. Contains the start time.
    StandBy(Instant),
    /// The takeover failed at this time. The pod stays until it is evicted, or until the next
    /// attempt.
    Failed(Instant),
    /// No other node can take the pod.
    Nowhere,
}

/// Returns whether a node is about to shut down.
pub fn is_leaving(node: &HostNode, taints: &[String]) -> bool {
    let mut own = node.spec.taints.iter();
    own.any(|taint| taints.contains(&taint.key)) || is_shut_down(node)
}

/// Counts the allocatable cores of the nodes that take pods of some class, by the tolerations of
/// the classes.
pub fn count_cores<M: AsRef<HostNode>>(nodes: &[M], taints: &[String], classes: &[&[Toleration]]) -> usize {
    let nodes = nodes.iter().map(AsRef::as_ref);
    let takes = nodes.filter(|node| {
        let mut classes = classes.iter();
        classes.any(|tolerations| takes(node, taints, tolerations))
    });
    let thousandths = takes.filter_map(|node| to_millicores(node.status.allocatable.get("cpu")?));
    thousandths.sum::<usize>().div_ceil(1000)
}

/// Returns whether a node takes a pod with these tolerations, by its taints.
fn takes(node: &HostNode, taints: &[String], tolerations: &[Toleration]) -> bool {
    let mut refusals = node.spec.taints.iter();
    !is_leaving(node, taints) && !refusals.any(|taint| refuses(taint, tolerations))
}

/// Returns whether Kubernetes has found that the node is unreachable.
pub fn is_unreachable(node: &HostNode) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == AWAY[1])
}

/// Returns whether the node's kubelet ends its pods because the node is shutting down. Only the
/// condition's message says so: the pods have no deletion timestamp then, and the taint is that of
/// any node that is not ready.
fn is_shut_down(node: &HostNode) -> bool {
    let mut conditions = node.status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let said = ready
        .filter(|ready| ready.status != "True")
        .and_then(|ready| ready.message.as_ref());
    said.is_some_and(|said| said.contains(SHUTTING_DOWN))
}

/// Returns whether a node other than the pod's own takes a pod like this one, by the nodes' taints.
/// `false` for a pod that is not scheduled.
pub fn has_other<M: AsRef<HostNode>>(nodes: &[M], pod: &Pod, taints: &[String]) -> bool {
    let spec = pod.spec.as_ref();
    let Some(own) = spec.and_then(|spec| spec.node_name.as_ref()) else {
        return false;
    };
    let tolerations = spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let mut nodes = nodes.iter().map(AsRef::as_ref);
    nodes.any(|node| node.metadata.name.as_ref() != Some(own) && takes(node, taints, tolerations))
}

fn refuses(taint: &Taint, tolerations: &[Toleration]) -> bool {
    let tolerated = |toleration: &Toleration| {
        let is_key = toleration.key.as_ref().is_none_or(|key| *key == taint.key);
        let is_effect = toleration.effect.as_ref().is_none_or(|effect| *effect == taint.effect);
        let is_value = toleration.operator.as_deref() == Some("Exists") || toleration.value == taint.value;
        is_key && is_effect && is_value
    };
    // Kubernetes adds a toleration of these taints for five minutes to every pod.
    let is_away = AWAY.contains(&taint.key.as_str());
    is_away || taint.effect != "PreferNoSchedule" && !tolerations.iter().any(tolerated)
}

/// Lists the pods to take over, in a stable order:
///
/// - control planes' pods on nodes that are about to shut down;
/// - terminating pods with a recorded takeover. Any other terminating pod has been taken over
///   already.
pub fn plan_leavers<M: AsRef<HostNode>, P: AsRef<Pod>>(
    nodes: &[M],
    pods: &[P],
    taints: &[String],
    before: &HashMap<String, Notice>,
) -> Vec<DrainingControlPlane> {
    let is_noted = |pod: &Pod| {
        let notice = pod.metadata.uid.as_ref().and_then(|uid| before.get(uid));
        notice.is_some_and(|notice| notice.ends)
    };
    let leaves = |pod: &Pod| match control_plane::ends(pod) {
        true => is_noted(pod),
        false => is_on_leaving(nodes, pod, taints),
    };
    let pods = pods.iter().map(AsRef::as_ref).filter(|pod| leaves(pod));
    let mut leavers: Vec<_> = pods.filter_map(|pod| plan_leaver(nodes, pod, taints)).collect();
    leavers.sort_by(|a, b| a.pod.cmp(&b.pod));
    alternate(leavers)
}

/// Interleaves the Tenants, so that one with many pods does not delay the others.
fn alternate(leavers: Vec<DrainingControlPlane>) -> Vec<DrainingControlPlane> {
    let mut of_tenant = HashMap::<_, usize>::new();
    let ranked = leavers.into_iter().map(|leaver| {
        let rank = of_tenant.entry(leaver.cluster.namespace.clone()).or_default();
        *rank += 1;
        (*rank, leaver)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, leaver)| leaver).collect()
}

/// Describes a pod to take over; `None` if it is not scheduled, or is no control plane's.
pub fn plan_leaver<M: AsRef<HostNode>>(nodes: &[M], pod: &Pod, taints: &[String]) -> Option<DrainingControlPlane> {
    let node = pod.spec.as_ref()?.node_name.clone()?;
    let label = |key: &str| pod.labels().get(key);
    Some(DrainingControlPlane {
        pod: pod.uid().unwrap_or_default(),
        cluster: ObjectRef::new(label(labels::CLUSTER)?).within(label(labels::TENANT)?),
        // If only the pod ends, its successor may run on the same node.
        has_other: !is_on_leaving(nodes, pod, taints) || has_other(nodes, pod, taints),
        ends: control_plane::ends(pod),
        node,
    })
}

fn is_on_leaving<M: AsRef<HostNode>>(nodes: &[M], pod: &Pod, taints: &[String]) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let mut nodes = nodes.iter().map(AsRef::as_ref);
    own.is_some() && nodes.any(|node| node.metadata.name.as_ref() == own && is_leaving(node, taints))
}

/// Plans the next state of each takeover. At most `most` takeovers start per minute.
pub fn plan_notices(
    before: &HashMap<String, Notice>,
    leavers: Vec<DrainingControlPlane>,
    past: &mut VecDeque<Instant>,
    most: usize,
    now: Instant,
) -> HashMap<String, Notice> {
    let noticed = leavers.into_iter().map(|leaver| {
        let pod = leaver.pod.clone();
        let notice = plan_notice(before.get(&pod), leaver, past, most, now);
        (pod, notice)
    });
    noticed.collect()
}

/// Plans the next state of one takeover. A pod that is already terminating has no timeout.
pub fn plan_notice(
    before: Option<&Notice>,
    leaver: DrainingControlPlane,
    past: &mut VecDeque<Instant>,
    most: usize,
    now: Instant,
) -> Notice {
    let is_over = |since| !leaver.ends && now.duration_since(since) >= LIMIT;
    let state = match before.map(|notice| notice.state) {
        Some(State::Failed(since)) if now.duration_since(since) < AGAIN => State::Failed(since),
        _ if !leaver.has_other => State::Nowhere,
        Some(State::StandBy(since)) if is_over(since) => State::Failed(now),
        Some(State::StandBy(since)) => State::StandBy(since),
        _ if plan_room(past, now, most) => State::StandBy(now),
        _ => State::Waiting,
    };
    Notice {
        cluster: leaver.cluster,
        node: leaver.node,
        ends: leaver.ends,
        state,
    }
}

/// Returns the Clusters to requeue: changed ones, and on each check those with a takeover in
/// progress. No watch event tells when their next step is due.
pub fn plan_calls(before: &HashMap<String, Notice>, after: &HashMap<String, Notice>) -> Vec<ObjectRef<Cluster>> {
    let gone = before.iter().filter(|(pod, _)| !after.contains_key(*pod));
    let due = after.iter().filter(|(pod, notice)| {
        let changed = before.get(*pod).is_none_or(|known| known.state != notice.state);
        changed || matches!(notice.state, State::StandBy(_))
    });
    due.chain(gone).map(|(_, notice)| notice.cluster.clone()).collect()
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
