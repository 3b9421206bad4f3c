//! Background work of the writer: snapshots, trims of the history, and checks of the log. It runs
//! one job at a time, so that a snapshot never overlaps a trim.

use crate::clock;
use crate::grace::Grace;
use crate::log::fencing::FencingState;
use crate::log::{Log, LogInfo};
use crate::snapshot::{Messages, SnapshotError, SnapshotPoint, Snapshots};
use crate::state::State;
use crate::store::Store;
use crate::writer::batch::Batch;
use crate::writer::low_watermark::LowWatermarkJob;
use crate::writer::pacing::{SnapshotBackoff, SnapshotConfig, SnapshotThresholds, Space, Unsaved};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;

/// Most bytes that a stream adds to a record: lengths, subject, headers, checksum.
const MESSAGE: u64 = 256;
/// Interval of checks of the log, in addition to one after each snapshot. Its limit may change
/// while the store runs.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
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

/// State of the log at a check, and bytes that this writer had appended by then.
type LogCheck = Option<(LogInfo, u64)>;

/// The result of a job.
#[derive(Debug)]
pub(super) enum JobResult {
    Trimmed,
    /// Bytes of the snapshot, and the state of the log afterwards.
    Saved(u64, LogCheck),
    Checked(LogCheck),
}

pub(super) type JoinedJob = Result<Result<JobResult, SnapshotError>, JoinError>;

/// Due work and the job in progress.
#[derive(Debug)]
pub(crate) struct BackgroundWork<L, M> {
    log: Arc<L>,
    snapshots: Snapshots<M, L>,
    config: SnapshotConfig,
    thresholds: SnapshotThresholds,
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
    backoff: SnapshotBackoff,
    next_check: Duration,
    job: Option<JoinHandle<Result<JobResult, SnapshotError>>>,
    low_watermark: LowWatermarkJob,
    /// Number of lost records before the end of the log, at the last check.
    holes: u64,
}

/// A job must not outlive its writer: it would report on a log that another process writes by then.
impl<L, M> Drop for BackgroundWork<L, M> {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            job.abort();
        }
    }
}

impl<L: Log, M: Messages> BackgroundWork<L, M> {
    pub(crate) fn new(
        log: Arc<L>,
        info: LogInfo,
        snapshots: Snapshots<M, L>,
        state: &State,
        config: SnapshotConfig,
        unsaved: Unsaved,
    ) -> Self {
        let mut grace = Grace::default();
        grace.record_compaction();
        Self {
            log,
            snapshots,
            config,
            thresholds: config.thresholds(info.limit),
            unsaved,
            saving: (Unsaved::default(), 0),
            hurried: watch::Sender::new(false),
            leases: state.leases.terms().into_iter().collect(),
            space: Space {
                limit: info.limit,
                checked: (info.bytes, 0),
                appended: Arc::default(),
            },
            compacted: state.mvcc.compacted(),
            grace,
            size: 0,
            backoff: SnapshotBackoff::default(),
            next_check: clock::now() + CHECK_INTERVAL,
            job: None,
            low_watermark: LowWatermarkJob::new(),
            holes: 0,
        }
    }

