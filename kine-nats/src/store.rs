//! The state that the services of a process share, whatever its role: the keys behind a lock that
//! is held only briefly, the role, the lease of a writer, and the route of a request to the writer.
//!
//! ```text
//! Store::submit ─┬─ Writer ───► its queue                  Store::read_latest ─┬─ Writer ───► under the lease (or strict)
//!                └─ Follower ─► the writer's process (peer)                    └─ Follower ─► asks the writer for the end
//!                                                                                             of the log, waits, reads here
//! ```

mod forward;
pub(crate) mod leader;
mod metric_values;
pub(crate) mod peers;
mod proofs;
mod reads;
mod requests;
mod strict;
mod succession;

use crate::clock;
use crate::log::fencing::FencingState;
use crate::metrics::Metrics;
use crate::proto::etcdserverpb::ResponseHeader;
use crate::quota::Quota;
use crate::role::{Leader, Queued, Role};
use crate::state::State;
use crate::watch_hub::WatchHub;
use peers::Peers;
use proofs::Strict;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

/// Bytes of the requests that may wait for the writer; further requests wait with their clients.
const QUEUE_BYTES: usize = 64 << 20;
const UNIT: usize = 1024;

/// How far this process has read and written the log.
#[derive(Debug, Default)]
struct Progress {
    /// Id of the store; 0 before the first record.
    cluster: AtomicU64,
    /// Epoch of the newest writer.
    epoch: AtomicU64,
    /// Epoch of the newest writer that was seen to resign.
    last_resigned: AtomicU64,
    /// Sequence of the newest record.
    sequence: AtomicU64,
    /// Sequence of the newest record that this process wrote.
    written: AtomicU64,
    /// Newest stored revision.
    revision: AtomicI64,
    /// End of the log as announced by other processes.
    announced: AtomicU64,
}

/// The lease of the writer. Times are in nanoseconds since the boot of the node.
#[derive(Debug, Default)]
struct WriterLease {
    /// Time until which this process holds the lease as the writer.
    until: AtomicU64,
    /// Whether this process has given up the lease.
    given_up: AtomicBool,
    /// Time until which the writer, in this process or another, is known to hold the lease.
    leader_until: AtomicU64,
}

/// One store in one process.
#[derive(Debug)]
pub(crate) struct Store {
    state: RwLock<State>,
    /// All watches.
    pub(crate) hub: WatchHub,
    pub(crate) metrics: Metrics,
    pub(crate) quota: Quota,
    progress: Progress,
    lease: WriterLease,
    /// Signals a change of the lease, the role or the newest revision.
    changed: Notify,
    /// Signals that the log may have new records.
    appended: Notify,
    /// The process that is to become the next writer, and the time until which the others let it
    /// start before them.
    successor: Mutex<(u64, Duration)>,
    full: AtomicBool,
    stopping: AtomicBool,
    role: watch::Sender<Role>,
    /// Permits for the bytes that may wait, in units of [`UNIT`].
    room: Arc<Semaphore>,
    peers: Option<Arc<dyn Peers>>,
    /// `None` if a lease is sufficient for a read.
    strict: Option<Strict>,
}

impl Store {
    /// Creates a store whose role is not known yet. `peers` is `None` if there is only one process.
    pub(crate) fn new(state: State, quota: Quota, metrics: Metrics, peers: Option<Arc<dyn Peers>>) -> Self {
        let visible = state.mvcc.visible();
        Self {
            state: RwLock::new(state),
            hub: WatchHub::new(visible),
            metrics,
            quota,
            progress: Progress {
                revision: AtomicI64::new(visible),
                ..Progress::default()
            },
            lease: WriterLease::default(),
            changed: Notify::new(),
            appended: Notify::new(),
            successor: Mutex::default(),
            full: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            role: watch::channel(Role::Follower(None)).0,
            room: Arc::new(Semaphore::new(QUEUE_BYTES / UNIT)),
            peers,
            strict: None,
        }
    }

    /// The state with its lock, for code that walks it in pieces.
    pub(crate) fn state(&self) -> &RwLock<State> {
        &self.state
    }

    /// Locks the state for reading. A panic anywhere exits the process, so a poisoned lock never
    /// occurs.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state for the writer.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Newest stored revision.
    pub(crate) fn revision(&self) -> i64 {
        self.progress.revision.load(Ordering::Acquire)
    }

    /// Sequence of the newest record.
    pub(crate) fn sequence(&self) -> u64 {
        self.progress.sequence.load(Ordering::Acquire)
    }

    /// Epoch of the newest writer.
    pub(crate) fn epoch(&self) -> u64 {
        self.progress.epoch.load(Ordering::Acquire)
    }

