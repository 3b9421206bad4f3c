//! What the writer and the services share: the state behind a lock that is held for moments only, the writer's lease, and
//! the queue of requests to the writer.

use crate::clock;
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::proto::etcdserverpb::ResponseHeader;
use crate::refusal::Refusal;
use crate::state::State;
use crate::txn::{Answer, Command};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a request may wait for the log; etcd's own limit.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(7);
/// Without a lease for this long there is no leader.
const LEADER_LOST: Duration = Duration::from_secs(3);

/// Bytes of the requests that wait for the writer; more wait with their clients.
const QUEUE_BYTES: usize = 64 << 20;
const UNIT: usize = 1024;

/// A request on its way to the writer.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) command: Command,
    pub(crate) reply: oneshot::Sender<Result<Answer, Refusal>>,
    /// Its share of what may wait.
    pub(crate) room: OwnedSemaphorePermit,
}

/// One store, as its writer keeps it.
#[derive(Debug)]
pub(crate) struct Store {
    state: RwLock<State>,
    /// Who watches.
    pub(crate) hub: Hub,
    pub(crate) metrics: Metrics,
    pub(crate) cluster: u64,
    pub(crate) epoch: u64,
    /// Bytes above which nothing is put.
    pub(crate) quota: u64,
    sequence: AtomicU64,
    revision: AtomicI64,
    lease_until: AtomicU64,
    lease_ended: AtomicBool,
    lease_changed: Notify,
    full: AtomicBool,
    stopping: AtomicBool,
    queue: mpsc::Sender<Queued>,
    /// What is left of the bytes that may wait, in units of [`UNIT`].
    room: Arc<Semaphore>,
}

impl Store {
    pub(crate) fn new(
        state: State,
        (cluster, epoch): (u64, u64),
        quota: u64,
        queue: mpsc::Sender<Queued>,
        metrics: Metrics,
    ) -> Self {
        let visible = state.mvcc.visible();
        Self {
            state: RwLock::new(state),
            hub: Hub::new(visible),
            metrics,
            cluster,
            epoch,
            quota,
            sequence: AtomicU64::new(0),
            revision: AtomicI64::new(visible),
            lease_until: AtomicU64::new(0),
            lease_ended: AtomicBool::new(false),
            lease_changed: Notify::new(),
            full: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            queue,
            room: Arc::new(Semaphore::new(QUEUE_BYTES / UNIT)),
        }
    }

    /// The state with its lock, for what walks it in pieces.
    pub(crate) fn state(&self) -> &RwLock<State> {
        &self.state
    }

    /// The state for reading. A panic anywhere ends the process, so a poisoned lock is never seen.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state for the writer.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Newest stored revision.
    pub(crate) fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Sequence of the newest record.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Notes what the newest stored record is.
    pub(crate) fn set_stored(&self, sequence: u64, revision: i64) {
        self.sequence.store(sequence, Ordering::Release);
        self.revision.store(revision, Ordering::Release);
    }

    /// The header of an answer.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster,
            member_id: self.member(),
            revision,
            raft_term: self.epoch,
        }
    }

    /// The member that all processes of the store appear as.
    pub(crate) fn member(&self) -> u64 {
        self.cluster.rotate_left(17) | 1
    }

    /// Extends the lease; it never gets shorter. One that was given up stays so. Only the writer calls this and
    /// [`Store::end_lease`].
    pub(crate) fn extend_lease(&self, until: Duration) {
        if self.lease_ended.load(Ordering::Acquire) {
            return;
        }
        self.lease_until.fetch_max(nanoseconds(until), Ordering::AcqRel);
        self.lease_changed.notify_waiters();
    }

    /// Gives the lease up for good.
    pub(crate) fn end_lease(&self) {
        self.lease_ended.store(true, Ordering::Release);
        self.lease_until.store(0, Ordering::Release);
    }

    /// Whether nobody else can have written.
    pub(crate) fn lease_holds(&self) -> bool {
        nanoseconds(clock::now()) < self.lease_until.load(Ordering::Acquire)
    }

    /// Whether the lease holds or ended only moments ago.
    pub(crate) fn has_leader(&self) -> bool {
        let until = self.lease_until.load(Ordering::Acquire);
        until > 0 && nanoseconds(clock::now()) < until.saturating_add(nanoseconds(LEADER_LOST))
    }

    /// Whether puts have to wait until there is room in the stream.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn set_full(&self, full: bool) {
        match (self.full.swap(full, Ordering::Relaxed), full) {
            (false, true) => tracing::warn!("The log is nearly full: nothing is put until there is room"),
            (true, false) => tracing::info!("The log has room again"),
            _ => {}
        }
    }

    /// From here on requests are refused.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.hub.wake_all();
        self.lease_changed.notify_waiters();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until the lease holds.
    pub(crate) async fn wait_for_lease(&self) -> Result<(), Refusal> {
        let deadline = Instant::now() + REQUEST_LIMIT;
        loop {
            let changed = self.lease_changed.notified();
            if self.lease_holds() {
                return Ok(());
            }
            if self.is_stopping() {
                return Err(Refusal::Stopped);
            }
            timeout_at(deadline, changed).await.map_err(|_| Refusal::Timeout)?;
        }
    }

    /// Reads the state so that everything acknowledged before the call is seen: the lease must still hold afterwards.
    pub(crate) async fn read_latest<T>(&self, read: impl Fn(&State) -> T) -> Result<T, Refusal> {
        loop {
            self.wait_for_lease().await?;
            let value = read(&self.read());
            if self.lease_holds() {
                return Ok(value);
            }
        }
    }

    /// Bytes of the requests that wait for the writer.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        QUEUE_BYTES - self.room.available_permits() * UNIT
    }

    /// Has the writer do a request.
    pub(crate) async fn submit(&self, command: Command) -> Result<Answer, Refusal> {
        if self.is_stopping() {
            return Err(Refusal::Stopped);
        }
        let (reply, answer) = oneshot::channel();
        let share = u32::try_from(command.bytes() / UNIT + 1).map_err(|_| Refusal::TooLarge)?;
        let work = async {
            let room = Arc::clone(&self.room).acquire_many_owned(share).await;
            let room = room.map_err(|_| Refusal::Stopped)?;
            self.queue
                .send(Queued { command, reply, room })
                .await
                .map_err(|_| Refusal::Stopped)?;
            answer.await.map_err(|_| Refusal::Stopped)?
        };
        timeout(REQUEST_LIMIT, work).await.map_err(|_| Refusal::Timeout)?
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::Mvcc;

    fn store() -> Store {
        Store::new(
            State::new(Mvcc::new()),
            (1, 1),
            u64::MAX,
            mpsc::channel(1).0,
            Metrics::new(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_lease_stays_ended() {
        let store = store();
        store.extend_lease(clock::now() + Duration::from_secs(1));
        assert!(store.lease_holds());
        store.end_lease();
        store.extend_lease(clock::now() + Duration::from_secs(1));
        assert!(!store.lease_holds());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_lease_hears_of_the_end() {
        let store = Arc::new(store());
        let begun = Instant::now();
        let waiting = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.wait_for_lease().await }
        });
        tokio::task::yield_now().await;
        store.stop();
        assert_eq!(waiting.await.unwrap(), Err(Refusal::Stopped));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
