//! Decides whether a node of the host is lost, by the logs and APIs of its control planes. Pure.
//!
//! ```text
//!  log of one of them: no new record for SUSPICION ─▶ trial: logs and APIs of some of them, for TRIAL
//!      ─ no new record in any, and no API answers ─▶ lost ─▶ all of them are started elsewhere
//!      └ a new record in one ─▶ that log is followed from now on
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::labels;
use yoke_api::{Cluster, ClusterId};

use crate::host_nodes::budget::{LossBudget, take_from_budget};

/// A writer adds to its log about once per second. Two checks in a row without a new record start a
/// trial.
pub const SUSPICION: Duration = Duration::from_millis(1900);
/// Duration of a trial. With the suspicion before it, a node has been silent for 6 s.
pub const CONFIRM_FOR: Duration = Duration::from_secs(4);
/// Number of control planes that a trial checks.
pub const SAMPLE_SIZE: usize = 8;
/// How long a loss is remembered. Kubernetes has tainted the node by then
/// (`--node-monitor-grace-period`, 50 s since 1.32).
pub const REMEMBERED: Duration = Duration::from_secs(60);
/// A running kubelet starts to process a pod sooner than this.
const LONGEST_BINDING: SignedDuration = SignedDuration::from_secs(5);

/// A control plane on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Identity of its Cluster.
    pub id: ClusterId,
    /// Key of its Cluster.
    pub cluster: ObjectRef<Cluster>,
    /// UID of its pod.
    pub pod: String,
    /// Name of its pod.
    pub name: String,
    /// Whether all its containers run and its API server is ready, by the last report of the
    /// kubelet.
    pub is_ready: bool,
    /// Whether its API server has been ready since it started.
    pub is_started: bool,
    /// When the pod was scheduled on the node, if no kubelet has processed it yet.
    pub waits_since: Option<Timestamp>,
}

/// Last observation of the log that is followed for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Identity of the Cluster.
    pub id: ClusterId,
    /// Last sequence number of the log.
    pub sequence: u64,
    /// Since when the log has not grown.
    pub since: Instant,
    /// When one of the node's logs was last seen to grow.
    pub grew: Option<Instant>,
}

/// Result of a trial for one control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Identity of the Cluster.
    pub id: ClusterId,
    /// End of its log when the trial started.
    pub first: u64,
    /// End of its log when the trial ended; `None` if NATS did not answer.
    pub last: Option<u64>,
    /// Whether its API answered during the trial.
    pub answers: bool,
}

/// Conclusion of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// No sign of life from the node.
    Lost,
    /// The store of this Cluster has written. Contains the new end of its log.
    Alive(ClusterId, u64),
    /// Not enough evidence.
    Unknown,
}

/// Lists the control planes by node, in a stable order.
pub fn plan_nodes<P: AsRef<Pod>>(pods: &[P]) -> BTreeMap<String, Vec<Member>> {
    let mut nodes: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    for pod in pods.iter().map(AsRef::as_ref) {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let (Some(name), Some(member)) = (name, to_member(pod)) {
            nodes.entry(name).or_default().push(member);
        }
    }
    for members in nodes.values_mut() {
        members.sort_by(|a, b| (&a.id, &a.pod).cmp(&(&b.id, &b.pod)));
    }
    nodes
}

fn to_member(pod: &Pod) -> Option<Member> {
    let label = |key: &str| pod.labels().get(key);
    let cluster = ObjectRef::new(label(labels::CLUSTER)?).within(label(labels::TENANT)?);
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_deref());
    let mut containers = containers.into_iter().flatten();
    // Only a running kubelet reports a terminated container, and it restarts it.
    let runs = containers
        .clone()
        .all(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()));
    let is_processed = status.is_some_and(|status| status.start_time.is_some());
    let server = containers.find(|container| container.name == "kube-apiserver");
    let scheduled = status.and_then(|status| status.conditions.as_ref()?.iter().find(|one| is_scheduled(one)));
    let bound = scheduled.and_then(|scheduled| scheduled.last_transition_time.clone());
    let since = bound.or_else(|| pod.creation_timestamp());
    let continues = runs && pod.metadata.deletion_timestamp.is_none();
    Some(Member {
        id: label(labels::ID)?.parse().ok()?,
        cluster,
        pod: pod.uid()?,
        name: pod.name_any(),
        is_ready: continues && server.is_some_and(|server| server.ready),
        is_started: continues && server.is_some_and(|server| server.started == Some(true)),
        waits_since: since.map(|since| since.0).filter(|_| !is_processed),
    })
}