    /// Sequence of the newest record that this process wrote.
    pub(crate) fn written(&self) -> u64 {
        self.progress.written.load(Ordering::Acquire)
    }

    /// Records the newest record that this process wrote.
    pub(crate) fn set_written(&self, sequence: u64, revision: i64) {
        self.progress.written.store(sequence, Ordering::Release);
        self.set_stored(sequence, revision);
    }

    /// Records the newest stored record.
    pub(crate) fn set_stored(&self, sequence: u64, revision: i64) {
        self.progress.sequence.store(sequence, Ordering::Release);
        self.progress.revision.store(revision, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Notifies watches of the changes that became visible since the revision `before`.
    pub(crate) fn notify_watchers(&self, before: i64, revision: i64) {
        if revision > before {
            let state = self.read();
            let changes = state
                .mvcc
                .changes(before + 1)
                .take_while(|change| change.revision <= revision);
            self.hub.commit(changes, revision);
        }
    }

    /// The header of a response.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.progress.cluster.load(Ordering::Acquire),
            member_id: self.member(),
            revision,
            raft_term: self.epoch(),
        }
    }

    /// Connection to the other processes of the store, if there may be any.
    pub(crate) fn peers(&self) -> Option<&dyn Peers> {
        self.peers.as_deref()
    }

    /// Member id of this process. Without peers it is the same after a restart.
    pub(crate) fn member(&self) -> u64 {
        match &self.peers {
            Some(peers) => peers.member(),
            None => self.progress.cluster.load(Ordering::Acquire).rotate_left(17) | 1,
        }
    }

    /// Whether this process is the writer.
    pub(crate) fn is_writer(&self) -> bool {
        matches!(&*self.role.borrow(), Role::Writer { .. })
    }

    /// Subscribes to the role of this process.
    pub(crate) fn roles(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }

    /// Records the position of a follower. The writer's lease expires at `until` at the latest.
    pub(crate) fn record_position(&self, fencing: &FencingState, until: Duration) {
        let leader = (fencing.epoch > 0 && !fencing.resigned).then_some(Leader {
            epoch: fencing.epoch,
            writer: fencing.writer,
        });
        self.record_epoch(fencing);
        // After a resignation another writer follows at once. A short time without one does not
        // count as the loss of the leader.
        let until = match leader {
            Some(_) => until,
            None if fencing.epoch > 0 => clock::now(),
            None => Duration::ZERO,
        };
        self.lease.leader_until.store(nanoseconds(until), Ordering::Release);
        self.role.send_if_modified(|role| {
            let same = matches!(role, Role::Follower(known) if *known == leader);
            *role = Role::Follower(leader);
            !same
        });
        self.changed.notify_waiters();
    }

    /// Becomes the writer, with a lease until `lease_until`.
    pub(crate) fn become_writer(&self, fencing: &FencingState, queue: mpsc::Sender<Queued>, lease_until: Duration) {
        self.record_epoch(fencing);
        self.set_written(fencing.sequence, self.revision());
        self.lease.until.store(0, Ordering::Release);
        self.lease.given_up.store(false, Ordering::Release);
        self.extend_lease(lease_until);
        let epoch = fencing.epoch;
        self.role.send_replace(Role::Writer { epoch, queue });
        self.changed.notify_waiters();
    }

    /// Whether the writer of an epoch is known to have resigned, and did not merely fall silent.
    pub(crate) fn has_resigned(&self, epoch: u64) -> bool {
        self.progress.last_resigned.load(Ordering::Acquire) == epoch
    }

    fn record_epoch(&self, fencing: &FencingState) {
        self.progress
            .last_resigned
            .store(fencing.last_resigned, Ordering::Release);
        self.progress.cluster.store(fencing.cluster, Ordering::Release);
        let new = self.progress.epoch.swap(fencing.epoch, Ordering::AcqRel) < fencing.epoch;
        // A writer that had already resigned when the log was read was never a leader for this
        // process.
        if new && !fencing.resigned {
            self.metrics.leader_changes.inc();
        }
    }

    /// Stops being the writer.
    pub(crate) fn step_down(&self) {
        self.end_lease();
        self.full.store(false, Ordering::Relaxed);
        self.role.send_replace(Role::Follower(None));
        self.changed.notify_waiters();
    }

    /// Replaces the state by one that was reread from the log. It contains at least what the old
    /// one showed.
    pub(crate) fn install_state(&self, state: State, sequence: u64) {
        let (before, visible) = (self.revision(), state.mvcc.visible());
        *self.write() = state;
        self.set_stored(sequence, visible);
        // Changes below the new compact revision are in no history; rewinding tells the watches
        // that are affected.
        self.hub.rewind_all(before + 1);
        self.notify_watchers(before, visible);
    }

