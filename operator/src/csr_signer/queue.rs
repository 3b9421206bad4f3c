//! Decides when a certificate may be signed, and which waiting request is next. Pure: the time is
//! an argument.
//!
//! A Tenant can request certificates for any node name, so its budget prevents it from occupying
//! cert-manager. The budget allows a burst of joining workers, and few requests after that.
//! Existing nodes come before new ones: they stop working without certificates.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use yoke_runtime::budget::{Budgets, Rate};

/// Budget units per certificate. Thus a budget can refill by less than one certificate per second.
const COST: u32 = 10;
/// Per Tenant: a burst of 300, then one every 10 s.
const TENANT: Rate = Rate {
    per_second: 1,
    burst: 300 * COST,
};
/// All Tenants: a burst of 400, then 5 per second, which cert-manager can do beside its other work.
const ALL: Rate = Rate {
    per_second: 5 * COST,
    burst: 400 * COST,
};
/// New nodes leave one part in this many of each budget to existing nodes.
const RESERVED_PART: u32 = 4;
/// How long a request waits for an unknown JoinToken: the operator's own watch may be late.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of waiting requests per cluster.
const WAITING: usize = 1024;
/// Maximum number of requests of one requester that wait for its budget.
const SKIPPED: usize = 128;

/// Signing budgets of all Tenants.
#[derive(Debug)]
pub(crate) struct SigningQueue {
    tenants: Budgets<String>,
    all: Budgets<()>,
}

/// Requests of one cluster that wait for the signing budget, or for a JoinToken that is not known
/// yet.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Existing nodes first, then in order of arrival.
    waiting: BTreeMap<(bool, u64), Waiting>,
    count: u64,
}

/// A waiting request. Its content is not stored: it may be large, and is read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Name of the request.
    pub(crate) name: String,
    /// UID of the request.
    pub(crate) uid: String,
    /// When the request was first seen.
    pub(crate) since: Instant,
    /// Wall-clock time of `since`. A request that arrived in time may wait beyond the end of its
    /// JoinToken.
    pub(crate) requested_at: Timestamp,
}

/// Requests of one cluster that wait for the budgets of their requesters.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    /// With their requesters, in order of arrival.
    waiting: VecDeque<(String, Waiting)>,
}

impl SigningQueue {
    /// Creates full budgets.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            tenants: Budgets::new(TENANT, now),
            all: Budgets::new(ALL, now),
        }
    }

    /// Returns whether one more certificate may be signed for a Tenant.
    pub(crate) fn has(&self, tenant: &str, is_new: bool, now: Instant) -> bool {
        self.tenants
            .has(&tenant.to_owned(), COST, reserved(TENANT, is_new), now)
            && self.all.has(&(), COST, reserved(ALL, is_new), now)
    }

    /// Spends the budget of one certificate for a Tenant, if there is enough.
    pub(crate) fn take(&mut self, tenant: &str, is_new: bool, now: Instant) -> bool {
        self.has(tenant, is_new, now)
            && self
                .tenants
                .take_some(tenant.to_owned(), COST, reserved(TENANT, is_new), now)
            && self.all.take_some((), COST, reserved(ALL, is_new), now)
    }
}

impl Queue {
    /// Queues a request behind those of its kind. Returns `false` if the queue is full.
    pub(crate) fn put(&mut self, is_new: bool, waiting: Waiting) -> bool {
        self.count += 1;
        let has_room = self.waiting.len() < WAITING;
        if has_room {
            self.waiting.insert((is_new, self.count), waiting);
        }
        has_room
    }

    /// Returns whether a request with this UID is queued.
    pub(crate) fn contains(&self, uid: &str) -> bool {
        self.waiting.values().any(|waiting| waiting.uid == uid)
    }

    /// Returns whether the next request is of a new node; `None` if the queue is empty.
    pub(crate) fn next_is_new(&self) -> Option<bool> {
        self.waiting.first_key_value().map(|((is_new, _), _)| *is_new)
    }

    /// Removes and returns the next request.
    pub(crate) fn take(&mut self) -> Option<Waiting> {
        self.waiting.pop_first().map(|(_, waiting)| waiting)
    }
}

impl Skipped {
    /// Queues a request. Returns `false` if the queue is full, or this requester's part of it.
    pub(crate) fn put(&mut self, requester: String, waiting: Waiting) -> bool {
        let same = self.waiting.iter().filter(|(other, _)| *other == requester).count();
        let has_room = self.waiting.len() < WAITING && same < SKIPPED;
        if has_room {
            self.waiting.push_back((requester, waiting));
        }
        has_room
    }

