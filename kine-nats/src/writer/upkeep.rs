//! Background work of the writer: snapshots, trims of the history, and checks of the log. It runs
//! one job at a time, so that a snapshot never overlaps a trim.

use super::Batch;
use super::floor::Rise;
use crate::clock;
use crate::grace::Grace;
use crate::log::{Log, LogInfo};
use crate::quota::RESERVE;
use crate::session::Session;
use crate::snapshot::{Messages, Pin, SnapshotError, Snapshots};
use crate::state::State;
use crate::store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;

/// Most bytes that a stream adds to a record: lengths, subject, headers, checksum.
const MESSAGE: u64 = 256;
/// Shortest delay between two snapshots.
const SPACING: Duration = Duration::from_millis(100);
/// Delay after a failed snapshot: the first time, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(30));
/// Interval of checks of the log, in addition to one after each snapshot. Its limit may change
/// while the store runs.
const LOOK: Duration = Duration::from_secs(30);
/// Number of snapshots at one sequence after which another one there frees nothing more.
const ENOUGH: u32 = 2;
/// A snapshot in progress no longer pauses once this fraction (1/`PART`) of the next one's
/// threshold has accumulated. The log, retained from the previous snapshot on, then has room for
/// the records that arrive during a snapshot without pauses.
const PART: u64 = 2;
/// Timeout of the last snapshot of a writer whose log has lost records.
const SAVING: Duration = Duration::from_secs(60);
/// How long a writer that is being stopped continues until its last snapshot is stored.
const LEAVING: Duration = Duration::from_secs(4);
/// Store size above which a writer stores no snapshot while stopping: it would exceed `LEAVING` and
/// be aborted each time.
const LARGE: u64 = 256 * 1024 * 1024;
/// Unsaved bytes and number of changes from which on a writer stores a snapshot while stopping.
/// Fewer cost the next start about 10 ms, however often the writer stops. A snapshot would write
/// the complete store for that, and purge log that is retained behind the previous one
/// (docs/adr/0009).
const WORTH: (u64, u64) = (1024 * 1024, 1000);
/// Number of unsaved records with the same effect, if there is a change among them. An idle writer
/// stores one each second, and a start reads this many in 0.1 s.
const WORTH_IDLE: u64 = 10_000;

/// Thresholds at which a snapshot is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cadence {
    /// Log bytes. The size of the last snapshot counts instead if it is larger, so that a large
    /// store is not written over and over.
    pub(crate) bytes: u64,
    /// Log bytes at which a snapshot is due in any case.
    pub(crate) most: u64,
    pub(crate) records: u64,
    pub(crate) age: Duration,
}

/// Configured thresholds; those that are not set follow from the log's limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pacing {
    pub(crate) cadence: Option<Cadence>,
    pub(crate) bytes: Option<u64>,
}

impl Pacing {
    fn cadence(self, limit: Option<u64>) -> Cadence {
        let limit = limit.unwrap_or(u64::MAX);
        self.cadence.unwrap_or(Cadence {
            bytes: self.bytes.unwrap_or((limit / 4).min(RESERVE)),
            most: limit / 4,
            records: 50_000,
            age: Duration::from_secs(600),
        })
    }
}

/// Content of the log that is not in the newest snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unsaved {
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    /// Bytes and number of the records with changes. Most records of an idle writer are heartbeats
    /// without any.
    pub(crate) changes: (u64, u64),
    pub(crate) since: Duration,
    pub(crate) urgent: bool,
}

impl Unsaved {
    /// Counts a record.
    pub(crate) fn count(&mut self, bytes: u64, changed: bool) {
        self.bytes += bytes;
        self.records += 1;
        if changed {
            self.changes.0 += bytes;
            self.changes.1 += 1;
        }
    }

    /// Adds back the content of a snapshot that failed.
    fn add(&mut self, earlier: Self) {
        self.bytes += earlier.bytes;
        self.records += earlier.records;
        self.changes.0 += earlier.changes.0;
        self.changes.1 += earlier.changes.1;
        self.since = earlier.since;
        self.urgent |= earlier.urgent;
    }
}

