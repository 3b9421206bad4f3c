//! Whether a Node is silent, and what is done about it next. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use yoke_api::join_token::parse_short_time;
use yoke_api::labels;

use crate::tenant_api::is_marked;

/// Looks after which it begins anew what was seen of a cluster: in between nobody knows whether it could be reached.
const GAP: Duration = Duration::from_secs(180);
/// The longest UID of an object: Kubernetes' own have 36 bytes.
const UID_MAX: usize = 64;
/// A Lease that no Node has is deleted after this time. Whoever was let in has long had time to come.
const UNCLAIMED: Duration = Duration::from_hours(24);

/// The taint by which Kubernetes itself ends the Pods of a machine that is out of service, and frees their volumes:
/// <https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown>.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const NO_EXECUTE: &str = "NoExecute";
/// The value of that taint where the operator has set it.
const SILENT: &str = "yoke-silent";

/// How often it is looked, and how long each step takes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two looks at a cluster.
    pub every: Duration,
    /// Looks in a row that find a Lease as it was, before it counts.
    pub looks: u32,
    /// Between a mark, of which nobody but the Node's labels tells, and the taint.
    pub doubt: Duration,
    /// Between the taint and the end of the Node: how long Pods and volumes have.
    pub linger: Duration,
    /// For how long this process must have looked before a Lease counts that says more: while it did not, nobody saw whether the
    /// Cluster could be reached.
    pub known: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(25),
            looks: 3,
            doubt: Duration::from_secs(15),
            linger: Duration::from_secs(45),
            known: Duration::from_secs(600),
        }
    }
}

/// What was seen of the Leases of one cluster, while it could be reached.
#[derive(Debug, Default)]
pub(super) struct Watch {
    signs: HashMap<String, Sign>,
    last: Option<Instant>,
    /// Since when there was no gap.
    since: Option<Instant>,
    /// Number of looks.
    pub(super) count: usize,
}

/// What was seen of one Lease.
#[derive(Clone, Debug)]
struct Sign {
    renewed: Option<Timestamp>,
    since: Instant,
    looks: u32,
}

/// What is known of a Node by its Lease.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sight<'l> {
    /// It has been silent for as long as this Lease says.
    Silent(&'l Lease),
    /// Nothing was heard of it yet, and not for long enough.
    Unheard,
    /// It was heard of, or nobody wants it removed.
    Heard,
}

/// What is done next about a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is as it should be, or gone soon.
    Nothing,
    /// Note that it is silent.
    Mark,
    /// Have its Pods ended, and nothing new put there.
    Taint,
    /// Delete it.
    Delete,
    /// It is not silent any more, or nobody wants it removed: take back what was done.
    Release,
}

impl Watch {
    /// Whether it is time for another look.
    pub(super) fn is_due(&self, pace: &Pace, now: Instant) -> bool {
        self.last
            .is_none_or(|last| now.saturating_duration_since(last) >= pace.every)
    }

    /// Whether what was seen is of any use.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < GAP)
    }

    /// Notes how Leases are now.
    pub(super) fn note(&mut self, leases: &[Lease], now: Instant) {
        if !self.is_fresh(now) {
            self.signs.clear();
            self.since = Some(now);
        }
        let mut signs = HashMap::new();
        for lease in leases {
            let Some(uid) = lease.uid().filter(|uid| uid.len() <= UID_MAX) else {
                continue;
            };
            let renewed = renewed(lease);
            let before = self.signs.remove(&uid).filter(|sign| sign.renewed == renewed);
            let sign = before.unwrap_or(Sign {
                renewed,
                since: now,
                looks: 0,
            });
            let looks = sign.looks.saturating_add(1);
            signs.insert(uid, Sign { looks, ..sign });
        }
        self.signs = signs;
        self.last = Some(now);
        self.count = self.count.wrapping_add(1);
    }

    /// What is known of a Node by its Lease, if that is wanted to be looked at.
    ///
    /// A process that has just begun to look has heard of nobody yet: what another one began it neither goes on with nor takes back.
    pub(super) fn sight<'l>(
        &self,
        lease: Option<&'l Lease>,
        well: Duration,
        now: (Timestamp, Instant),
        pace: &Pace,
    ) -> Sight<'l> {
        let Some(lease) = lease.filter(|lease| reap_after(lease).is_some()) else {
            return Sight::Heard;
        };
        let sign = lease.uid().and_then(|uid| self.signs.get(&uid));
        if self.is_silent(lease, well, now, pace) {
            Sight::Silent(lease)
        } else if sign.is_some_and(|sign| Some(sign.since) == self.since) {
            Sight::Unheard
        } else {
            Sight::Heard
        }
    }

    /// Whether a Node has been silent for as long as its Lease says, in a cluster that has been well for a time.
    ///
    /// Its own clock may be wrong, and so may the memory of this process be short: a Lease that is renewed is never silent,
    /// whatever time it names; one that is not counts from that time or from when it was seen first, whichever is earlier.
    pub(super) fn is_silent(&self, lease: &Lease, well: Duration, now: (Timestamp, Instant), pace: &Pace) -> bool {
        let Some(limit) = reap_after(lease) else { return false };
        let Some(sign) = lease.uid().and_then(|uid| self.signs.get(&uid)) else {
            return false;
        };
        let said = sign.renewed.or_else(|| made(lease)).map(|since| age(since, now.0));
        let seen = now.1.saturating_duration_since(sign.since);
        let known = self.since.map(|since| now.1.saturating_duration_since(since));
        let is_known = known.is_some_and(|known| known >= limit.min(pace.known));
        sign.looks >= pace.looks && is_known && well >= limit && said.unwrap_or_default().max(seen) >= limit
    }
}