    /// Returns whether a request with this UID is queued.
    pub(crate) fn contains(&self, uid: &str) -> bool {
        self.waiting.iter().any(|(_, waiting)| waiting.uid == uid)
    }

    /// Removes and returns the first request whose requester may be answered.
    pub(crate) fn take(&mut self, mut may: impl FnMut(&str) -> bool) -> Option<Waiting> {
        let next = self.waiting.iter().position(|(requester, _)| may(requester))?;
        self.waiting.remove(next).map(|(_, waiting)| waiting)
    }
}

/// Returns whether to wait longer for an unknown JoinToken.
pub(crate) fn is_early(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < PATIENCE
}

fn reserved(rate: Rate, is_new: bool) -> u32 {
    if is_new { rate.burst / RESERVED_PART } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_burst_and_then_a_rate() {
        let start = Instant::now();
        let mut signings = SigningQueue::new(start);
        let mut spend = |is_new, after| {
            let now = start + Duration::from_secs(after);
            (0..1000).filter(|_| signings.take("a", is_new, now)).count()
        };
        assert_eq!(spend(true, 0), 225);
        assert_eq!(spend(false, 0), 75, "existing nodes");
        assert_eq!(spend(false, 100), 10);
        assert_eq!(spend(true, 100), 0);
        assert_eq!(spend(true, 100 + 760), 1);
    }

    #[test]
    fn all_tenants_share_a_rate() {
        let start = Instant::now();
        let mut signings = SigningQueue::new(start);
        let mut spend = |from: usize, is_new, after| {
            let now = start + Duration::from_secs(after);
            let tenants = (from..from + 10).map(|number| format!("t{number}"));
            let each = |tenant: String| (0..100).filter(|_| signings.take(&tenant, is_new, now)).count();
            tenants.map(each).sum::<usize>()
        };
        assert_eq!(spend(0, true, 0), 300);
        assert_eq!(spend(10, false, 0), 100, "existing nodes");
        assert_eq!(spend(20, false, 2), 10);
        assert!(
            signings.tenants.has(&"t29".to_owned(), TENANT.burst, 0, start),
            "a Tenant paid for the budget of all"
        );
    }

    fn waiting(name: &str) -> Waiting {
        Waiting {
            name: name.into(),
            uid: name.into(),
            since: Instant::now(),
            requested_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_requester_with_many_requests_does_not_delay_others() {
        let mut skipped = Skipped::default();
        for (requester, name) in [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")] {
            assert!(skipped.put(requester.into(), waiting(name)));
        }
        let mut take = |requesters: &[&str]| {
            skipped
                .take(|requester| requesters.contains(&requester))
                .map(|it| it.name)
        };
        assert_eq!(take(&[]), None);
        assert_eq!(take(&["b"]).as_deref(), Some("3"));
        assert_eq!(take(&["a", "b"]).as_deref(), Some("1"));
        assert!(!skipped.contains("1") && skipped.contains("2"));
        let mut fill = |requester: &str| {
            let all = 0..2000;
            all.filter(|_| skipped.put(requester.into(), waiting("x"))).count()
        };
        assert_eq!(fill("a"), 126);
        assert_eq!(fill("b"), 128);
        let others: usize = (0..10).map(|number| fill(&number.to_string())).sum();
        assert_eq!(others, 1024 - 2 * 128);
    }

    #[test]
    fn existing_nodes_come_before_new_nodes() {
        let mut queue = Queue::default();
        assert_eq!(queue.next_is_new(), None);
        for (is_new, name) in [(true, "a"), (false, "b"), (true, "c"), (false, "d")] {
            assert!(queue.put(is_new, waiting(name)));
        }
        assert_eq!(queue.next_is_new(), Some(false));
        let order: Vec<_> = std::iter::from_fn(|| queue.take())
            .map(|waiting| waiting.name)
            .collect();
        assert_eq!(order, ["b", "d", "a", "c"]);
        let taken = (0..2000).filter(|_| queue.put(true, waiting("x"))).count();
        assert_eq!(taken, 1024);
    }

    #[test]
    fn a_request_waits_for_an_unknown_token() {
        let start = Instant::now();
        assert!(is_early(start, start + Duration::from_secs(29)));
        assert!(!is_early(start, start + Duration::from_secs(30)));
    }
}
