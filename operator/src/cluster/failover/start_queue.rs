//! A queue that limits concurrent work on control planes: their creation, their start, and restarts
//! that no owner requested.
//!
//! The throughput of a creation is limited, by the issuing of certificates above all. A thousand
//! concurrent creations would all progress slowly, and none would be ready before all are. A node
//! on which many control planes start has the same limit.
//!
//! An operator with other images or arguments would restart all control planes at once. Nodes would
//! be full, and a version that does not start would be down everywhere before an admin notices.
//!
//! ```text
//!  take ─▶ a slot is free ─▶ apply the Cluster ─▶ its certificates are issued, or it runs ─▶ finish ─┐
//!     └──▶ waits ◀── enqueued: awake before asleep, then Tenants in turn, then the older ◀──────────┘
//! ```
//!
//! The state is in memory only: work that has started continues without a slot, so a new operator
//! process needs no state.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, ClusterId};

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Maximum number of slots.
    pub at_once: usize,
    /// Maximum number of slots of one Tenant: its failing control planes delay its own others only.
    pub of_a_tenant: usize,
    /// Time after which a slot is free again, even if its Cluster has not finished.
    pub limit: Duration,
}

impl QueueLimits {
    /// Limits for creation. Measured with cert-manager on two cores: a single Cluster has its
    /// certificates after 3 s, and 40 at once take 1.2 s each.
    pub const MADE: Self = Self {
        at_once: 16,
        of_a_tenant: 16,
        limit: Duration::from_secs(60),
    };
    /// Limits for restarts, which take some 5 s each. If none recovers, four are lost in ten
    /// minutes before an admin notices.
    pub const RESTARTED: Self = Self {
        at_once: 4,
        of_a_tenant: 4,
        limit: Duration::from_mins(10),
    };

    /// Limits for starts of stopped control planes, on nodes with this many cores. A start keeps
    /// one core busy until it is done, so none of many concurrent starts is ready before all are.
    /// See docs/adr/0026-start-control-planes-in-a-queue.md.
    pub const fn of_starts(cores: usize) -> Self {
        // Without nodes yet, pending pods are what makes the host add nodes.
        let at_once = if cores == 0 { 16 } else { cores.saturating_add(1) };
        Self {
            at_once,
            of_a_tenant: at_once.div_ceil(2),
            limit: Duration::from_secs(60),
        }
    }
}

/// What a control plane needs from an admission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It needs a slot to go on.
    Take,
    /// It goes on as it is: with a slot if it has one.
    Continue,
    /// It goes on, and needs no slot any more.
    Finish,
}

/// Clusters with a slot, and Clusters that wait for one.
#[derive(Debug)]
pub struct StartQueue {
    state: Mutex<State>,
    calls: mpsc::UnboundedSender<ObjectRef<Cluster>>,
}

/// A Cluster that needs a slot to be created, started or restarted.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) id: ClusterId,
    pub(crate) cluster: ObjectRef<Cluster>,
    /// Whether no client waits for it.
    pub(crate) is_asleep: bool,
    pub(crate) created: Option<Timestamp>,
}

#[derive(Debug)]
struct State {
    rule: QueueLimits,
    /// Clusters with a slot: their Tenants' namespaces, and since when.
    taken: HashMap<ClusterId, (Option<String>, Instant)>,
    waiting: HashMap<ClusterId, Wanted>,
}

impl StartQueue {
    /// Creates an empty queue, and the channel of the Clusters that get a slot later.
    pub fn new(rule: QueueLimits) -> (Self, mpsc::UnboundedReceiver<ObjectRef<Cluster>>) {
        let (calls, called) = mpsc::unbounded();
        let state = Mutex::new(State {
            rule,
            taken: HashMap::new(),
            waiting: HashMap::new(),
        });
        (Self { state, calls }, called)
    }

    /// Replaces the limits from now on.
    pub fn set_rule(&self, rule: QueueLimits) {
        self.lock().rule = rule;
    }

    /// Takes a slot for a Cluster. Returns false if none is free: the Cluster then waits, and is enqueued
    /// when it gets one.
    pub(crate) fn try_admit(&self, wanted: Wanted) -> bool {
        let id = wanted.id.clone();
        let (mut state, now) = (self.lock(), Instant::now());
        state.end_late(now);
        if !state.taken.contains_key(&id) {
            state.waiting.insert(id.clone(), wanted);
        }
        self.call(state.fill(now), Some(&id));
        state.taken.contains_key(&id)
    }

