//! Decides whether a Node is silent, and which step comes next. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use yoke_api::join_token::parse_short_time;
use yoke_api::labels;

use crate::tenant_client::is_marked;

/// Gap between two checks after which all observations of a cluster are dropped: its API may have
/// been down in between.
const GAP: Duration = Duration::from_secs(180);
/// Maximum length of an object's UID: those of Kubernetes have 36 bytes.
const UID_MAX: usize = 64;
/// Age after which a Lease without a Node is deleted. A worker with a certificate has had ample
/// time to register by then.
const UNCLAIMED: Duration = Duration::from_hours(24);

/// The taint with which Kubernetes itself ends the Pods of a Node that is out of service, and
/// detaches their volumes:
/// <https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown>.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const NO_EXECUTE: &str = "NoExecute";
/// Value of that taint if the operator has set it.
const SILENT: &str = "yoke-silent";

/// Intervals of checks and steps.
#[derive(Clone, Copy, Debug)]
pub struct ReapIntervals {
    /// Interval of checks of one cluster.
    pub every: Duration,
    /// Number of checks in a row that must find a Lease unchanged before it counts as silent.
    pub checks: u32,
    /// Delay between the mark, which is only a label of the Node, and the taint.
    pub taint_after: Duration,
    /// Delay between the taint and the deletion of the Node: time for its Pods and volumes.
    pub delete_after: Duration,
    /// Minimum time that this process must have checked a cluster before a Lease counts as silent,
    /// or `reapAfter` if that is shorter. Before that, no one observed whether the cluster was
    /// reachable.
    pub min_observed: Duration,
}

impl Default for ReapIntervals {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(25),
            checks: 3,
            taint_after: Duration::from_secs(15),
            delete_after: Duration::from_secs(45),
            min_observed: Duration::from_secs(600),
        }
    }
}

/// Observations of the Leases of one cluster, while its API was reachable.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    observations: HashMap<String, LeaseObservation>,
    last: Option<Instant>,
    /// Start of the observations since the last gap.
    since: Option<Instant>,
    /// Number of checks.
    pub(crate) count: usize,
}

/// Observation of one Lease.
#[derive(Clone, Debug)]
struct LeaseObservation {
    renewed: Option<Timestamp>,
    since: Instant,
    checks: u32,
}

/// State of a Node by its Lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Liveness<'l> {
    /// The Node has been silent for the time in this Lease.
    Silent(&'l Lease),
    /// No renewal was seen yet, but not for long enough.
    Unconfirmed,
    /// A renewal was seen, or the Node is not to be removed.
    Alive,
}

/// Next step for a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing to do.
    Nothing,
    /// Label the Node as silent.
    Mark,
    /// Taint the Node: its Pods end, and no new ones are scheduled.
    Taint,
    /// Delete the Node.
    Delete,
    /// Remove label and taint: the Node is no longer silent, or is not to be removed.
    Release,
}

impl Watch {
    /// Returns whether the next check is due.
    pub(crate) fn is_due(&self, intervals: &ReapIntervals, now: Instant) -> bool {
        self.last
            .is_none_or(|last| now.saturating_duration_since(last) >= intervals.every)
    }

    /// Returns whether the observations are recent enough to continue.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < GAP)
    }

    /// Records the current Leases.
    pub(crate) fn record(&mut self, leases: &[Lease], now: Instant) {
        if !self.is_fresh(now) {
            self.observations.clear();
            self.since = Some(now);
        }
        let mut observations = HashMap::new();
        for lease in leases {
            let Some(uid) = lease.uid().filter(|uid| uid.len() <= UID_MAX) else {
                continue;
            };
            let renewed = renewed(lease);
            let before = self
                .observations
                .remove(&uid)
                .filter(|observation| observation.renewed == renewed);
            let observation = before.unwrap_or(LeaseObservation {
                renewed,
                since: now,
                checks: 0,
            });
            let checks = observation.checks.saturating_add(1);
            observations.insert(uid, LeaseObservation { checks, ..observation });
        }
        self.observations = observations;
        self.last = Some(now);
        self.count = self.count.wrapping_add(1);
    }

    /// Classifies a Node by its Lease.
    ///
    /// A process that has just started has not seen any renewal yet. It neither continues nor
    /// reverts what its predecessor started.
    pub(crate) fn liveness<'l>(
        &self,
        lease: Option<&'l Lease>,
        ready_for: Duration,
        now: (Timestamp, Instant),
        intervals: &ReapIntervals,
    ) -> Liveness<'l> {
        let Some(lease) = lease.filter(|lease| reap_after(lease).is_some()) else {
            return Liveness::Alive;
        };
        let observation = lease.uid().and_then(|uid| self.observations.get(&uid));
        if self.is_silent(lease, ready_for, now, intervals) {
            Liveness::Silent(lease)
        } else if observation.is_some_and(|observation| Some(observation.since) == self.since) {
            Liveness::Unconfirmed
        } else {
            Liveness::Alive
        }
    }

    /// Returns whether a Node has been silent for the time in its Lease, in a cluster that has been
    /// available for as long.
    ///
    /// The Node's clock may be wrong, and this process may be new. Therefore:
    ///
    /// - A Lease that is renewed is never silent, whatever time it contains.
    /// - For any other Lease, the silence starts at the time in the Lease or at its first
    ///   observation, whichever is earlier.
    pub(crate) fn is_silent(
        &self,
        lease: &Lease,
        ready_for: Duration,
        now: (Timestamp, Instant),
        intervals: &ReapIntervals,
    ) -> bool {
        let Some(limit) = reap_after(lease) else { return false };
        let Some(observation) = lease.uid().and_then(|uid| self.observations.get(&uid)) else {
            return false;
        };
        let lease_age = observation
            .renewed
            .or_else(|| created(lease))
            .map(|since| age(since, now.0));
        let unchanged_for = now.1.saturating_duration_since(observation.since);
        let observed_for = self.since.map(|since| now.1.saturating_duration_since(since));
        let is_observed = observed_for.is_some_and(|observed| observed >= limit.min(intervals.min_observed));
        let silence = lease_age.unwrap_or_default().max(unchanged_for);
        observation.checks >= intervals.checks && is_observed && ready_for >= limit && silence >= limit
    }
}

