//! Recovers a copy of the store from the log: loads the newest complete snapshot, and replays the
//! records behind it.

use crate::clock;
use crate::codec::{self, Operation};
use crate::grace::Grace;
use crate::log::fencing::{FencingState, Verdict};
use crate::log::{Log, LogError, LogInfo, ServerLoss, Transient};
use crate::mvcc::Mvcc;
use crate::replica::error::RecoverError;
use crate::snapshot::{LowWatermark, Messages, Snapshot, Snapshots};
use crate::state::State;
use crate::writer::{RecentRecords, Unsaved};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::time::sleep;

/// Poll interval for records that are known to exist: at first, and at most.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// How long to poll for such records before asking the stream's leader whether they exist.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the stream's leader may report that the log ends before them.
const LEADERLESS: Duration = Duration::from_secs(4);
/// Attempts to read a log and snapshots that do not fit together, and the delay between them.
/// Together they are longer than a writer needs to notice that its log was truncated, and to repair
/// it.
pub(crate) const TRIES: u32 = 12;
pub(crate) const AGAIN: Duration = Duration::from_millis(300);

/// How far a process has read the log.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) fencing: FencingState,
    /// The records that were replayed behind the snapshot.
    pub(crate) replayed: Unsaved,
    /// The log when its info was last requested.
    pub(crate) info: LogInfo,
    /// Low watermark: the sequence that the log is known to reach.
    pub(crate) low_watermark: LowWatermark,
    /// A truncated log relies on two snapshots, and one of them is missing or unreadable.
    pub(crate) lacks_snapshot: bool,
    /// The newest records of the log.
    pub(crate) recent: RecentRecords,
    /// Delays the trim of compacted history. `None` as long as no client can watch.
    grace: Option<Grace>,
    /// Time at which the newest record was known to be the newest. The lease of its writer expires
    /// one lease duration later at the latest.
    pub(crate) observed: Duration,
}

/// A copy of the store, as far as the log was read.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) tail: Tail,
    pub(crate) state: State,
}

/// The readable part of a store, and the reason why it is not complete.
#[derive(Debug)]
pub(crate) struct Salvage {
    pub(crate) replica: Replica,
    pub(crate) problem: Option<RecoverError>,
}

/// Callback after each valid record: the fencing state behind it, and the revision that was visible
/// before it.
pub(crate) type OnRecord<'a> = &'a (dyn Fn(&FencingState, i64) + Sync);

impl Replica {
    /// Reads the newest complete snapshot and the records behind it. A live writer may truncate the
    /// log meanwhile; then a newer snapshot exists, and the read is repeated.
    pub(crate) async fn load<L: Log, M: Messages>(log: &L, snapshots: &Snapshots<M, L>) -> Result<Self, RecoverError> {
        let mut tries = 1;
        loop {
            match Self::read(log, snapshots).await {
                Err(
                    error @ (RecoverError::NoSnapshot { .. }
                    | RecoverError::Behind { .. }
                    | RecoverError::Dropped { .. }
                    | RecoverError::Log(LogError::Gap(_))),
                ) if tries < TRIES => {
                    tracing::debug!(error = %error, "The log does not continue any snapshot; reading both again");
                    tries += 1;
                    sleep(AGAIN).await;
                }
                // No snapshot replaces the missing record.
                Err(RecoverError::Log(LogError::Gap(sequence))) => return Err(RecoverError::Missing { sequence }),
                result => return result,
            }
        }
    }

    async fn read<L: Log, M: Messages>(log: &L, snapshots: &Snapshots<M, L>) -> Result<Self, RecoverError> {
        let (mut tail, state) = Self::load_snapshot(log, snapshots).await?;
        tail.check(&state)?;
        tail.check_end()?;
        let state = RwLock::new(state);
        tail.catch_up(log, &state, tail.observed, &|_, _| {}).await?;
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Self { tail, state })
    }

    /// Reads as much as possible.
    pub(crate) async fn salvage<L: Log, M: Messages>(
        log: &L,
        snapshots: &Snapshots<M, L>,
    ) -> Result<Salvage, RecoverError> {
        let (mut tail, state) = Self::load_snapshot(log, snapshots).await?;
        let state = RwLock::new(state);
        let checked = tail.check(&state.read().unwrap_or_else(PoisonError::into_inner));
        let read = match checked {
            Ok(()) => tail.catch_up(log, &state, tail.observed, &|_, _| {}).await.map(|_| ()),
            Err(error) => Err(error),
        };
        let problem = match read {
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => Some(error),
            Ok(()) => tail.check_end().err(),
        };
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let replica = Self { tail, state };
        Ok(Salvage { replica, problem })
    }

    async fn load_snapshot<L: Log, M: Messages>(
        log: &L,
        snapshots: &Snapshots<M, L>,
    ) -> Result<(Tail, State), RecoverError> {
        // The order matters: the log never ends before a snapshot or a low watermark that already
        // existed.
        let newest = snapshots.newest().await?;
        let low_watermark = snapshots.low_watermark().await?;
        let most = newest.as_ref().map_or(0, |snapshot| snapshot.fencing.sequence);
        let complete = snapshots.count(most).await?;
        let info = log.info().await?;
        let (fencing, state) = match newest {
            Some(Snapshot { fencing, state }) => (fencing, state),
            None => (FencingState::default(), State::new(Mvcc::new())),
        };
        let tail = Tail {
            fencing,
            replayed: Unsaved::default(),
            info,
            low_watermark,
            lacks_snapshot: info.first > 1 && complete < 2,
            recent: RecentRecords::default(),
            grace: None,
            observed: clock::now(),
        };
        Ok((tail, state))
    }
}

