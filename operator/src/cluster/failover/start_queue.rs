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
//!  try_admit ─▶ a slot is free ─▶ apply the Cluster ─▶ its certificates are issued, or it runs ─▶ finish ─┐
//!     └───────▶ waits ◀── enqueued: awake before asleep, then Tenants in turn, then the older ◀──────────┘
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
    pub slots_per_tenant: usize,
    /// Time after which a slot is free again, even if its Cluster has not finished.
    pub slot_timeout: Duration,
}

impl QueueLimits {
    /// Limits for creation. Measured with cert-manager on two cores: a single Cluster has its
    /// certificates after 3 s, and 40 at once take 1.2 s each.
    pub const MADE: Self = Self {
        at_once: 16,
        slots_per_tenant: 16,
        slot_timeout: Duration::from_secs(60),
    };
    /// Limits for restarts, which take some 5 s each. If none recovers, four are lost in ten
    /// minutes before an admin notices.
    pub const RESTARTED: Self = Self {
        at_once: 4,
        slots_per_tenant: 4,
        slot_timeout: Duration::from_mins(10),
    };

    /// Limits for starts of stopped control planes, on nodes with this many cores. A start keeps
    /// one core busy until it is done, so none of many concurrent starts is ready before all are.
    /// See docs/adr/0026-start-control-planes-in-a-queue.md.
    pub const fn of_starts(cores: usize) -> Self {
        // Without nodes yet, pending pods are what makes the host add nodes.
        let at_once = if cores == 0 { 16 } else { cores.saturating_add(1) };
        Self {
            at_once,
            slots_per_tenant: at_once.div_ceil(2),
            slot_timeout: Duration::from_secs(60),
        }
    }
}

/// The request of a control plane to an admission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A slot is needed to continue.
    Acquire,
    /// The control plane continues, with a slot if it has one.
    Continue,
    /// The control plane continues, and frees its slot.
    Finish,
}

/// Clusters with a slot, and Clusters that wait for one.
#[derive(Debug)]
pub struct StartQueue {
    state: Mutex<State>,
    requeues: mpsc::UnboundedSender<ObjectRef<Cluster>>,
}

/// A Cluster that needs a slot to be created, started or restarted.
#[derive(Clone, Debug)]
pub(crate) struct QueueEntry {
    pub(crate) id: ClusterId,
    pub(crate) cluster: ObjectRef<Cluster>,
    /// Whether no client waits for it.
    pub(crate) is_asleep: bool,
    pub(crate) created: Option<Timestamp>,
}

#[derive(Debug)]
struct State {
    limits: QueueLimits,
    /// Clusters with a slot: their Tenants' namespaces, and since when.
    slots: HashMap<ClusterId, (Option<String>, Instant)>,
    waiting: HashMap<ClusterId, QueueEntry>,
}

impl StartQueue {
    /// Creates an empty queue, and the channel of the Clusters that get a slot later.
    pub fn new(limits: QueueLimits) -> (Self, mpsc::UnboundedReceiver<ObjectRef<Cluster>>) {
        let (sender, receiver) = mpsc::unbounded();
        let state = Mutex::new(State {
            limits,
            slots: HashMap::new(),
            waiting: HashMap::new(),
        });
        (
            Self {
                state,
                requeues: sender,
            },
            receiver,
        )
    }

    /// Replaces the limits from now on.
    pub fn set_rule(&self, limits: QueueLimits) {
        self.lock().limits = limits;
    }

    /// Takes a slot for a Cluster. Returns false if none is free: the Cluster then waits, and is enqueued
    /// when it gets one.
    pub(crate) fn try_admit(&self, entry: QueueEntry) -> bool {
        let id = entry.id.clone();
        let (mut state, now) = (self.lock(), Instant::now());
        state.expire_slots(now);
        if !state.slots.contains_key(&id) {
            state.waiting.insert(id.clone(), entry);
        }
        self.enqueue(state.assign_slots(now), Some(&id));
        state.slots.contains_key(&id)
    }

