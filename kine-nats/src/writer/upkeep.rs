//! Work beside the writer: snapshots, trims of the history, and looks at the log. At most one piece at a time, so that a snapshot never
//! meets a trim.

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
/// How long after a snapshot the next one begins at the earliest.
const SPACING: Duration = Duration::from_millis(100);
/// How long after one that failed: the first time, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(30));
/// How often the log is looked at, besides after each snapshot: its limit is another one when the store was given more or less.
const LOOK: Duration = Duration::from_secs(30);
/// After so many at one sequence another one there frees nothing more.
const ENOUGH: u32 = 2;
/// A snapshot under way is hurried when what came since is this part of what makes the next one due: the log, which is
/// kept from the snapshot before it on, has room for what comes while one is stored without a rest.
const PART: u64 = 2;
/// How long the last snapshot of a writer may take whose log has lost something.
const SAVING: Duration = Duration::from_secs(60);
/// How long a writer that is to stop goes on until its last snapshot is stored.
const LEAVING: Duration = Duration::from_secs(4);
/// The snapshot of a larger store takes longer than that, and would be given up each time.
const LARGE: u64 = 256 * 1024 * 1024;
/// It leaves one when changes of so many bytes, or so many of them, are not saved. Less costs the next start about 10 ms, however
/// often it stops; a snapshot would write the whole store for that, and take away log that is kept behind the one before
/// (docs/adr/0009).
const WORTH: (u64, u64) = (1024 * 1024, 1000);
/// Or so many records in all, if there is a change among them: an idle writer stores one each second, of which a start reads
/// these in 0.1 s.
const WORTH_IDLE: u64 = 10_000;

/// When a snapshot is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cadence {
    /// Log bytes; the size of the last snapshot when that is larger, so that a large store is not written over and over.
    pub(crate) bytes: u64,
    /// Log bytes after which one is due in any case.
    pub(crate) most: u64,
    pub(crate) records: u64,
    pub(crate) age: Duration,
}

/// What was said of when snapshots are due; the rest follows from the log's limit.
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

/// What the log holds beyond the newest snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unsaved {
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    /// The same of those that changed what is stored: most of an idle writer only show that it lives.
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

    /// Takes back what a snapshot did not save.
    fn add(&mut self, earlier: Self) {
        self.bytes += earlier.bytes;
        self.records += earlier.records;
        self.changes.0 += earlier.changes.0;
        self.changes.1 += earlier.changes.1;
        self.since = earlier.since;
        self.urgent |= earlier.urgent;
    }
}

/// When the next snapshot may begin.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Where the newest one that is stored stands, and how many in a row.
    stored: (u64, u32),
    not_before: Duration,
    /// How long to wait after the next one that fails or does not help.
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

    /// Notes one that is stored.
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

    /// Notes one that is not stored.
    pub(crate) fn fail(&mut self) {
        self.not_before = clock::now() + self.again;
        self.again = (self.again * 2).min(AGAIN.1);
    }

    /// One is needed. What failed often may help by now.
    fn hurry(&mut self, sequence: u64) {
        if self.stored.0 != sequence || self.stored.1 < ENOUGH {
            self.not_before = self.not_before.min(clock::now() + AGAIN.0);
        }
    }
}

/// How full the log is.
#[derive(Debug, Clone)]
struct Space {
    limit: Option<u64>,
    /// Bytes when it was last looked at, and what had been appended until then.
    seen: (u64, u64),
    /// Bytes that this writer appended.
    appended: Arc<AtomicU64>,
}

impl Space {
    /// Whether only the reserve is left. It is for what must go on when nothing is put any more: epochs, signs of life,
    /// ends of leases, deletes and compactions.
    fn is_tight(&self) -> bool {
        let Some(limit) = self.limit else { return false };
        let used = self.seen.0 + (self.appended.load(Ordering::Relaxed) - self.seen.1);
        used + RESERVE.min(limit / 4) >= limit
    }
}

/// The log as it was seen, and what this writer had appended by then.
type Seen = Option<(LogInfo, u64)>;

/// How a piece of work ended.
#[derive(Debug)]
pub(super) enum Done {
    Trimmed,
    /// Bytes of the snapshot, and the log afterwards.
    Saved(u64, Seen),
    Looked(Seen),
}

pub(super) type Ended = Result<Result<Done, SnapshotError>, JoinError>;