impl Tail {
    /// Delays the trim of what is compacted from here on, because clients may watch.
    pub(crate) fn with_grace(self) -> Self {
        let grace = Some(Grace::default());
        Self { grace, ..self }
    }

    /// Checks that the log continues where the snapshot ends.
    fn check(&self, state: &State) -> Result<(), RecoverError> {
        let (known, LogInfo { first, last, .. }) = (self.fencing.sequence, self.info);
        if known > last {
            let revision = state.mvcc.visible();
            Err(RecoverError::Behind { last, known, revision })
        } else if first > known + 1 && last > known {
            Err(RecoverError::NoSnapshot { first })
        } else {
            Ok(())
        }
    }

    /// Checks that the log reaches its low watermark, and that its server has dropped nothing that
    /// was not restored.
    pub(crate) fn check_end(&self) -> Result<(), RecoverError> {
        let (LogInfo { last, lost, .. }, LowWatermark { sequence, revision, .. }) = (self.info, self.low_watermark);
        if last < sequence {
            let known = sequence;
            Err(RecoverError::Behind { last, known, revision })
        } else if lost != ServerLoss::default() && lost != self.low_watermark.lost {
            let bytes = lost.bytes;
            Err(RecoverError::Dropped { bytes, last })
        } else {
            Ok(())
        }
    }

    /// Reads up to the last known end of the log, which it had before the time `known`. Returns
    /// whether there were new records.
    pub(crate) async fn catch_up(
        &mut self,
        log: &impl Log,
        state: &RwLock<State>,
        known: Duration,
        on_record: OnRecord<'_>,
    ) -> Result<bool, RecoverError> {
        let (start, last) = (self.fencing.sequence, self.info.last);
        let (mut counted, mut delay) = (self.replayed.records, POLL_INTERVALS.0);
        let mut waited = Duration::ZERO;
        while self.fencing.sequence < last {
            if self.read_on(log, state, on_record).await? {
                (delay, waited) = (POLL_INTERVALS.0, Duration::ZERO);
            } else {
                // Either a replica lags behind, or the log ends in records that were dropped.
                let next = self.fencing.sequence + 1;
                let stored = if waited < PATIENCE {
                    None
                } else {
                    Some(log.get(next).await?)
                };
                let info = log.info().await?;
                if info.first > next {
                    return Err(LogError::Gap(next).into());
                }
                // A leader that was just elected may not know its own end yet.
                if info.last >= next && stored == Some(None) {
                    return Err(RecoverError::Missing { sequence: next });
                }
                if info.last < next && waited > LEADERLESS {
                    return Err(RecoverError::Shrunk {
                        last: info.last,
                        known: last,
                    });
                }
                sleep(delay).await;
                waited += delay;
                delay = (delay * 2).min(POLL_INTERVALS.1);
            }
            if self.fencing.sequence == last && self.replayed.records > counted {
                self.observed = known;
                counted = self.replayed.records;
            }
        }
        Ok(self.fencing.sequence > start)
    }

    /// Applies the records of one response of the log. Returns whether there were any.
    pub(crate) async fn read_on(
        &mut self,
        log: &impl Log,
        state: &RwLock<State>,
        on_record: OnRecord<'_>,
    ) -> Result<bool, RecoverError> {
        let records = log.read(self.fencing.sequence + 1).await?;
        let (any, now) = (!records.is_empty(), clock::now());
        for (sequence, record) in records {
            if self.apply(sequence, &record, state, on_record)? {
                // A void record does not show that the writer is alive.
                self.observed = now;
            }
            self.recent.push(sequence, record);
        }
        if any {
            self.trim(state).await;
        }
        Ok(any)
    }

    /// Trims compacted history, after up-to-date watches had time to receive it. Readers may run in
    /// between.
    pub(crate) async fn trim(&self, state: &RwLock<State>) {
        let may_trim = || state.read().unwrap_or_else(PoisonError::into_inner).mvcc.may_trim();
        if self.grace.is_some_and(|grace| !grace.is_over()) || !may_trim() {
            return;
        }
        while state.write().unwrap_or_else(PoisonError::into_inner).mvcc.trim(2000) {
            tokio::task::yield_now().await;
        }
    }

    /// Applies one record. Returns whether it is valid.
    fn apply(
        &mut self,
        sequence: u64,
        bytes: &[u8],
        state: &RwLock<State>,
        on_record: OnRecord<'_>,
    ) -> Result<bool, RecoverError> {
        if self.fencing.skip_other_message(sequence, bytes) {
            return Ok(false);
        }
        let record = codec::decode(bytes).map_err(|source| RecoverError::Codec { sequence, source })?;
        let (before, head) = {
            let mut state = state.write().unwrap_or_else(PoisonError::into_inner);
            let before = state.mvcc.head();
            if self.fencing.admit(sequence, &record, before)? == Verdict::Void {
                return Ok(false);
            }
            let now = clock::now();
            for operation in &record.operations {
                state
                    .apply(operation, now)
                    .map_err(|source| RecoverError::Apply { sequence, source })?;
            }
            let head = state.mvcc.head();
            state.mvcc.publish(head);
            (before, head)
        };
        let is_compaction = |operation: &Operation| matches!(operation, Operation::Compact { .. });
        if record.operations.iter().any(is_compaction)
            && let Some(grace) = &mut self.grace
        {
            grace.record_compaction();
        }
        if let Some(Operation::Epoch { name, .. }) = record.operations.first() {
            tracing::debug!(epoch = record.header.epoch, name, "A writer started");
        }
        self.replayed.count(bytes.len() as u64, head > before);
        on_record(&self.fencing, before);
        Ok(true)
    }
}