/// Decides when the next snapshot may start.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Sequence of the newest stored snapshot, and how many were stored there in a row.
    stored: (u64, u32),
    not_before: Duration,
    /// Delay after the next snapshot that fails or does not help.
    again: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            stored: (0, 0),
            not_before: Duration::ZERO,
            again: AGAIN.0,
        }
    }
}

impl Pace {
    pub(crate) fn allows(&self) -> bool {
        clock::now() >= self.not_before
    }

    /// Records a stored snapshot.
    pub(crate) fn succeed(&mut self, sequence: u64) {
        let count = if self.stored.0 == sequence {
            self.stored.1 + 1
        } else {
            1
        };
        self.stored = (sequence, count);
        if count < ENOUGH {
            self.not_before = clock::now() + SPACING;
            self.again = AGAIN.0;
        } else {
            self.fail();
        }
    }

    /// Records a failed snapshot.
    pub(crate) fn fail(&mut self) {
        self.not_before = clock::now() + self.again;
        self.again = (self.again * 2).min(AGAIN.1);
    }

    /// Lets the next snapshot start earlier. It may succeed now, even after repeated failures.
    fn hurry(&mut self, sequence: u64) {
        if self.stored.0 != sequence || self.stored.1 < ENOUGH {
            self.not_before = self.not_before.min(clock::now() + AGAIN.0);
        }
    }
}

/// Used and available space of the log.
#[derive(Debug, Clone)]
struct Space {
    limit: Option<u64>,
    /// Bytes at the last check, and bytes that had been appended by then.
    seen: (u64, u64),
    /// Bytes that this writer appended.
    appended: Arc<AtomicU64>,
}

impl Space {
    /// Whether only the reserve is left. The reserve is for records that must be stored even while
    /// puts are rejected: epochs, heartbeats, ends of leases, deletes and compactions.
    fn is_tight(&self) -> bool {
        let Some(limit) = self.limit else { return false };
        let used = self.seen.0 + (self.appended.load(Ordering::Relaxed) - self.seen.1);
        used + RESERVE.min(limit / 4) >= limit
    }
}

/// State of the log at a check, and bytes that this writer had appended by then.
type Seen = Option<(LogInfo, u64)>;

/// The result of a job.
#[derive(Debug)]
pub(super) enum Done {
    Trimmed,
    /// Bytes of the snapshot, and the state of the log afterwards.
    Saved(u64, Seen),
    Looked(Seen),
}

pub(super) type Ended = Result<Result<Done, SnapshotError>, JoinError>;

/// Due work and the job in progress.
#[derive(Debug)]
pub(crate) struct Upkeep<L, M> {
    log: Arc<L>,
    snapshots: Snapshots<M, L>,
    pacing: Pacing,
    cadence: Cadence,
    unsaved: Unsaved,
    /// Content that the snapshot in progress covers, and its sequence.
    saving: (Unsaved, u64),
    /// Whether something waits for the snapshot in progress.
    hurried: watch::Sender<bool>,
    /// Leases of the acknowledged records. The leases in the state are ahead of these, and have no
    /// history.
    leases: BTreeMap<i64, i64>,
    space: Space,
    compacted: i64,
    grace: Grace,
    /// Bytes of the last snapshot.
    size: u64,
    pace: Pace,
    next_look: Duration,
    job: Option<JoinHandle<Result<Done, SnapshotError>>>,
    floor: Rise,
    /// Number of lost records before the end of the log, at the last check.
    holes: u64,
}

/// A job must not outlive its writer: it would report on a log that another process writes by then.
impl<L, M> Drop for Upkeep<L, M> {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            job.abort();
        }
    }
}

impl<L: Log, M: Messages> Upkeep<L, M> {
    pub(crate) fn new(
        (log, info): (Arc<L>, LogInfo),
        snapshots: Snapshots<M, L>,
        state: &State,
        pacing: Pacing,
        unsaved: Unsaved,
    ) -> Self {
        let mut grace = Grace::default();
        grace.begin();
        Self {
            log,
            snapshots,
            pacing,
            cadence: pacing.cadence(info.limit),
            unsaved,
            saving: (Unsaved::default(), 0),
            hurried: watch::Sender::new(false),
            leases: state.leases.terms().into_iter().collect(),
            space: Space {
                limit: info.limit,
                seen: (info.bytes, 0),
                appended: Arc::default(),
            },
            compacted: state.mvcc.compacted(),
            grace,
            size: 0,
            pace: Pace::default(),
            next_look: clock::now() + LOOK,
            job: None,
            floor: Rise::new(),
            holes: 0,
        }
    }