    /// Carries out an admission. Returns whether the control plane may go on.
    pub(crate) fn admit(&self, admission: Admission, wanted: Wanted) -> bool {
        match admission {
            Admission::Take => return self.try_admit(wanted),
            Admission::Continue => {}
            Admission::Finish => self.finish(&wanted.id),
        }
        true
    }

    /// Whether a Cluster neither waits for a slot nor got one less than `long` ago.
    pub(crate) fn started_before(&self, id: &ClusterId, long: Duration) -> bool {
        let state = self.lock();
        let is_young = |(_, since): &(Option<String>, Instant)| since.elapsed() < long;
        !state.waiting.contains_key(id) && !state.taken.get(id).is_some_and(is_young)
    }

    /// Frees the slot of a Cluster, or ends its wait.
    pub fn finish(&self, id: &ClusterId) {
        let mut state = self.lock();
        state.waiting.remove(id);
        state.taken.remove(id);
        self.call(state.fill(Instant::now()), None);
    }

    /// Enqueues the Clusters that got a slot, except for the caller.
    fn call(&self, due: Vec<Wanted>, asks: Option<&ClusterId>) {
        for wanted in due.into_iter().filter(|wanted| Some(&wanted.id) != asks) {
            // Without controllers there is no receiver.
            let _ = self.calls.unbounded_send(wanted.cluster);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one entry, so the maps are consistent after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Frees the slots that were used for too long.
    fn end_late(&mut self, now: Instant) {
        let limit = self.rule.limit;
        self.taken
            .retain(|_, (_, since)| now.saturating_duration_since(*since) < limit);
    }

    /// Assigns free slots, and returns the Clusters that got one.
    fn fill(&mut self, now: Instant) -> Vec<Wanted> {
        self.end_late(now);
        let rule = self.rule;
        let mut due = Vec::new();
        while self.taken.len() < rule.at_once
            && let Some(next) = self.find_next()
        {
            let tenant = next.cluster.namespace.clone();
            self.waiting.remove(&next.id);
            self.taken.insert(next.id.clone(), (tenant, now));
            due.push(next);
        }
        due
    }

    fn find_next(&self) -> Option<Wanted> {
        let count_of = |tenant: &Option<String>| self.taken.values().filter(|(other, _)| other == tenant).count();
        let waiting = self
            .waiting
            .values()
            .map(|wanted| (count_of(&wanted.cluster.namespace), wanted));
        let may = waiting.filter(|(creations, _)| *creations < self.rule.of_a_tenant);
        let next =
            may.min_by_key(|(creations, wanted)| (wanted.is_asleep, *creations, wanted.created, wanted.id.as_str()));
        next.map(|(_, wanted)| wanted.clone())
    }
}

/// The three admission queues of the Cluster controller.
#[derive(Debug)]
pub struct Queues {
    /// Clusters whose control planes are created.
    pub creations: StartQueue,
    /// Control planes that restart although their owners changed nothing.
    pub restarts: StartQueue,
    /// Control planes that start where none runs.
    pub starts: StartQueue,
}

impl Queues {
    /// Removes a cluster from all queues, so that no other cluster waits for it.
    pub fn finish(&self, id: &ClusterId) {
        self.creations.finish(id);
        self.restarts.finish(id);
        self.starts.finish(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(tenant: &str, number: usize, is_asleep: bool) -> Wanted {
        Wanted {
            id: format!("{}{number:09}", if is_asleep { 's' } else { 'b' })
                .parse()
                .unwrap(),
            cluster: ObjectRef::new(&format!("c{number}")).within(tenant),
            is_asleep,
            created: Timestamp::from_second(i64::try_from(number).unwrap()).ok(),
        }
    }

    /// A queue whose slots are all taken, by sleeping Clusters of one Tenant.
    fn full() -> (StartQueue, mpsc::UnboundedReceiver<ObjectRef<Cluster>>, Vec<Wanted>) {
        let (creations, called) = StartQueue::new(QueueLimits::MADE);
        let first: Vec<_> = (0..QueueLimits::MADE.at_once)
            .map(|number| wanted("a", number, true))
            .collect();
        assert!(first.iter().all(|wanted| creations.try_admit(wanted.clone())));
        (creations, called, first)
    }

    fn next(called: &mut mpsc::UnboundedReceiver<ObjectRef<Cluster>>) -> Option<String> {
        called.try_recv().ok().map(|cluster| cluster.name)
    }

    #[test]
    fn who_is_awaited_comes_first_then_tenants_in_turn_then_the_older() {
        let (creations, mut called, first) = full();
        for waits in [
            wanted("a", 20, true),
            wanted("a", 21, false),
            wanted("b", 23, true),
            wanted("a", 22, false),
            wanted("b", 24, true),
        ] {
            assert!(!creations.try_admit(waits));
        }
        let mut order = Vec::new();
        for done in &first[..5] {
            creations.finish(&done.id);
            order.extend(next(&mut called));
        }
        assert_eq!(order, ["c21", "c22", "c23", "c24", "c20"]);
        assert!(
            creations.try_admit(wanted("a", 20, true)),
            "it has its turn when it comes"
        );
    }

    #[test]
    fn who_wakes_while_it_waits_comes_first() {
        let (creations, mut called, first) = full();
        let mut later = wanted("a", 31, true);
        assert!(!creations.try_admit(wanted("a", 30, true)));
        assert!(!creations.try_admit(later.clone()));
        later.is_asleep = false;
        assert!(!creations.try_admit(later));
        creations.finish(&first[0].id);
        assert_eq!(next(&mut called).as_deref(), Some("c31"));
    }

    #[test]
    fn who_took_too_long_has_another_turn_or_waits() {
        let (creations, mut called, first) = full();
        let end = |wanted: &Wanted| {
            let mut state = creations.lock();
            let limit = state.rule.limit;
            state.taken.get_mut(&wanted.id).unwrap().1 -= limit;
        };
        end(&first[0]);
        assert!(creations.try_admit(first[0].clone()), "there is room");
        end(&first[0]);
        assert!(creations.try_admit(wanted("b", 40, false)), "in its place");
        assert!(!creations.try_admit(first[0].clone()));
        creations.finish(&first[1].id);
        assert_eq!(next(&mut called).as_deref(), Some("c0"), "it waited");
    }

    #[test]
    fn no_tenant_has_all_starts() {
        let (creations, mut called) = StartQueue::new(QueueLimits::of_starts(3));
        let first: Vec<_> = (0..2).map(|number| wanted("a", number, false)).collect();
        assert!(first.iter().all(|wanted| creations.try_admit(wanted.clone())));
        let next_of_a = wanted("a", 2, false);
        assert!(!creations.try_admit(next_of_a.clone()));
        assert!(!creations.started_before(&next_of_a.id, Duration::ZERO));
        assert!((3..5).all(|number| creations.try_admit(wanted("b", number, false))));
        assert!(!creations.try_admit(wanted("c", 5, false)), "four have a turn");
        creations.finish(&first[0].id);
        assert_eq!(next(&mut called).as_deref(), Some("c5"), "its Tenant has none");
        creations.set_rule(QueueLimits::of_starts(5));
        creations.finish(&first[1].id);
        assert_eq!(next(&mut called).as_deref(), Some("c2"));
        assert!(creations.started_before(&next_of_a.id, Duration::ZERO));
        assert!(!creations.started_before(&next_of_a.id, Duration::from_secs(60)));
        creations.finish(&next_of_a.id);
        assert!(creations.started_before(&next_of_a.id, Duration::from_secs(60)));
    }

    #[test]
    fn who_goes_away_or_takes_too_long_holds_nobody_up() {
        let (creations, mut called, first) = full();
        let (gone, waits) = (wanted("a", 40, true), wanted("a", 41, true));
        assert!(!creations.try_admit(gone.clone()));
        assert!(!creations.try_admit(waits.clone()));
        creations.finish(&gone.id);
        assert_eq!(next(&mut called), None);
        let due = creations.lock().fill(Instant::now() + QueueLimits::MADE.limit);
        assert_eq!(due.len(), 1, "all the others took too long");
        assert_eq!(due[0].id, waits.id);
        creations.finish(&first[0].id);
        assert!(creations.lock().waiting.is_empty());
    }
}
