//! Whether the store has a leader: a writer, in this process or another, whose lease is valid or
//! expired only moments ago. The server ends a stream whose client requires a leader when the store
//! has none, as etcd does. One task watches the time for all streams.

use crate::clock;
use crate::role::Role;
use crate::store::{Store, nanoseconds};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// Time after the end of a lease from which on there is no leader.
const LOST_AFTER: Duration = Duration::from_secs(3);

impl Store {
    /// The member id of the writer; 0 if none is known.
    pub(crate) fn leader(&self) -> u64 {
        if !self.has_leader() {
            return 0;
        }
        match &*self.role.borrow() {
            Role::Writer { .. } => self.member(),
            Role::Follower(Some(leader)) => leader.member(),
            Role::Follower(None) => 0,
        }
    }

    /// Whether the writer's lease is valid or expired only moments ago.
    pub(crate) fn has_leader(&self) -> bool {
        !self.leader_left().is_zero()
    }

    /// Waits until there is a leader, or the store stops.
    pub(crate) async fn wait_for_leader(&self) {
        loop {
            let changed = self.changed();
            if self.has_leader() || self.is_stopping() {
                return;
            }
            changed.await;
        }
    }

    /// How long there is a leader if no further record arrives.
    fn leader_left(&self) -> Duration {
        match self.lease.leader_until.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            until => {
                let lost_at = until.saturating_add(nanoseconds(LOST_AFTER));
                Duration::from_nanos(lost_at.saturating_sub(nanoseconds(clock::now())))
            }
        }
    }
}

/// Wakes all streams of a process each time its store has lost its leader. Returns only if the
/// sender of stores is dropped before it publishes one.
pub(crate) async fn watch_leader(mut stores: watch::Receiver<Option<Arc<Store>>>) {
    let Ok(Some(store)) = stores.wait_for(Option::is_some).await.map(|store| store.clone()) else {
        return;
    };
    let mut wait_for_leader = false;
    loop {
        let changed = store.changed();
        let left = store.leader_left();
        if !left.is_zero() {
            wait_for_leader = true;
            sleep(left).await;
            continue;
        }
        if std::mem::replace(&mut wait_for_leader, false) {
            store.hub.wake_all();
        }
        changed.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::mvcc::Mvcc;
    use crate::quota::Quota;
    use crate::state::State;
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn streams_are_woken_only_when_the_leader_is_lost() {
        let state = State::new(Mvcc::new());
        let store = Arc::new(Store::new(state, Quota::new(None, None), Metrics::new(), None));
        let (stores, receiver) = watch::channel(None);
        let watching = tokio::spawn(watch_leader(receiver));
        stores.send_replace(Some(Arc::clone(&store)));
        for _ in 0..2 {
            let woken = store.hub.woken();
            tokio::pin!(woken);
            for _ in 0..10 {
                store.extend_lease(clock::now() + Duration::from_secs(2));
                let quiet = timeout(Duration::from_secs(4), &mut woken).await;
                assert!(quiet.is_err() && store.has_leader());
            }
            let start = Instant::now();
            woken.await;
            assert!(!store.has_leader());
            assert!(start.elapsed() <= Duration::from_millis(1002), "{:?}", start.elapsed());
        }
        let quiet = timeout(Duration::from_secs(3600), store.hub.woken()).await;
        assert!(quiet.is_err());
        watching.abort();
    }
}
