//! Leases: which there are, what hangs on them, and until when they last. Times come in as arguments; they are this
//! process's own and start again at full length after a restart, as etcd's do after a change of leader.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// etcd's shortest lease, in seconds.
const SHORTEST: i64 = 2;
/// etcd's longest lease, in seconds.
pub(crate) const LONGEST: i64 = 9_000_000_000;

/// What a lease costs, for the quota: its entries here and by its end, and what the writer notes of it for snapshots.
const COST: u64 = 256;

/// One lease.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    /// Seconds.
    pub(crate) ttl: i64,
    /// When it ends on this process's clock.
    pub(crate) ends: Duration,
    /// What hangs on it, in order.
    pub(crate) keys: BTreeSet<Bytes>,
}

/// The leases of a store.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: BTreeMap<i64, Lease>,
    ends: BTreeSet<(Duration, i64)>,
}

impl Leases {
    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.leases.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, lease))
    }

    /// What they cost, in bytes; keys that hang on one are counted as keys.
    pub(crate) fn bytes(&self) -> u64 {
        self.leases.len() as u64 * COST
    }

    /// Number and seconds of each.
    pub(crate) fn terms(&self) -> Vec<(i64, i64)> {
        self.iter().map(|(id, lease)| (id, lease.ttl)).collect()
    }

    /// The length that a lease gets when a client asks for `ttl`.
    pub(crate) fn granted_ttl(ttl: i64) -> i64 {
        ttl.max(SHORTEST)
    }

    pub(crate) fn grant(&mut self, id: i64, ttl: i64, now: Duration) {
        let ends = end(now, ttl);
        if self
            .leases
            .insert(
                id,
                Lease {
                    ttl,
                    ends,
                    keys: BTreeSet::new(),
                },
            )
            .is_none()
        {
            self.ends.insert((ends, id));
        }
    }

    /// Ends a lease; answers the keys that hung on it.
    pub(crate) fn revoke(&mut self, id: i64) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        self.ends.remove(&(lease.ends, id));
        Some(lease)
    }

    /// Starts the time of a lease again; answers its length. One that has ended is only not removed yet, and stays so, as
    /// with etcd (`lessor.Renew`).
    pub(crate) fn renew(&mut self, id: i64, now: Duration) -> Option<i64> {
        let lease = self.leases.get_mut(&id).filter(|lease| now < lease.ends)?;
        self.ends.remove(&(lease.ends, id));
        lease.ends = end(now, lease.ttl);
        self.ends.insert((lease.ends, id));
        Some(lease.ttl)
    }

    /// Starts the time of all leases again.
    pub(crate) fn renew_all(&mut self, now: Duration) {
        self.ends.clear();
        for (id, lease) in &mut self.leases {
            lease.ends = end(now, lease.ttl);
            self.ends.insert((lease.ends, *id));
        }
    }

    /// Moves a key from the lease it hung on to another; 0 is none.
    pub(crate) fn attach(&mut self, key: &[u8], from: i64, to: i64) {
        if from == to {
            return;
        }
        if let Some(lease) = self.leases.get_mut(&from) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.leases.get_mut(&to) {
            lease.keys.insert(Bytes::copy_from_slice(key));
        }
    }

    /// Leases whose time is up, at most `limit`.
    pub(crate) fn expired(&self, now: Duration, limit: usize) -> Vec<i64> {
        self.ends
            .iter()
            .take_while(|(ends, _)| *ends <= now)
            .take(limit)
            .map(|(_, id)| *id)
            .collect()
    }
}

fn end(now: Duration, ttl: i64) -> Duration {
    now + Duration::from_secs(ttl.clamp(0, LONGEST).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn ends_when_its_time_is_up_and_not_when_renewed() {
        let mut leases = Leases::default();
        leases.grant(1, 5, S(0));
        leases.grant(2, 7, S(0));
        assert!(leases.expired(S(4), 9).is_empty());
        assert_eq!(leases.renew(1, S(4)), Some(5));
        assert_eq!(
            (
                leases.expired(S(8), 9),
                leases.expired(S(9), 9),
                leases.expired(S(9), 1)
            ),
            (vec![2], vec![2, 1], vec![2])
        );
        assert_eq!(leases.renew(2, S(7)), None, "it has ended");
        assert_eq!(leases.expired(S(8), 9), [2]);
        leases.renew_all(S(10));
        assert!(leases.expired(S(14), 9).is_empty());
        assert_eq!(leases.renew(3, S(0)), None);
    }

    #[test]
    fn a_key_hangs_on_one_lease() {
        let mut leases = Leases::default();
        leases.grant(1, 5, S(0));
        leases.grant(2, 5, S(0));
        leases.attach(b"a", 0, 1);
        leases.attach(b"b", 0, 1);
        leases.attach(b"a", 1, 2);
        assert_eq!(leases.revoke(1).unwrap().keys.into_iter().collect::<Vec<_>>(), ["b"]);
        leases.attach(b"a", 2, 0);
        assert!(leases.revoke(2).unwrap().keys.is_empty());
        assert!(leases.revoke(2).is_none() && leases.expired(S(99), 9).is_empty());
    }

    #[test]
    fn short_leases_are_made_two_seconds_long() {
        assert_eq!([1, 2, 60].map(Leases::granted_ttl), [2, 2, 60]);
    }
}
