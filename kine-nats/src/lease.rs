//! Leases: their keys, and when they expire. Times are passed in. They are local to this process
//! and start again at full length after a restart, as etcd's do after a change of leader.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// etcd's shortest lease, in seconds.
const SHORTEST: i64 = 2;
/// etcd's longest lease, in seconds.
pub(crate) const LONGEST: i64 = 9_000_000_000;

/// Bytes that a lease counts for in the quota: its entries in both indexes here, and what the
/// writer records of it for snapshots.
const COST: u64 = 256;

/// One lease.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    /// Granted length in seconds.
    pub(crate) ttl: i64,
    /// Time of expiry by this process's clock.
    pub(crate) expires: Duration,
    /// Keys that are attached to the lease, in order.
    pub(crate) keys: BTreeSet<Bytes>,
}

/// The leases of a store.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: BTreeMap<i64, Lease>,
    by_expiry: BTreeSet<(Duration, i64)>,
}

impl Leases {
    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.leases.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, lease))
    }

    /// Bytes that the leases count for in the quota. Attached keys are counted as keys.
    pub(crate) fn bytes(&self) -> u64 {
        self.leases.len() as u64 * COST
    }

    /// Number and seconds of each lease.
    pub(crate) fn terms(&self) -> Vec<(i64, i64)> {
        self.iter().map(|(id, lease)| (id, lease.ttl)).collect()
    }

    /// The length of a lease for which a client requests `ttl`.
    pub(crate) fn granted_ttl(ttl: i64) -> i64 {
        ttl.max(SHORTEST)
    }

    pub(crate) fn grant(&mut self, id: i64, ttl: i64, now: Duration) {
        let expires = end(now, ttl);
        if self
            .leases
            .insert(
                id,
                Lease {
                    ttl,
                    expires,
                    keys: BTreeSet::new(),
                },
            )
            .is_none()
        {
            self.by_expiry.insert((expires, id));
        }
    }

    /// Ends a lease; returns it with its attached keys.
    pub(crate) fn revoke(&mut self, id: i64) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        self.by_expiry.remove(&(lease.expires, id));
        Some(lease)
    }

    /// Restarts the time of a lease; returns its length. A lease that has expired, but is not
    /// removed yet, stays expired, as with etcd (`lessor.Renew`).
    pub(crate) fn renew(&mut self, id: i64, now: Duration) -> Option<i64> {
        let lease = self.leases.get_mut(&id).filter(|lease| now < lease.expires)?;
        self.by_expiry.remove(&(lease.expires, id));
        lease.expires = end(now, lease.ttl);
        self.by_expiry.insert((lease.expires, id));
        Some(lease.ttl)
    }

    /// Restarts the time of all leases.
    pub(crate) fn renew_all(&mut self, now: Duration) {
        self.by_expiry.clear();
        for (id, lease) in &mut self.leases {
            lease.expires = end(now, lease.ttl);
            self.by_expiry.insert((lease.expires, *id));
        }
    }

    /// Moves a key from one lease to another; 0 is no lease.
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

    /// Leases that have expired, at most `limit`.
    pub(crate) fn expired(&self, now: Duration, limit: usize) -> Vec<i64> {
        self.by_expiry
            .iter()
            .take_while(|(expires, _)| *expires <= now)
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
    fn a_lease_expires_unless_it_is_renewed() {
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
    fn a_key_is_attached_to_one_lease() {
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
    fn the_shortest_lease_has_two_seconds() {
        assert_eq!([1, 2, 60].map(Leases::granted_ttl), [2, 2, 60]);
    }
}