    /// Records a stored record.
    pub(super) fn note(&mut self, batch: &Batch, changed: bool) {
        let bytes = batch.record.len() as u64;
        self.space.appended.fetch_add(bytes + MESSAGE, Ordering::Relaxed);
        self.unsaved.count(bytes, changed);
        if batch.compacted > self.compacted {
            self.compacted = batch.compacted;
            self.grace.begin();
        }
        if changed || !batch.replies.is_empty() {
            self.floor.note();
        }
        for (id, ttl) in &batch.leases {
            match ttl {
                Some(ttl) => self.leases.insert(*id, *ttl),
                None => self.leases.remove(id),
            };
        }
    }

    /// Whether puts have to wait until there is room in the log.
    pub(super) fn is_tight(&self) -> bool {
        self.space.is_tight()
    }

    /// Records that the log accepts nothing behind a sequence; a snapshot is then urgent.
    pub(super) fn hurry(&mut self, sequence: u64) {
        self.unsaved.urgent = true;
        self.pace.hurry(sequence);
    }

    fn is_due(&self) -> bool {
        let (unsaved, now) = (&self.unsaved, clock::now());
        let old = unsaved.changes.1 > 0 && now > unsaved.since + self.cadence.age;
        self.pace.allows() && (unsaved.urgent || self.is_much(1) || old || self.is_tight())
    }

    /// Whether the unsaved content reaches `1 / part` of the threshold of a snapshot.
    fn is_much(&self, part: u64) -> bool {
        let bytes = self.size.min(self.cadence.most).max(self.cadence.bytes);
        self.unsaved.bytes >= bytes / part || self.unsaved.records >= self.cadence.records / part
    }

    fn trim_is_due(&self, store: &Store) -> bool {
        self.grace.is_over() && store.read().mvcc.may_trim()
    }

    /// Whether something waits for the snapshot in progress: room in the log, a copy of lost
    /// records, or the trim behind it.
    fn is_awaited(&self, store: &Store) -> bool {
        self.saving.0.urgent || self.unsaved.urgent || self.is_tight() || self.is_much(PART) || self.trim_is_due(store)
    }

    /// Starts a trim or a snapshot if one is due. A snapshot shows the state at the acknowledged
    /// end of the log.
    pub(super) fn begin(&mut self, store: &Arc<Store>, session: &Session) {
        if let Some(holes) = self.floor.begin(store, &self.log, &self.snapshots) {
            let before = std::mem::replace(&mut self.holes, holes);
            if holes > 0 {
                if holes != before {
                    tracing::error!(
                        holes,
                        "The log has lost records before its end; a snapshot takes their place"
                    );
                }
                // Only this process still has the lost records. After two snapshots the log starts
                // behind the gap.
                self.hurry(session.sequence);
            }
        }
        if self.job.is_some() {
            if !*self.hurried.borrow() && self.is_awaited(store) {
                self.hurried.send_replace(true);
            }
            return;
        }
        let store = Arc::clone(store);
        if self.trim_is_due(&store) {
            self.job = Some(tokio::spawn(async move {
                while store.write().mvcc.trim(1000) {
                    tokio::task::yield_now().await;
                }
                Ok(Done::Trimmed)
            }));
        } else if self.is_due() {
            let now = Unsaved {
                since: clock::now(),
                ..Unsaved::default()
            };
            self.saving = (std::mem::replace(&mut self.unsaved, now), session.sequence);
            self.hurried.send_replace(self.is_awaited(&store));
            let pin = self.pin(&store, session);
            let snapshots = self.snapshots.resting(self.hurried.subscribe());
            let looking = self.look();
            self.job = Some(tokio::spawn(async move {
                let bytes = snapshots.keep(store.state(), &pin).await?;
                Ok(Done::Saved(bytes, looking.await))
            }));
        } else if clock::now() >= self.next_look {
            self.next_look = clock::now() + LOOK;
            let looking = self.look();
            self.job = Some(tokio::spawn(async move { Ok(Done::Looked(looking.await)) }));
        }
    }

