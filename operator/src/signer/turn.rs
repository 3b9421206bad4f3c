//! When certificates are signed, and which of those that wait is next. Pure: time comes in as an argument.
//!
//! A Tenant says of any name that it is a node's, so its budget is what keeps it from having cert-manager to itself: enough at
//! once for workers that join, and little after that. Nodes that are there go before new ones: they end without certificates.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use yoke_runtime::budget::{Budgets, Rate};

/// What one certificate takes of a budget: so a budget may fill by less than one in a second.
const COST: u32 = 10;
/// Of one Tenant: 300 at once, and one in 10 s.
const TENANT: Rate = Rate {
    per_second: 1,
    burst: 300 * COST,
};
/// Of all Tenants: 400 at once, and 5 in a second, which cert-manager does beside its other work.
const ALL: Rate = Rate {
    per_second: 5 * COST,
    burst: 400 * COST,
};
/// New nodes leave this part of each budget to those that are there.
const KEPT: u32 = 4;
/// How long a JoinToken is waited for that is not known: the operator's own watch may be late.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests of one cluster that wait at most.
const WAITING: usize = 1024;
/// Requests of one requester that wait at most for its budget.
const SKIPPED: usize = 128;

/// What may be signed.
#[derive(Debug)]
pub(super) struct Signings {
    tenants: Budgets<String>,
    all: Budgets<()>,
}

/// Requests of one cluster that wait: for what may be signed, or for a JoinToken that is not known yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Nodes that are there first, then as they came.
    waiting: BTreeMap<(bool, u64), Waiting>,
    count: u64,
}

/// A request that waits. Not what it asks for: that may be long, and is read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Its name.
    pub(super) name: String,
    /// Its UID.
    pub(super) uid: String,
    /// When it was seen first.
    pub(super) since: Instant,
    /// The same by the calendar: who asked in time may wait beyond the end of its JoinToken.
    pub(super) asked: Timestamp,
}

/// Requests of one cluster that wait until their requesters have some of their budgets again.
#[derive(Debug, Default)]
pub(super) struct Skipped {
    /// By requester, as they came.
    waiting: VecDeque<(String, Waiting)>,
}

impl Signings {
    /// All budgets are full.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            tenants: Budgets::new(TENANT, now),
            all: Budgets::new(ALL, now),
        }
    }

    /// Whether one more may be signed for a Tenant.
    pub(super) fn has(&self, tenant: &str, is_new: bool, now: Instant) -> bool {
        self.tenants.has(&tenant.to_owned(), COST, rest(TENANT, is_new), now)
            && self.all.has(&(), COST, rest(ALL, is_new), now)
    }

    /// Has one more signed for a Tenant, if that may be.
    pub(super) fn take(&mut self, tenant: &str, is_new: bool, now: Instant) -> bool {
        self.has(tenant, is_new, now)
            && self
                .tenants
                .take_some(tenant.to_owned(), COST, rest(TENANT, is_new), now)
            && self.all.take_some((), COST, rest(ALL, is_new), now)
    }
}

impl Queue {
    /// Puts a request behind those of its kind; false if there is no place.
    pub(super) fn put(&mut self, is_new: bool, waiting: Waiting) -> bool {
        self.count += 1;
        let has_place = self.waiting.len() < WAITING;
        if has_place {
            self.waiting.insert((is_new, self.count), waiting);
        }
        has_place
    }

    /// Whether a request of this UID is among them.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.waiting.values().any(|waiting| waiting.uid == uid)
    }

    /// Whether the next one is a new node's; `None` if nobody waits.
    pub(super) fn next_is_new(&self) -> Option<bool> {
        self.waiting.first_key_value().map(|((is_new, _), _)| *is_new)
    }

    /// Takes the next one out.
    pub(super) fn take(&mut self) -> Option<Waiting> {
        self.waiting.pop_first().map(|(_, waiting)| waiting)
    }
}

impl Skipped {
    /// Puts a request behind the others; false if there is no place, or none for this requester.
    pub(super) fn put(&mut self, requester: String, waiting: Waiting) -> bool {
        let same = self.waiting.iter().filter(|(other, _)| *other == requester).count();
        let has_place = self.waiting.len() < WAITING && same < SKIPPED;
        if has_place {
            self.waiting.push_back((requester, waiting));
        }
        has_place
    }

    /// Whether a request of this UID is among them.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.waiting.iter().any(|(_, waiting)| waiting.uid == uid)
    }

    /// Takes the first one out whose requester may have an answer.
    pub(super) fn take(&mut self, mut may: impl FnMut(&str) -> bool) -> Option<Waiting> {
        let next = self.waiting.iter().position(|(requester, _)| may(requester))?;
        self.waiting.remove(next).map(|(_, waiting)| waiting)
    }
}

/// Whether a JoinToken that is not known is still waited for.
pub(super) fn is_early(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < PATIENCE
}

fn rest(rate: Rate, is_new: bool) -> u32 {
    if is_new { rate.burst / KEPT } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_many_at_once_and_then_few() {
        let start = Instant::now();
        let mut signings = Signings::new(start);
        let mut spend = |is_new, after| {
            let now = start + Duration::from_secs(after);
            (0..1000).filter(|_| signings.take("a", is_new, now)).count()
        };
        assert_eq!(spend(true, 0), 225);
        assert_eq!(spend(false, 0), 75, "nodes that are there");
        assert_eq!(spend(false, 100), 10);
        assert_eq!(spend(true, 100), 0);
        assert_eq!(spend(true, 100 + 760), 1);
    }

    #[test]
    fn all_tenants_together_have_a_rate() {
        let start = Instant::now();
        let mut signings = Signings::new(start);
        let mut spend = |from: usize, is_new, after| {
            let now = start + Duration::from_secs(after);
            let tenants = (from..from + 10).map(|number| format!("t{number}"));
            let each = |tenant: String| (0..100).filter(|_| signings.take(&tenant, is_new, now)).count();
            tenants.map(each).sum::<usize>()
        };
        assert_eq!(spend(0, true, 0), 300);
        assert_eq!(spend(10, false, 0), 100, "nodes that are there");
        assert_eq!(spend(20, false, 2), 10);
        assert!(
            signings.tenants.has(&"t29".to_owned(), TENANT.burst, 0, start),
            "who waits for all pays nothing"
        );
    }

    fn waiting(name: &str) -> Waiting {
        Waiting {
            name: name.into(),
            uid: name.into(),
            since: Instant::now(),
            asked: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn who_asks_much_keeps_no_other_waiting() {
        let mut skipped = Skipped::default();
        for (requester, name) in [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")] {
            assert!(skipped.put(requester.into(), waiting(name)));
        }
        let mut take = |who: &[&str]| skipped.take(|requester| who.contains(&requester)).map(|it| it.name);
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
    fn nodes_that_are_there_go_first() {
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
    fn a_token_is_waited_for_a_while() {
        let start = Instant::now();
        assert!(is_early(start, start + Duration::from_secs(29)));
        assert!(!is_early(start, start + Duration::from_secs(30)));
    }
}