    /// Applies an admission. Returns whether the control plane may continue.
    pub(crate) fn admit(&self, admission: Admission, id: &ClusterId, entry: impl FnOnce() -> QueueEntry) -> bool {
        match admission {
            Admission::Acquire => return self.try_admit(entry()),
            Admission::Continue => {}
            Admission::Finish => self.finish(id),
        }
        true
    }

    /// Whether a Cluster neither waits for a slot nor got one less than `long` ago.
    pub(crate) fn started_before(&self, id: &ClusterId, long: Duration) -> bool {
        let state = self.lock();
        let is_young = |(_, since): &(Option<String>, Instant)| since.elapsed() < long;
        !state.waiting.contains_key(id) && !state.slots.get(id).is_some_and(is_young)
    }

    /// Frees the slot of a Cluster, or ends its wait.
    pub fn finish(&self, id: &ClusterId) {
        let mut state = self.lock();
        state.waiting.remove(id);
        state.slots.remove(id);
        self.enqueue(state.assign_slots(Instant::now()), None);
    }

    /// Enqueues the Clusters that got a slot, except for the caller.
    fn enqueue(&self, admitted: Vec<QueueEntry>, caller: Option<&ClusterId>) {
        for entry in admitted.into_iter().filter(|entry| Some(&entry.id) != caller) {
            // Without controllers there is no receiver.
            let _ = self.requeues.unbounded_send(entry.cluster);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one entry, so the maps are consistent after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Frees the slots that were used for too long.
    fn expire_slots(&mut self, now: Instant) {
        let timeout = self.limits.slot_timeout;
        self.slots
            .retain(|_, (_, since)| now.saturating_duration_since(*since) < timeout);
    }

    /// Assigns free slots, and returns the Clusters that got one.
    fn assign_slots(&mut self, now: Instant) -> Vec<QueueEntry> {
        self.expire_slots(now);
        let limits = self.limits;
        let mut admitted = Vec::new();
        while self.slots.len() < limits.at_once
            && let Some(next) = self.find_next_entry()
        {
            let tenant = next.cluster.namespace.clone();
            self.waiting.remove(&next.id);
            self.slots.insert(next.id.clone(), (tenant, now));
            admitted.push(next);
        }
        admitted
    }

    fn find_next_entry(&self) -> Option<QueueEntry> {
        let count_of = |tenant: &Option<String>| self.slots.values().filter(|(other, _)| other == tenant).count();
        let waiting = self
            .waiting
            .values()
            .map(|entry| (count_of(&entry.cluster.namespace), entry));
        let admissible = waiting.filter(|(slots, _)| *slots < self.limits.slots_per_tenant);
        let next = admissible.min_by_key(|(slots, entry)| (entry.is_asleep, *slots, entry.created, entry.id.as_str()));
        next.map(|(_, entry)| entry.clone())
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

    fn entry(tenant: &str, number: usize, is_asleep: bool) -> QueueEntry {
        QueueEntry {
            id: format!("{}{number:09}", if is_asleep { 's' } else { 'b' })
                .parse()
                .unwrap(),
            cluster: ObjectRef::new(&format!("c{number}")).within(tenant),
            is_asleep,
            created: Timestamp::from_second(i64::try_from(number).unwrap()).ok(),
        }
    }

    /// A queue whose slots are all used, by sleeping Clusters of one Tenant.
    fn full() -> (StartQueue, mpsc::UnboundedReceiver<ObjectRef<Cluster>>, Vec<QueueEntry>) {
        let (creations, requeues) = StartQueue::new(QueueLimits::MADE);
        let first: Vec<_> = (0..QueueLimits::MADE.at_once)
            .map(|number| entry("a", number, true))
            .collect();
        assert!(first.iter().all(|entry| creations.try_admit(entry.clone())));
        (creations, requeues, first)
    }

    fn next(requeues: &mut mpsc::UnboundedReceiver<ObjectRef<Cluster>>) -> Option<String> {
        requeues.try_recv().ok().map(|cluster| cluster.name)
    }

    #[test]
    fn order_is_awaited_clusters_then_tenants_in_turn_then_older_clusters() {
        let (creations, mut requeues, first) = full();
        for waiting in [
            entry("a", 20, true),
            entry("a", 21, false),
            entry("b", 23, true),
            entry("a", 22, false),
            entry("b", 24, true),
        ] {
            assert!(!creations.try_admit(waiting));
        }
        let mut order = Vec::new();
        for done in &first[..5] {
            creations.finish(&done.id);
            order.extend(next(&mut requeues));
        }
        assert_eq!(order, ["c21", "c22", "c23", "c24", "c20"]);
        assert!(creations.try_admit(entry("a", 20, true)), "it has got the last slot");
    }

    #[test]
    fn cluster_that_wakes_while_it_waits_is_admitted_first() {
        let (creations, mut requeues, first) = full();
        let mut later = entry("a", 31, true);
        assert!(!creations.try_admit(entry("a", 30, true)));
        assert!(!creations.try_admit(later.clone()));
        later.is_asleep = false;
        assert!(!creations.try_admit(later));
        creations.finish(&first[0].id);
        assert_eq!(next(&mut requeues).as_deref(), Some("c31"));
    }

    #[test]
    fn cluster_with_an_expired_slot_gets_another_one_or_waits() {
        let (creations, mut requeues, first) = full();
        let expire = |entry: &QueueEntry| {
            let mut state = creations.lock();
            let limit = state.limits.slot_timeout;
            state.slots.get_mut(&entry.id).unwrap().1 -= limit;
        };
        expire(&first[0]);
        assert!(creations.try_admit(first[0].clone()), "a slot is free");
        expire(&first[0]);
        assert!(creations.try_admit(entry("b", 40, false)), "the expired slot is free");
        assert!(!creations.try_admit(first[0].clone()));
        creations.finish(&first[1].id);
        assert_eq!(next(&mut requeues).as_deref(), Some("c0"), "the next in the queue");
    }

    #[test]
    fn no_tenant_gets_all_slots() {
        let (creations, mut requeues) = StartQueue::new(QueueLimits::of_starts(3));
        let first: Vec<_> = (0..2).map(|number| entry("a", number, false)).collect();
        assert!(first.iter().all(|entry| creations.try_admit(entry.clone())));
        let next_of_a = entry("a", 2, false);
        assert!(!creations.try_admit(next_of_a.clone()));
        assert!(!creations.started_before(&next_of_a.id, Duration::ZERO));
        assert!((3..5).all(|number| creations.try_admit(entry("b", number, false))));
        assert!(!creations.try_admit(entry("c", 5, false)), "all four slots are used");
        creations.finish(&first[0].id);
        assert_eq!(next(&mut requeues).as_deref(), Some("c5"), "its Tenant has no slot");
        creations.set_rule(QueueLimits::of_starts(5));
        creations.finish(&first[1].id);
        assert_eq!(next(&mut requeues).as_deref(), Some("c2"));
        assert!(creations.started_before(&next_of_a.id, Duration::ZERO));
        assert!(!creations.started_before(&next_of_a.id, Duration::from_secs(60)));
        creations.finish(&next_of_a.id);
        assert!(creations.started_before(&next_of_a.id, Duration::from_secs(60)));
    }

    #[test]
    fn deleted_or_slow_cluster_blocks_no_other() {
        let (creations, mut requeues, first) = full();
        let (deleted, waiting) = (entry("a", 40, true), entry("a", 41, true));
        assert!(!creations.try_admit(deleted.clone()));
        assert!(!creations.try_admit(waiting.clone()));
        creations.finish(&deleted.id);
        assert_eq!(next(&mut requeues), None);
        let admitted = creations
            .lock()
            .assign_slots(Instant::now() + QueueLimits::MADE.slot_timeout);
        assert_eq!(admitted.len(), 1, "all other slots are expired");
        assert_eq!(admitted[0].id, waiting.id);
        creations.finish(&first[0].id);
        assert!(creations.lock().waiting.is_empty());
    }
}