fn is_scheduled(condition: &PodCondition) -> bool {
    condition.type_ == "PodScheduled" && condition.status == "True"
}

/// Returns the control plane whose log to follow: the same one as before, or the first.
pub fn plan_followed<'m>(members: &'m [Member], before: Option<&Observation>) -> Option<&'m Member> {
    let mut ready = members.iter().filter(|member| member.is_ready);
    let known = before.and_then(|before| ready.clone().find(|member| member.id == before.id));
    known.or_else(|| ready.next())
}

/// Returns the new observation of a log. If NATS did not answer, the log does not count as silent,
/// and the observation stays. A log that was not followed before does not count as grown.
pub fn plan_observation(
    before: Option<Observation>,
    id: &ClusterId,
    sequence: Option<u64>,
    now: Instant,
) -> Option<Observation> {
    let Some(sequence) = sequence else {
        return before.map(|before| Observation { since: now, ..before });
    };
    let (grew, known) = match before {
        Some(before) if before.id != *id => (before.grew, None),
        Some(before) if before.sequence == sequence => (before.grew, Some(before.since)),
        Some(_) => (Some(now), None),
        None => (None, None),
    };
    Some(Observation {
        id: id.clone(),
        sequence,
        since: known.unwrap_or(now),
        grew,
    })
}

/// Returns the other nodes with a control plane that was ready once. Their current readiness does
/// not count: if no store can write, some become unready sooner than others.
pub fn plan_other_nodes<'m>(
    nodes: &'m BTreeMap<String, Vec<Member>>,
    node: &'m str,
) -> impl Iterator<Item = &'m String> {
    let others = nodes.iter().filter(move |(name, _)| name.as_str() != node);
    let serve = others.filter(|(_, members)| members.iter().any(|member| member.is_started));
    serve.map(|(name, _)| name)
}

/// Returns whether a trial of the node is due.
pub fn is_suspect(observation: &Observation, now: Instant) -> bool {
    now.duration_since(observation.since) >= SUSPICION
}

/// Concludes a trial. One live control plane clears its node: the kubelet reports the state of the
/// others.
pub fn plan_conclusion(samples: &[Sample]) -> Conclusion {
    for each in samples {
        if let Some(last) = each.last.filter(|last| *last != each.first) {
            return Conclusion::Alive(each.id.clone(), last);
        }
    }
    let is_dead = |each: &Sample| each.last.is_some() && !each.answers;
    if samples.is_empty() || !samples.iter().all(is_dead) {
        return Conclusion::Unknown;
    }
    Conclusion::Lost
}

/// Returns whether a loss is credible, or NATS may have stopped storing records. A loss is credible
/// in three cases:
///
/// - On another node with control planes, a store has written during the trial.
/// - Kubernetes itself has found that the node is unreachable.
/// - No other node has control planes, and another node can take them (`has_other_node`). Otherwise
///   giving up the node gains nothing.
pub fn is_credible<'s>(
    others: impl IntoIterator<Item = Option<&'s Observation>>,
    is_unreachable: bool,
    has_other_node: bool,
    now: Instant,
) -> bool {
    let mut others = others.into_iter().peekable();
    let is_alone = others.peek().is_none();
    let writes = |observation: &Observation| {
        observation
            .grew
            .is_some_and(|grew| now.duration_since(grew) < CONFIRM_FOR)
    };
    is_alone && has_other_node || is_unreachable || others.flatten().any(writes)
}

/// Decides whether a node may be given up now, with at most `most` per minute.
pub fn take_loss(past: &mut VecDeque<Instant>, is_recorded: bool, now: Instant, most: usize) -> LossBudget {
    match is_recorded {
        true => LossBudget::Recorded,
        false if take_from_budget(past, now, most) => LossBudget::Available,
        false => LossBudget::Exhausted,
    }
}

/// Returns the pods that were scheduled on a node after it was lost: its kubelet does not process
/// them.
pub fn plan_stranded(members: &[Member], now: Timestamp) -> Vec<&Member> {
    let is_late = |since: Timestamp| now.duration_since(since) > LONGEST_BINDING;
    let members = members.iter();
    members
        .filter(|member| member.waits_since.is_some_and(is_late))
        .collect()
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