/// What is due, and what is under way.
#[derive(Debug)]
pub(crate) struct Upkeep<L, M> {
    log: Arc<L>,
    snapshots: Snapshots<M, L>,
    pacing: Pacing,
    cadence: Cadence,
    unsaved: Unsaved,
    /// What the snapshot under way covers, and where it stands.
    saving: (Unsaved, u64),
    /// Whether something waits for it.
    hurried: watch::Sender<bool>,
    /// Leases as far as they are stored; the state's are ahead of that, and have no history.
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
    /// Records before its end that the log was last found to have lost.
    holes: u64,
}

/// What is under way does not outlive its writer: it would tell of a log that somebody else writes by then.
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

    /// Notes a record that is stored.
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

    /// The log takes nothing more behind a sequence.
    pub(super) fn hurry(&mut self, sequence: u64) {
        self.unsaved.urgent = true;
        self.pace.hurry(sequence);
    }

    fn is_due(&self) -> bool {
        let (unsaved, now) = (&self.unsaved, clock::now());
        let old = unsaved.changes.1 > 0 && now > unsaved.since + self.cadence.age;
        self.pace.allows() && (unsaved.urgent || self.is_much(1) || old || self.is_tight())
    }

    /// Whether what is not saved is that part of what makes a snapshot due.
    fn is_much(&self, part: u64) -> bool {
        let bytes = self.size.min(self.cadence.most).max(self.cadence.bytes);
        self.unsaved.bytes >= bytes / part || self.unsaved.records >= self.cadence.records / part
    }

    fn trim_is_due(&self, store: &Store) -> bool {
        self.grace.is_over() && store.read().mvcc.may_trim()
    }

    /// Whether something waits for the snapshot under way: room in the log, a copy of what the log has lost, or the trim
    /// behind it.
    fn is_awaited(&self, store: &Store) -> bool {
        self.saving.0.urgent || self.unsaved.urgent || self.is_tight() || self.is_much(PART) || self.trim_is_due(store)
    }

    /// Begins a trim or a snapshot when one is due. A snapshot shows the state at the acknowledged end of the log.
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
                // Only this process has what was there. Two snapshots make the log begin behind it.
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

    /// Asks for the log's limit, and how full it is.
    fn look(&self) -> impl Future<Output = Seen> + use<L, M> {
        let (log, appended) = (Arc::clone(&self.log), Arc::clone(&self.space.appended));
        async move {
            let appended = appended.load(Ordering::Relaxed);
            log.info().await.ok().map(|info| (info, appended))
        }
    }

    /// Goes by the log as it was seen.
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

    /// The log's server may have dropped something meanwhile.
    pub(super) fn doubt(&mut self) {
        self.floor.doubt();
    }

    /// Notes how far the log was acknowledged when nothing more will be.
    pub(super) async fn finish(&mut self, store: &Store) {
        self.floor.finish(store, &*self.log, &self.snapshots).await;
    }

    /// Ends what is under way.
    pub(super) async fn abort(&mut self) {
        self.floor.abort().await;
        if let Some(job) = self.job.take() {
            job.abort();
            let _ = job.await;
            self.unsaved.add(std::mem::take(&mut self.saving.0));
        }
    }

    /// Has what is not saved be saved without a rest, if that is worth it: this writer is to end. Answers when to wait no longer.
    pub(super) fn leave(&mut self, store: &Store) -> Duration {
        if self.is_worth_saving(store) {
            self.unsaved.urgent = true;
        }
        clock::now() + LEAVING
    }

    /// Whether the next start would have much to read behind the last snapshot.
    pub(super) fn is_worth_saving(&self, store: &Store) -> bool {
        let mut all = self.unsaved;
        all.add(self.saving.0);
        let (bytes, changes) = all.changes;
        let is_much = bytes >= WORTH.0 || changes >= WORTH.1 || all.records >= WORTH_IDLE;
        changes > 0 && is_much && store.read().bytes() <= LARGE
    }

    /// Stores a snapshot and clears nothing away.
    pub(super) async fn save(&mut self, store: &Store, session: &Session) {
        // It must not trim what the snapshot walks.
        self.abort().await;
        let pin = self.pin(store, session);
        match timeout(SAVING, self.snapshots.save(store.state(), &pin)).await {
            Ok(Ok(_)) => tracing::error!(sequence = session.sequence, "A snapshot holds what the log has lost"),
            Ok(Err(error)) => tracing::error!(error = %error, "What the log has lost could not be saved"),
            Err(_) => tracing::error!("What the log has lost could not be saved in time"),
        }
    }

    /// Waits for what is under way; for ever when there is nothing.
    pub(super) async fn ended(&mut self) -> Ended {
        match &mut self.job {
            Some(job) => job.await,
            None => std::future::pending().await,
        }
    }

    /// Notes how it ended.
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
