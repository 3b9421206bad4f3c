//! Whether a machine of the host is lost, by what its control planes say. Pure.
//!
//! ```text
//!  log of one of them: nothing new for SUSPICION ─▶ trial: logs and APIs of some of them, for TRIAL
//!      ─ nothing new in any, and no API answers ─▶ lost ─▶ all of them are started elsewhere
//!      └ something new in one ─▶ that one's log is followed from here on
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::labels;
use yoke_api::{Cluster, ClusterId};

/// A writer adds to its log each second or so. Two looks in a row that find nothing new are a beginning.
pub const SUSPICION: Duration = Duration::from_millis(1900);
/// How long a trial looks: with what led to it a machine was silent for 6 s.
pub const TRIAL: Duration = Duration::from_secs(4);
/// Control planes that are heard in a trial.
pub const JURY: usize = 8;
/// How long a loss is remembered. Kubernetes has tainted the machine by then (`--node-monitor-grace-period`, 50 s since 1.32).
pub const REMEMBERED: Duration = Duration::from_secs(60);
/// A kubelet that lives takes a pod sooner.
const LONGEST_BINDING: SignedDuration = SignedDuration::from_secs(5);
/// What the bound on losses is about.
const MINUTE: Duration = Duration::from_secs(60);

/// A control plane on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Whose it is.
    pub id: ClusterId,
    /// The Cluster's object.
    pub cluster: ObjectRef<Cluster>,
    /// UID of its pod.
    pub pod: String,
    /// Name of its pod.
    pub name: String,
    /// Whether the kubelet's last word is that all of it runs, and that its API server is ready.
    pub is_ready: bool,
    /// Whether its API server was ready once, since that started.
    pub is_started: bool,
    /// When the pod was put on the machine, of one that no kubelet has taken yet.
    pub waits_since: Option<Timestamp>,
}

/// What was last seen of the log of one of a machine's control planes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Whose log.
    pub id: ClusterId,
    /// Its end.
    pub sequence: u64,
    /// Since when that is its end.
    pub since: Instant,
    /// When one of the machine's logs was last seen to have grown.
    pub grew: Option<Instant>,
}

/// What a trial found of one control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Whose.
    pub id: ClusterId,
    /// The end of its log when the trial began.
    pub first: u64,
    /// The same at the end of the trial, if NATS said so.
    pub last: Option<u64>,
    /// Whether its API answered meanwhile.
    pub answers: bool,
}

/// What a trial comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing runs there any more, as far as can be told.
    Lost,
    /// This one's store has written: the end of its log.
    Alive(ClusterId, u64),
    /// Nobody can tell.
    Unknown,
}

/// A pod that was lost with its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its UID.
    pub pod: String,
    /// Machines that were lost lately, by name: what comes in its place had better be elsewhere.
    pub machines: BTreeSet<String>,
}

/// Which control planes are on which machine, in an order that stays.
pub fn plan_machines<P: AsRef<Pod>>(pods: &[P]) -> BTreeMap<String, Vec<Member>> {
    let mut machines: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    for pod in pods.iter().map(AsRef::as_ref) {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let (Some(name), Some(member)) = (name, to_member(pod)) {
            machines.entry(name).or_default().push(member);
        }
    }
    for members in machines.values_mut() {
        members.sort_by(|a, b| (&a.id, &a.pod).cmp(&(&b.id, &b.pod)));
    }
    machines
}

fn to_member(pod: &Pod) -> Option<Member> {
    let label = |key: &str| pod.labels().get(key);
    let cluster = ObjectRef::new(label(labels::CLUSTER)?).within(label(labels::TENANT)?);
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_deref());
    let mut containers = containers.into_iter().flatten();
    // What has ended a kubelet has seen that lives, and starts again.
    let runs = containers
        .clone()
        .all(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()));
    let is_taken = status.is_some_and(|status| status.start_time.is_some());
    let server = containers.find(|container| container.name == "kube-apiserver");
    let scheduled = status.and_then(|status| status.conditions.as_ref()?.iter().find(|one| is_scheduled(one)));
    let bound = scheduled.and_then(|scheduled| scheduled.last_transition_time.clone());
    let since = bound.or_else(|| pod.creation_timestamp());
    let goes_on = runs && pod.metadata.deletion_timestamp.is_none();
    Some(Member {
        id: label(labels::ID)?.parse().ok()?,
        cluster,
        pod: pod.uid()?,
        name: pod.name_any(),
        is_ready: goes_on && server.is_some_and(|server| server.ready),
        is_started: goes_on && server.is_some_and(|server| server.started == Some(true)),
        waits_since: since.map(|since| since.0).filter(|_| !is_taken),
    })
}

