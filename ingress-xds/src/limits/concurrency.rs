//! Concurrency limits in total, for each Tenant and for each cluster. Used for connections to the
//! activator and for pending requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use yoke_api::ClusterId;

use crate::model::route::Route;

/// One Tenant may use the total divided by this.
const TENANT_SHARE: usize = 4;

/// Limits the concurrent work of clusters. Clones share the slots.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimiter {
    all: usize,
    each: usize,
    slots: Arc<Mutex<Slots>>,
}

/// Occupied slots, oldest first.
#[derive(Debug, Default)]
struct Slots {
    holders: BTreeMap<u64, Holder>,
    next: u64,
}

#[derive(Debug)]
struct Holder {
    cluster: ClusterId,
    tenant: String,
    /// Ends the holder when others need the slot; `None` for a pinned slot.
    evict: Option<oneshot::Sender<()>>,
}

/// An occupied slot; dropping it frees the slot.
#[derive(Debug)]
pub struct Slot {
    limiter: ConcurrencyLimiter,
    number: u64,
}

impl ConcurrencyLimiter {
    /// Creates a limiter with `all` slots in total and `each` slots for one cluster.
    pub fn new(all: usize, each: usize) -> Self {
        Self {
            all,
            each,
            slots: Arc::default(),
        }
    }

    /// Occupies a pinned slot for a cluster, if one is free.
    pub fn acquire(&self, route: &Route) -> Option<Slot> {
        self.acquire_as(route, None)
    }

    /// Occupies a slot that can be evicted: the receiver fires when others need it. The oldest
    /// evictable slot is evicted first.
    pub fn acquire_evictable(&self, route: &Route) -> Option<(Slot, oneshot::Receiver<()>)> {
        let (evict, ended) = oneshot::channel();
        Some((self.acquire_as(route, Some(evict))?, ended))
    }

    fn acquire_as(&self, route: &Route, evict: Option<oneshot::Sender<()>>) -> Option<Slot> {
        let mut slots = self.lock();
        let own = |holder: &Holder| holder.cluster == route.id;
        let tenants = |holder: &Holder| holder.tenant == route.tenant;
        // Few clusters wake at a time, so counting is cheap.
        while slots.count(own) >= self.each {
            slots.evict(own)?;
        }
        while slots.count(tenants) >= self.all / TENANT_SHARE {
            slots.evict(tenants)?;
        }
        while slots.holders.len() >= self.all {
            slots.evict(|_| true)?;
        }
        let number = slots.next;
        slots.next += 1;
        let holder = Holder {
            cluster: route.id.clone(),
            tenant: route.tenant.clone(),
            evict,
        };
        slots.holders.insert(number, holder);
        Some(Slot {
            limiter: self.clone(),
            number,
        })
    }

    /// Number of occupied slots.
    pub fn occupied(&self) -> usize {
        self.lock().holders.len()
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn count(&self, is_counted: impl Fn(&Holder) -> bool) -> usize {
        self.holders.values().filter(|holder| is_counted(holder)).count()
    }

    /// Evicts the oldest evictable slot among those that match.
    fn evict(&mut self, is_one: impl Fn(&Holder) -> bool) -> Option<()> {
        let mut some = self.holders.iter();
        let (&number, _) = some.find(|(_, holder)| holder.evict.is_some() && is_one(holder))?;
        let evict = self.holders.remove(&number)?.evict?;
        // Without a receiver the holder is about to finish.
        let _ = evict.send(());
        Some(())
    }
}

impl Slot {
    /// Pins the slot: it is no longer evicted.
    pub fn pin(&self) {
        if let Some(holder) = self.limiter.lock().holders.get_mut(&self.number) {
            holder.evict = None;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.limiter.lock().holders.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::entries::entry;

    fn route(id: &str, tenant: &str) -> Route {
        let mut route = entry(id, &["a.yoke.test"], "1", "1").route.as_ref().clone();
        route.id = id.parse().unwrap();
        tenant.clone_into(&mut route.tenant);
        route
    }

    #[test]
    fn slots_are_limited_per_cluster_per_tenant_and_in_total() {
        let rows = [
            ("bcdfghjk24", "t"),
            ("bcdfghjk25", "t"),
            ("bcdfghjk26", "u"),
            ("bcdfghjk27", "v"),
        ];
        let [a, b, c, d] = rows.map(|(id, tenant)| route(id, tenant));
        let limiter = ConcurrencyLimiter::new(12, 2);
        let first = limiter.acquire(&a).unwrap();
        let _second = limiter.acquire(&a).unwrap();
        assert!(limiter.acquire(&a).is_none(), "of one cluster");
        let _third = limiter.acquire(&b).unwrap();
        assert!(limiter.acquire(&b).is_none(), "of one Tenant");
        assert!(limiter.acquire(&c).is_some());
        drop(first);
        assert_eq!(limiter.occupied(), 2);
        assert!(limiter.acquire(&a).is_some());
        let few = ConcurrencyLimiter::new(4, 2);
        let _taken = [&a, &c, &d].map(|route| few.acquire(route).unwrap());
        let other = route("bcdfghjk28", "w");
        let _last = few.acquire(&other).unwrap();
        assert!(few.acquire(&route("bcdfghjk29", "x")).is_none(), "in all");
    }

    #[test]
    fn unauthenticated_holders_are_evicted() {
        let (a, b) = (route("bcdfghjk24", "t"), route("bcdfghjk25", "u"));
        let limiter = ConcurrencyLimiter::new(8, 2);
        let (known, mut ended) = limiter.acquire_evictable(&a).unwrap();
        known.pin();
        let (_oldest, mut evicted) = limiter.acquire_evictable(&a).unwrap();
        let (of_b, mut others) = limiter.acquire_evictable(&b).unwrap();
        let (newest, mut last) = limiter.acquire_evictable(&a).unwrap();
        assert_eq!(evicted.try_recv(), Ok(()));
        assert_eq!(
            others.try_recv(),
            Err(oneshot::error::TryRecvError::Empty),
            "of another cluster"
        );
        assert_eq!(
            ended.try_recv(),
            Err(oneshot::error::TryRecvError::Closed),
            "kept, and not ended"
        );
        newest.pin();
        assert!(limiter.acquire_evictable(&a).is_none(), "none makes room");
        assert!(last.try_recv().is_err());
        drop((known, newest, of_b));
        assert_eq!(limiter.occupied(), 0, "who was given up counts no more");
    }
}
