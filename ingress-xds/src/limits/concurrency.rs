//! Concurrency limits in total, for each Tenant and for each cluster. Used for connections to the
//! activator and for pending requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use yoke_api::ClusterId;

use crate::model::route::Route;

/// One Tenant may use the total divided by this.
const PARTS: usize = 4;

/// Limits the concurrent work of clusters. Clones share the slots.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimiter {
    all: usize,
    each: usize,
    taken: Arc<Mutex<Slots>>,
}

/// Occupied slots, oldest first.
#[derive(Debug, Default)]
struct Slots {
    places: BTreeMap<u64, Holder>,
    next: u64,
}

#[derive(Debug)]
struct Holder {
    cluster: ClusterId,
    tenant: String,
    /// Ends the holder when others need the slot; `None` for a pinned slot.
    lent: Option<oneshot::Sender<()>>,
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
            taken: Arc::default(),
        }
    }

    /// Occupies a pinned slot for a cluster, if one is free.
    pub fn take(&self, route: &Route) -> Option<Slot> {
        self.acquire_as(route, None)
    }

    /// Occupies a slot that can be evicted: the receiver fires when others need it. The oldest
    /// evictable slot is evicted first.
    pub fn acquire_evictable(&self, route: &Route) -> Option<(Slot, oneshot::Receiver<()>)> {
        let (lent, ended) = oneshot::channel();
        Some((self.acquire_as(route, Some(lent))?, ended))
    }

    fn acquire_as(&self, route: &Route, lent: Option<oneshot::Sender<()>>) -> Option<Slot> {
        let mut taken = self.lock();
        let own = |place: &Holder| place.cluster == route.id;
        let tenants = |place: &Holder| place.tenant == route.tenant;
        // Few clusters wake at a time, so counting is cheap.
        while taken.count(own) >= self.each {
            taken.evict(own)?;
        }
        while taken.count(tenants) >= self.all / PARTS {
            taken.evict(tenants)?;
        }
        while taken.places.len() >= self.all {
            taken.evict(|_| true)?;
        }
        let number = taken.next;
        taken.next += 1;
        let place = Holder {
            cluster: route.id.clone(),
            tenant: route.tenant.clone(),
            lent,
        };
        taken.places.insert(number, place);
        Some(Slot {
            limiter: self.clone(),
            number,
        })
    }

    /// Number of occupied slots.
    pub fn taken(&self) -> usize {
        self.lock().places.len()
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn count(&self, is_counted: impl Fn(&Holder) -> bool) -> usize {
        self.places.values().filter(|place| is_counted(place)).count()
    }

    /// Evicts the oldest evictable slot among those that match.
    fn evict(&mut self, is_one: impl Fn(&Holder) -> bool) -> Option<()> {
        let mut some = self.places.iter();
        let (&number, _) = some.find(|(_, place)| place.lent.is_some() && is_one(place))?;
        let lent = self.places.remove(&number)?.lent?;
        // Without a receiver the holder is about to finish.
        let _ = lent.send(());
        Some(())
    }
}

impl Slot {
    /// Pins the slot: it is no longer evicted.
    pub fn pin(&self) {
        if let Some(place) = self.limiter.lock().places.get_mut(&self.number) {
            place.lent = None;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.limiter.lock().places.remove(&self.number);
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
    fn there_are_so_many_for_each_and_in_all() {
        let rows = [
            ("bcdfghjk24", "t"),
            ("bcdfghjk25", "t"),
            ("bcdfghjk26", "u"),
            ("bcdfghjk27", "v"),
        ];
        let [a, b, c, d] = rows.map(|(id, tenant)| route(id, tenant));
        let limiter = ConcurrencyLimiter::new(12, 2);
        let first = limiter.take(&a).unwrap();
        let _second = limiter.take(&a).unwrap();
        assert!(limiter.take(&a).is_none(), "of one cluster");
        let _third = limiter.take(&b).unwrap();
        assert!(limiter.take(&b).is_none(), "of one Tenant");
        assert!(limiter.take(&c).is_some());
        drop(first);
        assert_eq!(limiter.taken(), 2);
        assert!(limiter.take(&a).is_some());
        let few = ConcurrencyLimiter::new(4, 2);
        let _taken = [&a, &c, &d].map(|route| few.take(route).unwrap());
        let other = route("bcdfghjk28", "w");
        let _last = few.take(&other).unwrap();
        assert!(few.take(&route("bcdfghjk29", "x")).is_none(), "in all");
    }

    #[test]
    fn who_is_not_known_makes_room() {
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
        assert_eq!(limiter.taken(), 0, "who was given up counts no more");
    }
}
