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
pub struct Seats {
    all: usize,
    each: usize,
    taken: Arc<Mutex<Taken>>,
}

/// Occupied slots, oldest first.
#[derive(Debug, Default)]
struct Taken {
    places: BTreeMap<u64, Place>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    cluster: ClusterId,
    tenant: String,
    /// Ends the holder when others need the slot; `None` for a pinned slot.
    lent: Option<oneshot::Sender<()>>,
}

/// An occupied slot; dropping it frees the slot.
#[derive(Debug)]
pub struct Seat {
    seats: Seats,
    number: u64,
}

impl Seats {
    /// Creates a limiter with `all` slots in total and `each` slots for one cluster.
    pub fn new(all: usize, each: usize) -> Self {
        Self {
            all,
            each,
            taken: Arc::default(),
        }
    }

    /// Occupies a pinned slot for a cluster, if one is free.
    pub fn take(&self, route: &Route) -> Option<Seat> {
        self.take_as(route, None)
    }

    /// Occupies a slot that can be evicted: the receiver fires when others need it. The oldest
    /// evictable slot is evicted first.
    pub fn lend(&self, route: &Route) -> Option<(Seat, oneshot::Receiver<()>)> {
        let (lent, ended) = oneshot::channel();
        Some((self.take_as(route, Some(lent))?, ended))
    }

    fn take_as(&self, route: &Route, lent: Option<oneshot::Sender<()>>) -> Option<Seat> {
        let mut taken = self.lock();
        let own = |place: &Place| place.cluster == route.id;
        let tenants = |place: &Place| place.tenant == route.tenant;
        // Few clusters wake at a time, so counting is cheap.
        while taken.count(own) >= self.each {
            taken.give_up(own)?;
        }
        while taken.count(tenants) >= self.all / PARTS {
            taken.give_up(tenants)?;
        }
        while taken.places.len() >= self.all {
            taken.give_up(|_| true)?;
        }
        let number = taken.next;
        taken.next += 1;
        let place = Place {
            cluster: route.id.clone(),
            tenant: route.tenant.clone(),
            lent,
        };
        taken.places.insert(number, place);
        Some(Seat {
            seats: self.clone(),
            number,
        })
    }

    /// Number of occupied slots.
    pub fn taken(&self) -> usize {
        self.lock().places.len()
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn count(&self, is_counted: impl Fn(&Place) -> bool) -> usize {
        self.places.values().filter(|place| is_counted(place)).count()
    }

    /// Evicts the oldest evictable slot among those that match.
    fn give_up(&mut self, is_one: impl Fn(&Place) -> bool) -> Option<()> {
        let mut some = self.places.iter();
        let (&number, _) = some.find(|(_, place)| place.lent.is_some() && is_one(place))?;
        let lent = self.places.remove(&number)?.lent?;
        // Without a receiver the holder is about to finish.
        let _ = lent.send(());
        Some(())
    }
}

impl Seat {
    /// Pins the slot: it is no longer evicted.
    pub fn keep(&self) {
        if let Some(place) = self.seats.lock().places.get_mut(&self.number) {
            place.lent = None;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().places.remove(&self.number);
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
        let seats = Seats::new(12, 2);
        let first = seats.take(&a).unwrap();
        let _second = seats.take(&a).unwrap();
        assert!(seats.take(&a).is_none(), "of one cluster");
        let _third = seats.take(&b).unwrap();
        assert!(seats.take(&b).is_none(), "of one Tenant");
        assert!(seats.take(&c).is_some());
        drop(first);
        assert_eq!(seats.taken(), 2);
        assert!(seats.take(&a).is_some());
        let few = Seats::new(4, 2);
        let _taken = [&a, &c, &d].map(|route| few.take(route).unwrap());
        let other = route("bcdfghjk28", "w");
        let _last = few.take(&other).unwrap();
        assert!(few.take(&route("bcdfghjk29", "x")).is_none(), "in all");
    }

    #[test]
    fn who_is_not_known_makes_room() {
        let (a, b) = (route("bcdfghjk24", "t"), route("bcdfghjk25", "u"));
        let seats = Seats::new(8, 2);
        let (known, mut ended) = seats.lend(&a).unwrap();
        known.keep();
        let (_oldest, mut given_up) = seats.lend(&a).unwrap();
        let (of_b, mut others) = seats.lend(&b).unwrap();
        let (newest, mut last) = seats.lend(&a).unwrap();
        assert_eq!(given_up.try_recv(), Ok(()));
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
        newest.keep();
        assert!(seats.lend(&a).is_none(), "none makes room");
        assert!(last.try_recv().is_err());
        drop((known, newest, of_b));
        assert_eq!(seats.taken(), 0, "who was given up counts no more");
    }
}
