//! Decides which control planes are taken over now: those on nodes that are about to shut down, and
//! those with a terminating pod. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, labels};

use crate::host_nodes::budget::take_from_budget;
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
    pub is_terminating: bool,
}

/// A planned takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTakeover {
    /// Key of the Cluster.
    pub cluster: ObjectRef<Cluster>,
    /// Name of the node.
    pub node: String,
    /// Whether the pod is already terminating.
    pub is_terminating: bool,
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
pub fn is_draining(node: &HostNode, taints: &[String]) -> bool {
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
    !is_draining(node, taints) && !refusals.any(|taint| refuses(taint, tolerations))
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
    let message = ready
        .filter(|ready| ready.status != "True")
        .and_then(|ready| ready.message.as_ref());
    message.is_some_and(|message| message.contains(SHUTTING_DOWN))
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
pub fn plan_draining<M: AsRef<HostNode>, P: AsRef<Pod>>(
    nodes: &[M],
    pods: &[P],
    taints: &[String],
    before: &HashMap<String, PlannedTakeover>,
) -> Vec<DrainingControlPlane> {
    let is_recorded = |pod: &Pod| {
        let takeover = pod.metadata.uid.as_ref().and_then(|uid| before.get(uid));
        takeover.is_some_and(|takeover| takeover.is_terminating)
    };
    let is_due = |pod: &Pod| match control_plane::ends(pod) {
        true => is_recorded(pod),
        false => is_on_draining_node(nodes, pod, taints),
    };
    let pods = pods.iter().map(AsRef::as_ref).filter(|pod| is_due(pod));
    let mut draining: Vec<_> = pods.filter_map(|pod| describe_draining(nodes, pod, taints)).collect();
    draining.sort_by(|a, b| a.pod.cmp(&b.pod));
    alternate(draining)
}

/// Interleaves the Tenants, so that one with many pods does not delay the others.
fn alternate(draining: Vec<DrainingControlPlane>) -> Vec<DrainingControlPlane> {
    let mut ranks = HashMap::<_, usize>::new();
    let ranked = draining.into_iter().map(|each| {
        let rank = ranks.entry(each.cluster.namespace.clone()).or_default();
        *rank += 1;
        (*rank, each)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, each)| each).collect()
}

/// Describes a pod to take over; `None` if it is not scheduled, or is no control plane's.
pub fn describe_draining<M: AsRef<HostNode>>(
    nodes: &[M],
    pod: &Pod,
    taints: &[String],
) -> Option<DrainingControlPlane> {
    let node = pod.spec.as_ref()?.node_name.clone()?;
    let label = |key: &str| pod.labels().get(key);
    Some(DrainingControlPlane {
        pod: pod.uid().unwrap_or_default(),
        cluster: ObjectRef::new(label(labels::CLUSTER)?).within(label(labels::TENANT)?),
        // If only the pod ends, its successor may run on the same node.
        has_other: !is_on_draining_node(nodes, pod, taints) || has_other(nodes, pod, taints),
        is_terminating: control_plane::ends(pod),
        node,
    })
}

fn is_on_draining_node<M: AsRef<HostNode>>(nodes: &[M], pod: &Pod, taints: &[String]) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let mut nodes = nodes.iter().map(AsRef::as_ref);
    own.is_some() && nodes.any(|node| node.metadata.name.as_ref() == own && is_draining(node, taints))
}

/// Plans the next state of each takeover. At most `most` takeovers start per minute.
pub fn plan_takeovers(
    before: &HashMap<String, PlannedTakeover>,
    draining: Vec<DrainingControlPlane>,
    past: &mut VecDeque<Instant>,
    most: usize,
    now: Instant,
) -> HashMap<String, PlannedTakeover> {
    let takeovers = draining.into_iter().map(|each| {
        let pod = each.pod.clone();
        let takeover = plan_takeover(before.get(&pod), each, past, most, now);
        (pod, takeover)
    });
    takeovers.collect()
}

/// Plans the next state of one takeover. A pod that is already terminating has no timeout.
pub fn plan_takeover(
    before: Option<&PlannedTakeover>,
    draining: DrainingControlPlane,
    past: &mut VecDeque<Instant>,
    most: usize,
    now: Instant,
) -> PlannedTakeover {
    let is_over = |since| !draining.is_terminating && now.duration_since(since) >= LIMIT;
    let state = match before.map(|takeover| takeover.state) {
        Some(State::Failed(since)) if now.duration_since(since) < AGAIN => State::Failed(since),
        _ if !draining.has_other => State::Nowhere,
        Some(State::StandBy(since)) if is_over(since) => State::Failed(now),
        Some(State::StandBy(since)) => State::StandBy(since),
        _ if take_from_budget(past, now, most) => State::StandBy(now),
        _ => State::Waiting,
    };
    PlannedTakeover {
        cluster: draining.cluster,
        node: draining.node,
        is_terminating: draining.is_terminating,
        state,
    }
}

/// Returns the Clusters to requeue: changed ones, and on each check those with a takeover in
/// progress. No watch event tells when their next step is due.
pub fn plan_requeues(
    before: &HashMap<String, PlannedTakeover>,
    after: &HashMap<String, PlannedTakeover>,
) -> Vec<ObjectRef<Cluster>> {
    let removed = before.iter().filter(|(pod, _)| !after.contains_key(*pod));
    let due = after.iter().filter(|(pod, takeover)| {
        let changed = before.get(*pod).is_none_or(|known| known.state != takeover.state);
        changed || matches!(takeover.state, State::StandBy(_))
    });
    due.chain(removed)
        .map(|(_, takeover)| takeover.cluster.clone())
        .collect()
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