fn is_scheduled(condition: &PodCondition) -> bool {
    condition.type_ == "PodScheduled" && condition.status == "True"
}

/// Whose log to look at: the one that was followed before, or the first.
pub fn plan_followed<'m>(members: &'m [Member], before: Option<&Sight>) -> Option<&'m Member> {
    let mut ready = members.iter().filter(|member| member.is_ready);
    let known = before.and_then(|before| ready.clone().find(|member| member.id == before.id));
    known.or_else(|| ready.next())
}

/// What is known of a log whose end is there now. Who cannot be asked is not silent, and stays as he was. One that was not looked at
/// before has not grown by that.
pub fn plan_sight(before: Option<Sight>, id: &ClusterId, sequence: Option<u64>, now: Instant) -> Option<Sight> {
    let Some(sequence) = sequence else {
        return before.map(|before| Sight { since: now, ..before });
    };
    let (grew, known) = match before {
        Some(before) if before.id != *id => (before.grew, None),
        Some(before) if before.sequence == sequence => (before.grew, Some(before.since)),
        Some(_) => (Some(now), None),
        None => (None, None),
    };
    Some(Sight {
        id: id.clone(),
        sequence,
        since: known.unwrap_or(now),
        grew,
    })
}

/// Machines beside one that have control planes which had served. Of all that cannot write some are found unready sooner than others.
pub fn plan_others<'m>(
    machines: &'m BTreeMap<String, Vec<Member>>,
    machine: &'m str,
) -> impl Iterator<Item = &'m String> {
    let others = machines.iter().filter(move |(name, _)| name.as_str() != machine);
    let serve = others.filter(|(_, members)| members.iter().any(|member| member.is_started));
    serve.map(|(name, _)| name)
}

/// Whether the machine is to be tried.
pub fn is_suspect(sight: &Sight, now: Instant) -> bool {
    now.duration_since(sight.since) >= SUSPICION
}

/// What follows from what a trial found. One control plane that lives clears its machine: of the others the kubelet tells.
pub fn plan_verdict(evidence: &[Evidence]) -> Verdict {
    for each in evidence {
        if let Some(last) = each.last.filter(|last| *last != each.first) {
            return Verdict::Alive(each.id.clone(), last);
        }
    }
    let is_dead = |each: &Evidence| each.last.is_some() && !each.answers;
    if evidence.is_empty() || !evidence.iter().all(is_dead) {
        return Verdict::Unknown;
    }
    Verdict::Lost
}

/// Whether a loss may be believed: on one of the other machines, if there are any with control planes, a store has written
/// since this one's fell silent, or Kubernetes has found by itself that the machine does not answer. Else it may be NATS that
/// stores nothing. Of the only one with control planes nothing is won by a loss unless another one takes them (`has_place`).
pub fn is_credible<'s>(
    others: impl IntoIterator<Item = Option<&'s Sight>>,
    (is_unreachable, has_place): (bool, bool),
    now: Instant,
) -> bool {
    let mut others = others.into_iter().peekable();
    let is_alone = others.peek().is_none();
    let writes = |sight: &Sight| sight.grew.is_some_and(|grew| now.duration_since(grew) < TRIAL);
    is_alone && has_place || is_unreachable || others.flatten().any(writes)
}

/// Whether a machine that is silent may be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// All that is there was already: it stays, of Clusters that are paused or wait for their turn.
    Given,
    /// It may, and that is noted.
    There,
    /// Too many were within a minute.
    Taken,
}

/// Whether a machine may be given up now, of so many in a minute.
pub fn plan_loss(past: &mut VecDeque<Instant>, is_given: bool, now: Instant, most: usize) -> Room {
    match is_given {
        true => Room::Given,
        false if plan_room(past, now, most) => Room::There,
        false => Room::Taken,
    }
}

/// Whether one more machine may be dealt with now, of so many in a minute; notes it if so.
pub fn plan_room(past: &mut VecDeque<Instant>, now: Instant, most: usize) -> bool {
    while past.front().is_some_and(|time| now.duration_since(*time) >= MINUTE) {
        past.pop_front();
    }
    let has_room = past.len() < most;
    if has_room {
        past.push_back(now);
    }
    has_room
}

/// Those that were put on a machine after it was lost: its kubelet does not take them.
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
