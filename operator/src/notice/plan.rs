//! Which control planes are on machines that are about to go, and which of them are to be taken over now. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, labels};

use super::Machine;
use crate::loss::plan::plan_room;

/// How long it may take until another pod stands by; who gives notice of a machine gives it two minutes ahead.
pub const LIMIT: Duration = Duration::from_secs(110);

/// Taints of machines that are not at work, whatever else they say.
const AWAY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// A control plane's pod on a machine that is about to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaver {
    /// UID of the pod.
    pub pod: String,
    /// Whose it is.
    pub cluster: ObjectRef<Cluster>,
    /// The machine.
    pub machine: String,
    /// Whether there is a machine that takes another pod like it.
    pub has_other: bool,
}

/// What was given notice of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whose control plane.
    pub cluster: ObjectRef<Cluster>,
    /// The machine.
    pub machine: String,
    /// What is to become of it.
    pub state: State,
}

/// What is to become of a control plane whose machine is about to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Others come first.
    Waiting,
    /// Another pod stands by, or is to, since then.
    StandBy(Instant),
    /// It came to nothing: it stays where it is until it is evicted.
    Failed,
    /// There is no other machine.
    Nowhere,
}

/// Whether a machine is about to go.
pub fn is_leaving(machine: &Machine, taints: &[String]) -> bool {
    machine.spec.taints.iter().any(|taint| taints.contains(&taint.key))
}

/// Whether a machine other than the pod's own takes another pod like it, as far as taints say. One that is nowhere yet has no
/// other.
pub fn has_other<M: AsRef<Machine>>(machines: &[M], pod: &Pod, taints: &[String]) -> bool {
    let spec = pod.spec.as_ref();
    let Some(own) = spec.and_then(|spec| spec.node_name.as_ref()) else {
        return false;
    };
    let tolerations = spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let takes = |machine: &Machine| {
        let mut refusals = machine.spec.taints.iter();
        !is_leaving(machine, taints) && !refusals.any(|taint| refuses(taint, tolerations))
    };
    let mut machines = machines.iter().map(AsRef::as_ref);
    machines.any(|machine| machine.metadata.name.as_ref() != Some(own) && takes(machine))
}

fn refuses(taint: &Taint, tolerations: &[Toleration]) -> bool {
    let tolerated = |toleration: &Toleration| {
        let is_key = toleration.key.as_ref().is_none_or(|key| *key == taint.key);
        let is_effect = toleration.effect.as_ref().is_none_or(|effect| *effect == taint.effect);
        let is_value = toleration.operator.as_deref() == Some("Exists") || toleration.value == taint.value;
        is_key && is_effect && is_value
    };
    // Kubernetes itself has every pod bear with these for five minutes.
    let is_away = AWAY.contains(&taint.key.as_str());
    is_away || taint.effect != "PreferNoSchedule" && !tolerations.iter().any(tolerated)
}

/// Control planes' pods on machines that are about to go, in an order that stays. A pod that ends has left already.
pub fn plan_leavers<M: AsRef<Machine>, P: AsRef<Pod>>(machines: &[M], pods: &[P], taints: &[String]) -> Vec<Leaver> {
    let leaving = |name: &str| {
        let mut named = machines.iter().map(AsRef::as_ref);
        named.any(|machine| machine.metadata.name.as_deref() == Some(name) && is_leaving(machine, taints))
    };
    let pods = pods.iter().map(AsRef::as_ref);
    let mut leavers: Vec<_> = pods
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter_map(|pod| {
            let machine = pod.spec.as_ref()?.node_name.clone()?;
            let label = |key: &str| pod.labels().get(key);
            let cluster = ObjectRef::new(label(labels::CLUSTER)?).within(label(labels::TENANT)?);
            leaving(&machine).then(|| Leaver {
                pod: pod.uid().unwrap_or_default(),
                cluster,
                has_other: has_other(machines, pod, taints),
                machine,
            })
        })
        .collect();
    leavers.sort_by(|a, b| a.pod.cmp(&b.pod));
    leavers
}

/// What is to become of each of them, by what was to. So many takeovers are begun in a minute at most.
pub fn plan_notices(
    before: &HashMap<String, Notice>,
    leavers: Vec<Leaver>,
    past: &mut VecDeque<Instant>,
    most: usize,
    now: Instant,
) -> HashMap<String, Notice> {
    let mut next = |leaver: &Leaver| match before.get(&leaver.pod).map(|notice| notice.state) {
        Some(State::Failed) => State::Failed,
        _ if !leaver.has_other => State::Nowhere,
        Some(State::StandBy(since)) if now.duration_since(since) >= LIMIT => State::Failed,
        Some(State::StandBy(since)) => State::StandBy(since),
        _ if plan_room(past, now, most) => State::StandBy(now),
        _ => State::Waiting,
    };
    let noticed = leavers.into_iter().map(|leaver| {
        let state = next(&leaver);
        let notice = Notice {
            cluster: leaver.cluster,
            machine: leaver.machine,
            state,
        };
        (leaver.pod, notice)
    });
    noticed.collect()
}

/// The Clusters that are called for: those that are being taken over each time, for nothing else tells when the next step is due.
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