    /// Records the end of the log as announced by another process.
    pub(crate) fn notify_appended(&self, sequence: u64) {
        self.progress.announced.fetch_max(sequence, Ordering::AcqRel);
        self.appended.notify_one();
    }

    /// Waits for [`Store::notify_appended`].
    pub(crate) async fn appended(&self) {
        self.appended.notified().await;
    }

    /// Lower bound of the end of the log.
    pub(crate) fn announced(&self) -> u64 {
        self.progress.announced.load(Ordering::Acquire)
    }

    /// Waits for a new record, lease or role, from the time of the call on.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Extends the lease, and never shortens it. A lease that was given up stays so. Only the
    /// writer calls this and [`Store::end_lease`].
    pub(crate) fn extend_lease(&self, until: Duration) {
        if self.lease.given_up.load(Ordering::Acquire) {
            return;
        }
        self.lease.until.fetch_max(nanoseconds(until), Ordering::AcqRel);
        self.lease.leader_until.fetch_max(nanoseconds(until), Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// Gives up the lease for good.
    pub(crate) fn end_lease(&self) {
        self.lease.given_up.store(true, Ordering::Release);
        self.lease.until.store(0, Ordering::Release);
        // Another writer is to follow. A short time without one does not count as the loss of the
        // leader.
        self.lease
            .leader_until
            .fetch_min(nanoseconds(clock::now()), Ordering::AcqRel);
    }

    /// Whether the lease guarantees that no other process has written.
    pub(crate) fn has_valid_lease(&self) -> bool {
        nanoseconds(clock::now()) < self.lease.until.load(Ordering::Acquire)
    }

    /// Whether puts have to wait until there is room in the stream.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn set_full(&self, full: bool) {
        match (self.full.swap(full, Ordering::Relaxed), full) {
            (false, true) => tracing::warn!("The log is nearly full; rejecting puts until it has room"),
            (true, false) => tracing::info!("The log has room again; accepting puts"),
            _ => {}
        }
    }

    /// Whether puts are rejected for lack of space. Every process reports the same as the writer.
    pub(crate) fn rejects_puts(&self) -> bool {
        let is_full = |peers: &dyn Peers| peers.members().iter().any(|member| member.full);
        self.is_full() || self.read().bytes() >= self.quota.bytes() || self.peers().is_some_and(is_full)
    }

    /// Rejects requests from here on.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.hub.wake_all();
        self.changed.notify_waiters();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::error::RpcError;
    use crate::mvcc::Mvcc;
    use crate::store::peers::{Member, PeerAnswer, PeerError};
    use futures::future::BoxFuture;
    use tokio::time::{Instant, timeout};

    fn store() -> Store {
        Store::new(State::new(Mvcc::new()), Quota::new(None, None), Metrics::new(), None)
    }

    #[tokio::test(start_paused = true)]
    async fn a_given_up_lease_is_not_renewed() {
        let store = store();
        store.extend_lease(clock::now() + Duration::from_secs(1));
        assert!(store.has_valid_lease());
        store.end_lease();
        store.extend_lease(clock::now() + Duration::from_secs(1));
        assert!(!store.has_valid_lease());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_the_lease_ends_with_the_writer() {
        let store = Arc::new(store());
        store.become_writer(&FencingState::default(), mpsc::channel(1).0, Duration::ZERO);
        let start = Instant::now();
        let waiting = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.linearize().await }
        });
        tokio::task::yield_now().await;
        store.stop();
        assert_eq!(waiting.await.unwrap(), Err(RpcError::Stopped));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    /// Another process that never receives a request.
    #[derive(Debug)]
    struct Silent;

    impl Peers for Silent {
        fn member(&self) -> u64 {
            1 << 16
        }

        fn request<'a>(&'a self, _: u64, _: u64, _: &'a Command) -> BoxFuture<'a, Result<PeerAnswer, PeerError>> {
            Box::pin(std::future::pending())
        }

        fn name_successor(&self, _: u64) -> BoxFuture<'_, ()> {
            Box::pin(std::future::ready(()))
        }

        fn members(&self) -> Vec<Member> {
            Vec::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn with_followers_a_read_waits_for_writes_in_flight() {
        let state = State::new(Mvcc::new());
        let store = Store::new(state, Quota::new(None, None), Metrics::new(), Some(Arc::new(Silent)));
        store.become_writer(
            &FencingState::default(),
            mpsc::channel(1).0,
            clock::now() + Duration::from_secs(60),
        );
        let wait = async || timeout(Duration::from_secs(1), store.linearize()).await;
        assert_eq!(wait().await, Ok(Ok(())));
        store.write().mvcc.advance();
        assert!(wait().await.is_err());
        store.write().mvcc.publish(2);
        store.set_written(1, 2);
        assert_eq!(wait().await, Ok(Ok(())));
    }
}
