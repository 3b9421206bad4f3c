//! Whose control plane is made now, whose is started where none runs, and whose is started anew though its owner asked for
//! nothing.
//!
//! What makes one, certificates above all, works on so many at once; asked for a thousand at a time it would do a little of
//! each, and none were ready before all are. So does a machine on which many control planes start. An operator that has other
//! images or arguments would start all again at once: machines would be full, and what does not start with them would be down
//! everywhere before anybody saw it.
//!
//! ```text
//!  take ─▶ a turn is free ─▶ the Cluster is carried out ─▶ its certificates are issued, or it runs ─▶ finish ─┐
//!     └──▶ waits ◀── called for: awake before asleep, then Tenants in turn, then the older ◀────────────────────┘
//! ```
//!
//! In memory alone: what has been begun goes on without a turn, so an operator that starts has nothing to know.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, ClusterId};

/// How many have a turn, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Turns at once.
    pub at_once: usize,
    /// Of them, those of one Tenant: what does not come up holds up others of its own.
    pub of_a_tenant: usize,
    /// Who has not finished by then holds nobody up any more.
    pub limit: Duration,
}

impl Rule {
    /// Of those that are made. Measured with cert-manager on two cores: a Cluster alone has its certificates after 3 s, and 40
    /// at once take 1.2 s each.
    pub const MADE: Self = Self {
        at_once: 16,
        of_a_tenant: 16,
        limit: Duration::from_secs(60),
    };
    /// Of those that are started anew, in some 5 s each. Where none comes back, it is four in ten minutes that are lost until
    /// somebody sees it.
    pub const RESTARTED: Self = Self {
        at_once: 4,
        of_a_tenant: 4,
        limit: Duration::from_mins(10),
    };

    /// Of those that are started where none runs, on machines with so many cores. A start keeps one core busy for as long as it
    /// takes: of many at once none serves before all do. See docs/adr/0026-start-control-planes-in-a-queue.md.
    pub const fn of_starts(cores: usize) -> Self {
        // Without machines yet, those that wait are what has them made.
        let at_once = if cores == 0 { 16 } else { cores.saturating_add(1) };
        Self {
            at_once,
            of_a_tenant: at_once.div_ceil(2),
            limit: Duration::from_secs(60),
        }
    }
}

/// Who has a turn, and who waits.
#[derive(Debug)]
pub struct Turns {
    state: Mutex<State>,
    calls: mpsc::UnboundedSender<ObjectRef<Cluster>>,
}

/// A Cluster that is to be made, started, or started anew.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) id: ClusterId,
    pub(super) cluster: ObjectRef<Cluster>,
    /// Nobody waits for it.
    pub(super) is_asleep: bool,
    pub(super) created: Option<Timestamp>,
}

#[derive(Debug)]
struct State {
    rule: Rule,
    /// With their Tenants' namespaces, and since when.
    taken: HashMap<ClusterId, (Option<String>, Instant)>,
    waiting: HashMap<ClusterId, Wanted>,
}

impl Turns {
    /// Nobody's, and the Clusters whose turn comes later.
    pub fn new(rule: Rule) -> (Self, mpsc::UnboundedReceiver<ObjectRef<Cluster>>) {
        let (calls, called) = mpsc::unbounded();
        let state = Mutex::new(State {
            rule,
            taken: HashMap::new(),
            waiting: HashMap::new(),
        });
        (Self { state, calls }, called)
    }

    /// Has another rule hold from now on.
    pub(super) fn set_rule(&self, rule: Rule) {
        self.lock().rule = rule;
    }

    /// Whether it is a Cluster's turn. If not, it waits, and is called for.
    pub(super) fn take(&self, wanted: Wanted) -> bool {
        let id = wanted.id.clone();
        let (mut state, now) = (self.lock(), Instant::now());
        state.end_late(now);
        if !state.taken.contains_key(&id) {
            state.waiting.insert(id.clone(), wanted);
        }
        self.call(state.fill(now), Some(&id));
        state.taken.contains_key(&id)
    }

    /// Whether a Cluster neither waits for its turn nor has begun it less than so long ago.
    pub(super) fn has_had_time(&self, id: &ClusterId, long: Duration) -> bool {
        let state = self.lock();
        let is_young = |(_, since): &(Option<String>, Instant)| since.elapsed() < long;
        !state.waiting.contains_key(id) && !state.taken.get(id).is_some_and(is_young)
    }

    /// Ends the turn of a Cluster, or its waiting.
    pub fn finish(&self, id: &ClusterId) {
        let mut state = self.lock();
        state.waiting.remove(id);
        state.taken.remove(id);
        self.call(state.fill(Instant::now()), None);
    }

