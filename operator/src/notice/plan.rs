//! Which control planes are on machines that are about to go, or have a pod that is to end, and which of them are to be taken
//! over now. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, labels};

use super::Machine;
use crate::cluster::gate::takeover;
use crate::loss::plan::plan_room;
use crate::quantity::to_millicores;

/// How long it may take until another pod stands by; who gives notice of a machine gives it two minutes ahead.
pub const LIMIT: Duration = Duration::from_secs(110);
/// How long after one that came to nothing the next takeover is tried: a machine that has room may have come by then.
pub const AGAIN: Duration = Duration::from_mins(10);

/// Taints of machines that are not at work, whatever else they say.
const AWAY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// What a kubelet says that has seen the signal of `GracefulNodeShutdown` (pkg/kubelet/nodeshutdown of Kubernetes 1.35).
const SHUTTING_DOWN: &str = "node is shutting down";

/// A control plane's pod that is to end, or is on a machine that is about to go.
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
    /// Whether the pod is told to end already.
    pub ends: bool,
}

/// What was given notice of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whose control plane.
    pub cluster: ObjectRef<Cluster>,
    /// The machine.
    pub machine: String,
    /// Whether the pod is told to end already.
    pub ends: bool,
    /// What is to become of it.
    pub state: State,
}

/// What is to become of a control plane whose machine is about to go, or whose pod is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Others come first.
    Waiting,
    /// Another pod stands by, or is to, since then.
    StandBy(Instant),
    /// It came to nothing then: it stays where it is until it is evicted, or the next takeover is tried.
    Failed(Instant),
    /// There is no other machine.
    Nowhere,
}

/// Whether a machine is about to go.
pub fn is_leaving(machine: &Machine, taints: &[String]) -> bool {
    let mut own = machine.spec.taints.iter();
    own.any(|taint| taints.contains(&taint.key)) || is_shut_down(machine)
}

/// How many cores the machines have that a pod of some class can be put on, by the tolerations of each.
pub fn count_cores<M: AsRef<Machine>>(machines: &[M], taints: &[String], classes: &[&[Toleration]]) -> usize {
    let machines = machines.iter().map(AsRef::as_ref);
    let takes = machines.filter(|machine| {
        let mut classes = classes.iter();
        classes.any(|tolerations| takes(machine, taints, tolerations))
    });
    let thousandths = takes.filter_map(|machine| to_millicores(machine.status.allocatable.get("cpu")?));
    thousandths.sum::<usize>().div_ceil(1000)
}

/// Whether a machine takes a pod with these tolerations, as far as taints say.
fn takes(machine: &Machine, taints: &[String], tolerations: &[Toleration]) -> bool {
    let mut refusals = machine.spec.taints.iter();
    !is_leaving(machine, taints) && !refusals.any(|taint| refuses(taint, tolerations))
}

/// Whether Kubernetes has found that the machine does not answer.
pub fn is_unreachable(machine: &Machine) -> bool {
    machine.spec.taints.iter().any(|taint| taint.key == AWAY[1])
}

/// Whether the machine's kubelet ends its pods since the machine is being shut down. It says so in words only: pods have no
/// deletion timestamp then, and the taint is that of any machine that is not ready.
fn is_shut_down(machine: &Machine) -> bool {
    let mut conditions = machine.status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let said = ready
        .filter(|ready| ready.status != "True")
        .and_then(|ready| ready.message.as_ref());
    said.is_some_and(|said| said.contains(SHUTTING_DOWN))
}

/// Whether a machine other than the pod's own takes another pod like it, as far as taints say. One that is nowhere yet has no
/// other.
pub fn has_other<M: AsRef<Machine>>(machines: &[M], pod: &Pod, taints: &[String]) -> bool {
    let spec = pod.spec.as_ref();
    let Some(own) = spec.and_then(|spec| spec.node_name.as_ref()) else {
        return false;
    };
    let tolerations = spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let mut machines = machines.iter().map(AsRef::as_ref);
    machines.any(|machine| machine.metadata.name.as_ref() != Some(own) && takes(machine, taints, tolerations))
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

/// Control planes' pods on machines that are about to go, and those that are to end and were noted for that, in an order that
/// stays. Any other pod that ends has left already.
pub fn plan_leavers<M: AsRef<Machine>, P: AsRef<Pod>>(
    machines: &[M],
    pods: &[P],
    taints: &[String],
    before: &HashMap<String, Notice>,
) -> Vec<Leaver> {
    let is_noted = |pod: &Pod| {
        let notice = pod.metadata.uid.as_ref().and_then(|uid| before.get(uid));
        notice.is_some_and(|notice| notice.ends)
    };
    let leaves = |pod: &Pod| match takeover::ends(pod) {
        true => is_noted(pod),
        false => is_on_leaving(machines, pod, taints),
    };
    let pods = pods.iter().map(AsRef::as_ref).filter(|pod| leaves(pod));
    let mut leavers: Vec<_> = pods.filter_map(|pod| plan_leaver(machines, pod, taints)).collect();
    leavers.sort_by(|a, b| a.pod.cmp(&b.pod));
    alternate(leavers)
}

/// One of each Tenant, then the next of each: one that has many keeps no others waiting.
fn alternate(leavers: Vec<Leaver>) -> Vec<Leaver> {
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

/// A pod that leaves; `None` if it is nowhere yet, or no control plane's.
pub fn plan_leaver<M: AsRef<Machine>>(machines: &[M], pod: &Pod, taints: &[String]) -> Option<Leaver> {
    let machine = pod.spec.as_ref()?.node_name.clone()?;
    let label = |key: &str| pod.labels().get(key);
    Some(Leaver {
        pod: pod.uid().unwrap_or_default(),
        cluster: ObjectRef::new(label(labels::CLUSTER)?).within(label(labels::TENANT)?),
        // Where only the pod goes, the next one may be beside it.
        has_other: !is_on_leaving(machines, pod, taints) || has_other(machines, pod, taints),
        ends: takeover::ends(pod),
        machine,
    })
}

fn is_on_leaving<M: AsRef<Machine>>(machines: &[M], pod: &Pod, taints: &[String]) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let mut machines = machines.iter().map(AsRef::as_ref);
    own.is_some() && machines.any(|machine| machine.metadata.name.as_ref() == own && is_leaving(machine, taints))
}

/// What is to become of each of them, by what was to. So many takeovers are begun in a minute at most.
pub fn plan_notices(
    before: &HashMap<String, Notice>,
    leavers: Vec<Leaver>,
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

/// What is to become of one, by what was to. One that is to end does so by itself.
pub fn plan_notice(
    before: Option<&Notice>,
    leaver: Leaver,
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
        machine: leaver.machine,
        ends: leaver.ends,
        state,
    }
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