    /// Records a stored record.
    pub(super) fn record_stored(&mut self, batch: &Batch, changed: bool) {
        let bytes = batch.record.len() as u64;
        self.space.appended.fetch_add(bytes + MESSAGE, Ordering::Relaxed);
        self.unsaved.count(bytes, changed);
        if batch.compacted > self.compacted {
            self.compacted = batch.compacted;
            self.grace.record_compaction();
        }
        if changed || !batch.replies.is_empty() {
            self.low_watermark.mark_due();
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
    pub(super) fn demand(&mut self, sequence: u64) {
        self.unsaved.urgent = true;
        self.backoff.demand(sequence);
    }

    fn is_due(&self) -> bool {
        let (unsaved, now) = (&self.unsaved, clock::now());
        let old = unsaved.changes.1 > 0 && now > unsaved.since + self.thresholds.age;
        self.backoff.allows() && (unsaved.urgent || self.is_much(1) || old || self.is_tight())
    }

    /// Whether the unsaved content reaches `1 / part` of the threshold of a snapshot.
    fn is_much(&self, part: u64) -> bool {
        let bytes = self.size.min(self.thresholds.most).max(self.thresholds.bytes);
        self.unsaved.bytes >= bytes / part || self.unsaved.records >= self.thresholds.records / part
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
    pub(super) fn start_due(&mut self, store: &Arc<Store>, fencing: &FencingState) {
        if let Some(holes) = self.low_watermark.start_due(store, &self.log, &self.snapshots) {
            let before = std::mem::replace(&mut self.holes, holes);
            if holes > 0 {
                if holes != before {
                    tracing::error!(
                        holes,
                        "The log has lost records before its end; replacing them by a snapshot"
                    );
                }
                // Only this process still has the lost records. After two snapshots the log starts
                // behind the gap.
                self.demand(fencing.sequence);
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
                Ok(JobResult::Trimmed)
            }));
        } else if self.is_due() {
            let now = Unsaved {
                since: clock::now(),
                ..Unsaved::default()
            };
            self.saving = (std::mem::replace(&mut self.unsaved, now), fencing.sequence);
            self.hurried.send_replace(self.is_awaited(&store));
            let pin = self.pin(&store, fencing);
            let snapshots = self.snapshots.with_throttle(self.hurried.subscribe());
            let checking = self.check_log();
            self.job = Some(tokio::spawn(async move {
                let bytes = snapshots.store_and_purge(store.state(), &pin).await?;
                Ok(JobResult::Saved(bytes, checking.await))
            }));
        } else if clock::now() >= self.next_check {
            self.next_check = clock::now() + CHECK_INTERVAL;
            let checking = self.check_log();
            self.job = Some(tokio::spawn(async move { Ok(JobResult::Checked(checking.await)) }));
        }
    }

    /// Reads the log's limit and its size.
    fn check_log(&self) -> impl Future<Output = LogCheck> + use<L, M> {
        let (log, appended) = (Arc::clone(&self.log), Arc::clone(&self.space.appended));
        async move {
            let appended = appended.load(Ordering::Relaxed);
            log.info().await.ok().map(|info| (info, appended))
        }
    }

    /// Applies the result of a check of the log.
    fn apply_check(&mut self, store: &Store, check: LogCheck) {
        if let Some((info, appended)) = check {
            self.space.limit = info.limit;
            self.space.checked = (info.bytes, appended);
            self.thresholds = self.config.thresholds(info.limit);
            store.quota.follow(info.limit);
        }
        store.set_full(self.is_tight());
    }

    fn pin(&self, store: &Store, fencing: &FencingState) -> SnapshotPoint {
        let leases = self.leases.iter().map(|(id, ttl)| (*id, *ttl)).collect();
        SnapshotPoint::new(store.state(), fencing.clone(), leases)
    }

    /// Records that the log's server may have dropped records meanwhile.
    pub(super) fn recheck_log(&mut self) {
        self.low_watermark.recheck_log();
    }

    /// Raises the low watermark a last time, when no further record follows.
    pub(super) async fn finish(&mut self, store: &Store) {
        self.low_watermark.finish(store, &*self.log, &self.snapshots).await;
    }

    /// Aborts the job in progress.
    pub(super) async fn abort(&mut self) {
        self.low_watermark.abort().await;
        if let Some(job) = self.job.take() {
            job.abort();
            let _ = job.await;
            self.unsaved.add(std::mem::take(&mut self.saving.0));
        }
    }

    /// Requests a snapshot without pauses if that is worthwhile, because this writer is stopping.
    /// Returns the time at which to stop waiting for it.
    pub(super) fn prepare_stop(&mut self, store: &Store) -> Duration {
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
    pub(super) async fn save(&mut self, store: &Store, fencing: &FencingState) {
        // A trim in progress must not run while the snapshot walks the history.
        self.abort().await;
        let pin = self.pin(store, fencing);
        match timeout(SAVING, self.snapshots.save(store.state(), &pin)).await {
            Ok(Ok(_)) => tracing::error!(
                sequence = fencing.sequence,
                "Saved the records that the log has lost in a snapshot"
            ),
            Ok(Err(error)) => tracing::error!(error = %error, "Cannot save the records that the log has lost"),
            Err(_) => tracing::error!("Timed out saving the records that the log has lost"),
        }
    }

    /// Waits for the job in progress; forever if there is none.
    pub(super) async fn finished(&mut self) -> JoinedJob {
        match &mut self.job {
            Some(job) => job.await,
            None => std::future::pending().await,
        }
    }

    /// Applies the result of a finished job.
    pub(super) fn apply_result(&mut self, store: &Store, result: JoinedJob) {
        self.job = None;
        let saving = std::mem::take(&mut self.saving.0);
        match result {
            Ok(Ok(JobResult::Trimmed)) => {}
            Ok(Ok(JobResult::Checked(check))) => self.apply_check(store, check),
            Ok(Ok(JobResult::Saved(bytes, check))) => {
                self.size = bytes;
                self.apply_check(store, check);
                self.backoff.succeed(self.saving.1);
                store.metrics.snapshots.inc();
                let took = clock::now().saturating_sub(self.unsaved.since);
                tracing::info!(bytes, milliseconds = took.as_millis() as u64, "Stored a snapshot");
            }
            Ok(Err(error)) => {
                self.unsaved.add(saving);
                self.backoff.fail();
                store.metrics.failed_snapshots.inc();
                let error = anyhow::Error::new(error);
                tracing::warn!(error = format!("{error:#}"), "Cannot store a snapshot");
            }
            Err(error) => tracing::error!(error = %error, "A background task failed"),
        }
    }
}