    /// Has those reconciled whose turn has come, but for the one that asks.
    fn call(&self, due: Vec<Wanted>, asks: Option<&ClusterId>) {
        for wanted in due.into_iter().filter(|wanted| Some(&wanted.id) != asks) {
            // Without controllers there is nobody to call.
            let _ = self.calls.unbounded_send(wanted.cluster);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one entry, so the maps are whole after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Ends the turns that have taken too long.
    fn end_late(&mut self, now: Instant) {
        let limit = self.rule.limit;
        self.taken
            .retain(|_, (_, since)| now.saturating_duration_since(*since) < limit);
    }

    /// Gives the turns that are free; those who have one now.
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
        let may = waiting.filter(|(turns, _)| *turns < self.rule.of_a_tenant);
        let next = may.min_by_key(|(turns, wanted)| (wanted.is_asleep, *turns, wanted.created, wanted.id.as_str()));
        next.map(|(_, wanted)| wanted.clone())
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

    /// Turns that are all taken, by Clusters of a Tenant that sleep.
    fn full() -> (Turns, mpsc::UnboundedReceiver<ObjectRef<Cluster>>, Vec<Wanted>) {
        let (turns, called) = Turns::new(Rule::MADE);
        let first: Vec<_> = (0..Rule::MADE.at_once)
            .map(|number| wanted("a", number, true))
            .collect();
        assert!(first.iter().all(|wanted| turns.take(wanted.clone())));
        (turns, called, first)
    }

    fn next(called: &mut mpsc::UnboundedReceiver<ObjectRef<Cluster>>) -> Option<String> {
        called.try_recv().ok().map(|cluster| cluster.name)
    }

    #[test]
    fn who_is_awaited_comes_first_then_tenants_in_turn_then_the_older() {
        let (turns, mut called, first) = full();
        for waits in [
            wanted("a", 20, true),
            wanted("a", 21, false),
            wanted("b", 23, true),
            wanted("a", 22, false),
            wanted("b", 24, true),
        ] {
            assert!(!turns.take(waits));
        }
        let mut order = Vec::new();
        for done in &first[..5] {
            turns.finish(&done.id);
            order.extend(next(&mut called));
        }
        assert_eq!(order, ["c21", "c22", "c23", "c24", "c20"]);
        assert!(turns.take(wanted("a", 20, true)), "it has its turn when it comes");
    }

    #[test]
    fn who_wakes_while_it_waits_comes_first() {
        let (turns, mut called, first) = full();
        let mut later = wanted("a", 31, true);
        assert!(!turns.take(wanted("a", 30, true)));
        assert!(!turns.take(later.clone()));
        later.is_asleep = false;
        assert!(!turns.take(later));
        turns.finish(&first[0].id);
        assert_eq!(next(&mut called).as_deref(), Some("c31"));
    }

    #[test]
    fn who_took_too_long_has_another_turn_or_waits() {
        let (turns, mut called, first) = full();
        let end = |wanted: &Wanted| {
            let mut state = turns.lock();
            let limit = state.rule.limit;
            state.taken.get_mut(&wanted.id).unwrap().1 -= limit;
        };
        end(&first[0]);
        assert!(turns.take(first[0].clone()), "there is room");
        end(&first[0]);
        assert!(turns.take(wanted("b", 40, false)), "in its place");
        assert!(!turns.take(first[0].clone()));
        turns.finish(&first[1].id);
        assert_eq!(next(&mut called).as_deref(), Some("c0"), "it waited");
    }

    #[test]
    fn no_tenant_has_all_starts() {
        let (turns, mut called) = Turns::new(Rule::of_starts(3));
        let first: Vec<_> = (0..2).map(|number| wanted("a", number, false)).collect();
        assert!(first.iter().all(|wanted| turns.take(wanted.clone())));
        let next_of_a = wanted("a", 2, false);
        assert!(!turns.take(next_of_a.clone()));
        assert!(!turns.has_had_time(&next_of_a.id, Duration::ZERO));
        assert!((3..5).all(|number| turns.take(wanted("b", number, false))));
        assert!(!turns.take(wanted("c", 5, false)), "four have a turn");
        turns.finish(&first[0].id);
        assert_eq!(next(&mut called).as_deref(), Some("c5"), "its Tenant has none");
        turns.set_rule(Rule::of_starts(5));
        turns.finish(&first[1].id);
        assert_eq!(next(&mut called).as_deref(), Some("c2"));
        assert!(turns.has_had_time(&next_of_a.id, Duration::ZERO));
        assert!(!turns.has_had_time(&next_of_a.id, Duration::from_secs(60)));
        turns.finish(&next_of_a.id);
        assert!(turns.has_had_time(&next_of_a.id, Duration::from_secs(60)));
    }

    #[test]
    fn who_goes_away_or_takes_too_long_holds_nobody_up() {
        let (turns, mut called, first) = full();
        let (gone, waits) = (wanted("a", 40, true), wanted("a", 41, true));
        assert!(!turns.take(gone.clone()));
        assert!(!turns.take(waits.clone()));
        turns.finish(&gone.id);
        assert_eq!(next(&mut called), None);
        let due = turns.lock().fill(Instant::now() + Rule::MADE.limit);
        assert_eq!(due.len(), 1, "all the others took too long");
        assert_eq!(due[0].id, waits.id);
        turns.finish(&first[0].id);
        assert!(turns.lock().waiting.is_empty());
    }
}