    /// Reads the log's limit and its size.
    fn look(&self) -> impl Future<Output = Seen> + use<L, M> {
        let (log, appended) = (Arc::clone(&self.log), Arc::clone(&self.space.appended));
        async move {
            let appended = appended.load(Ordering::Relaxed);
            log.info().await.ok().map(|info| (info, appended))
        }
    }

    /// Applies the result of a check of the log.
    fn see(&mut self, store: &Store, seen: Seen) {
        if let Some((info, appended)) = seen {
            self.space.limit = info.limit;
            self.space.seen = (info.bytes, appended);
            self.cadence = self.pacing.cadence(info.limit);
            store.quota.follow(info.limit);
        }
        store.set_full(self.is_tight());
    }

    fn pin(&self, store: &Store, session: &Session) -> Pin {
        let leases = self.leases.iter().map(|(id, ttl)| (*id, *ttl)).collect();
        Pin::new(store.state(), session.clone(), leases)
    }

    /// Records that the log's server may have dropped records meanwhile.
    pub(super) fn doubt(&mut self) {
        self.floor.doubt();
    }

    /// Raises the low watermark a last time, when no further record follows.
    pub(super) async fn finish(&mut self, store: &Store) {
        self.floor.finish(store, &*self.log, &self.snapshots).await;
    }

    /// Aborts the job in progress.
    pub(super) async fn abort(&mut self) {
        self.floor.abort().await;
        if let Some(job) = self.job.take() {
            job.abort();
            let _ = job.await;
            self.unsaved.add(std::mem::take(&mut self.saving.0));
        }
    }

    /// Requests a snapshot without pauses if that is worthwhile, because this writer is stopping.
    /// Returns the time at which to stop waiting for it.
    pub(super) fn leave(&mut self, store: &Store) -> Duration {
        if self.is_worth_saving(store) {
            self.unsaved.urgent = true;
        }
        clock::now() + LEAVING
    }

    /// Whether the next start would have to read much behind the last snapshot.
    pub(super) fn is_worth_saving(&self, store: &Store) -> bool {
        let mut all = self.unsaved;
        all.add(self.saving.0);
        let (bytes, changes) = all.changes;
        let is_much = bytes >= WORTH.0 || changes >= WORTH.1 || all.records >= WORTH_IDLE;
        changes > 0 && is_much && store.read().bytes() <= LARGE
    }

    /// Stores a snapshot and purges nothing.
    pub(super) async fn save(&mut self, store: &Store, session: &Session) {
        // A trim in progress must not run while the snapshot walks the history.
        self.abort().await;
        let pin = self.pin(store, session);
        match timeout(SAVING, self.snapshots.save(store.state(), &pin)).await {
            Ok(Ok(_)) => tracing::error!(sequence = session.sequence, "A snapshot holds what the log has lost"),
            Ok(Err(error)) => tracing::error!(error = %error, "What the log has lost could not be saved"),
            Err(_) => tracing::error!("What the log has lost could not be saved in time"),
        }
    }

    /// Waits for the job in progress; forever if there is none.
    pub(super) async fn ended(&mut self) -> Ended {
        match &mut self.job {
            Some(job) => job.await,
            None => std::future::pending().await,
        }
    }

    /// Applies the result of a finished job.
    pub(super) fn end(&mut self, store: &Store, ended: Ended) {
        self.job = None;
        let saving = std::mem::take(&mut self.saving.0);
        match ended {
            Ok(Ok(Done::Trimmed)) => {}
            Ok(Ok(Done::Looked(seen))) => self.see(store, seen),
            Ok(Ok(Done::Saved(bytes, seen))) => {
                self.size = bytes;
                self.see(store, seen);
                self.pace.succeed(self.saving.1);
                store.metrics.snapshots.inc();
                let took = clock::now().saturating_sub(self.unsaved.since);
                tracing::info!(bytes, milliseconds = took.as_millis() as u64, "A snapshot is stored");
            }
            Ok(Err(error)) => {
                self.unsaved.add(saving);
                self.pace.fail();
                store.metrics.failed_snapshots.inc();
                let error = anyhow::Error::new(error);
                tracing::warn!(error = format!("{error:#}"), "A snapshot could not be stored");
            }
            Err(error) => tracing::error!(error = %error, "A background task failed"),
        }
    }
}