/// What is done next about a Node.
pub(super) fn plan(node: &Node, sight: Sight<'_>, now: Timestamp, pace: &Pace) -> Step {
    let mark = node.labels().get(labels::REAPING);
    // A kubelet that is silent on purpose must not have its Node made anew without what the cluster's administrators gave it.
    let own = format!("{OUT_OF_SERVICE}={SILENT}:{NO_EXECUTE}");
    let lease = match sight {
        Sight::Silent(lease) if !is_marked(node, &own) => lease,
        Sight::Unheard if !is_marked(node, &own) => return Step::Nothing,
        _ if mark.is_some() => return Step::Release,
        _ => return Step::Nothing,
    };
    if node.metadata.deletion_timestamp.is_some() || is_of_another(lease, node) {
        return Step::Nothing;
    }
    let since = mark.and_then(|mark| Timestamp::from_second(mark.parse().ok()?).ok());
    // One from the future was not made by a clock that is right.
    let Some(since) = since.filter(|since| *since <= now) else {
        return Step::Mark;
    };
    let (limit, next) = if is_tainted(node) {
        (pace.linger, Step::Delete)
    } else {
        (pace.doubt, Step::Taint)
    };
    if age(since, now) >= limit { next } else { Step::Nothing }
}

/// The taints of a Node, with one that says that it is out of service.
pub(super) fn with_taint(node: &Node, now: Timestamp) -> Vec<Taint> {
    let mut taints = taints(node).to_vec();
    taints.push(Taint {
        key: OUT_OF_SERVICE.into(),
        value: Some(SILENT.into()),
        effect: NO_EXECUTE.into(),
        time_added: Some(Time(now)),
    });
    taints
}

/// The taints of a Node without the operator's own, if it has that.
pub(super) fn without_taint(node: &Node) -> Option<Vec<Taint>> {
    let is_others = |taint: &&Taint| taint.key != OUT_OF_SERVICE || taint.value.as_deref() != Some(SILENT);
    let left: Vec<_> = taints(node).iter().filter(is_others).cloned().collect();
    (left.len() < taints(node).len()).then_some(left)
}

/// Whether two sights of a Lease are of one that was not renewed in between.
pub(super) fn is_same(one: &Lease, other: &Lease) -> bool {
    one.metadata.uid == other.metadata.uid
        && renewed(one) == renewed(other)
        && reap_after(one).is_some() == reap_after(other).is_some()
}

/// Whether nobody will need a silent Lease that has no Node.
pub(super) fn is_unclaimed(lease: &Lease, now: Timestamp) -> bool {
    made(lease).is_some_and(|made| age(made, now) >= UNCLAIMED)
}

/// Whether a Lease is that of an earlier Node of the same name.
fn is_of_another(lease: &Lease, node: &Node) -> bool {
    let mut owners = lease.owner_references().iter();
    owners.any(|owner| Some(owner.uid.as_str()) != node.metadata.uid.as_deref())
}

/// Whether the operator has said that a Node is out of service.
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

fn made(lease: &Lease) -> Option<Timestamp> {
    lease.creation_timestamp().map(|made| made.0)
}

/// How long ago; no time if it is yet to come.
fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