/// Plans the next step for a Node.
pub(crate) fn plan(node: &Node, liveness: Liveness<'_>, now: Timestamp, intervals: &ReapIntervals) -> Step {
    let mark = node.labels().get(labels::REAPING);
    // A kubelet can fall silent on purpose. Its Node must not be re-created without the taints and
    // labels that administrators gave it.
    let own = format!("{OUT_OF_SERVICE}={SILENT}:{NO_EXECUTE}");
    let lease = match liveness {
        Liveness::Silent(lease) if !is_marked(node, &own) => lease,
        Liveness::Unconfirmed if !is_marked(node, &own) => return Step::Nothing,
        _ if mark.is_some() => return Step::Release,
        _ => return Step::Nothing,
    };
    if node.metadata.deletion_timestamp.is_some() || is_of_another(lease, node) {
        return Step::Nothing;
    }
    let since = mark.and_then(|mark| Timestamp::from_second(mark.parse().ok()?).ok());
    // A mark from the future does not come from a correct clock.
    let Some(since) = since.filter(|since| *since <= now) else {
        return Step::Mark;
    };
    let (limit, next) = if is_tainted(node) {
        (intervals.delete_after, Step::Delete)
    } else {
        (intervals.taint_after, Step::Taint)
    };
    if age(since, now) >= limit { next } else { Step::Nothing }
}

/// Returns the taints of a Node, with the out-of-service taint.
pub(crate) fn with_taint(node: &Node, now: Timestamp) -> Vec<Taint> {
    let mut taints = taints(node).to_vec();
    taints.push(Taint {
        key: OUT_OF_SERVICE.into(),
        value: Some(SILENT.into()),
        effect: NO_EXECUTE.into(),
        time_added: Some(Time(now)),
    });
    taints
}

/// Returns the taints of a Node without the operator's own; `None` if the Node does not have it.
pub(crate) fn without_taint(node: &Node) -> Option<Vec<Taint>> {
    let is_other = |taint: &&Taint| taint.key != OUT_OF_SERVICE || taint.value.as_deref() != Some(SILENT);
    let remaining: Vec<_> = taints(node).iter().filter(is_other).cloned().collect();
    (remaining.len() < taints(node).len()).then_some(remaining)
}

/// Returns whether a Lease was not renewed between two reads.
pub(crate) fn is_same(one: &Lease, other: &Lease) -> bool {
    one.metadata.uid == other.metadata.uid
        && renewed(one) == renewed(other)
        && reap_after(one).is_some() == reap_after(other).is_some()
}

/// Returns whether a silent Lease without a Node is old enough to be deleted.
pub(crate) fn is_unclaimed(lease: &Lease, now: Timestamp) -> bool {
    created(lease).is_some_and(|created| age(created, now) >= UNCLAIMED)
}

/// Returns whether a Lease belongs to an earlier Node with the same name.
fn is_of_another(lease: &Lease, node: &Node) -> bool {
    let mut owners = lease.owner_references().iter();
    owners.any(|owner| Some(owner.uid.as_str()) != node.metadata.uid.as_deref())
}

/// Returns whether the operator has tainted a Node as out of service.
fn is_tainted(node: &Node) -> bool {
    without_taint(node).is_some()
}

fn taints(node: &Node) -> &[Taint] {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn reap_after(lease: &Lease) -> Option<Duration> {
    parse_short_time(lease.labels().get(labels::REAP_AFTER)?)
}

fn renewed(lease: &Lease) -> Option<Timestamp> {
    let MicroTime(renewed) = lease.spec.as_ref()?.renew_time.as_ref()?;
    Some(*renewed)
}

fn created(lease: &Lease) -> Option<Timestamp> {
    lease.creation_timestamp().map(|created| created.0)
}

/// Time since `since`; zero if it is in the future.
fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
