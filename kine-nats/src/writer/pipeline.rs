//! Records in flight: handles acks in order, and recovers when an ack is missing.

use crate::clock;
use crate::codec;
use crate::limits::LEASE_USED;
use crate::log::fencing::Verdict;
use crate::log::{Ack, Log, LogError, Rejection, Transient};
use crate::snapshot::Messages;
use crate::writer::batch::{ACK_LIMIT, Batch, answer};
use crate::writer::error::WriterError;
use crate::writer::task::Writer;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Delay after a recovery round without progress: the first one, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
const RETRY_FULL: Duration = Duration::from_millis(500);
/// Number of attempts without a reply after which the client reconnects.
const SILENT_TRIES: u32 = 2;
/// How long a log must show a gap: a leader that was just elected may not know all its records yet.
const HOLE: Duration = Duration::from_secs(1);

/// State of one recovery of the records in flight.
struct Recovery {
    start: Instant,
    /// Last record of the log that the previous round knew.
    reached: u64,
    /// Delay before the next round, if this one makes no progress.
    delay: Duration,
    /// Number of attempts in a row without a reply.
    silent: u32,
    /// Time since which the log has shown a gap in place of the front record.
    hole: Option<Instant>,
    /// Whether a log that does not answer has been reported.
    is_silent: bool,
    /// Whether a failed read has been reported.
    is_reported: bool,
}

impl Recovery {
    /// Starts behind the record `sequence`.
    fn new(sequence: u64) -> Self {
        Self {
            start: Instant::now(),
            reached: sequence,
            delay: Duration::ZERO,
            silent: 0,
            hole: None,
            is_silent: false,
            is_reported: false,
        }
    }

    /// Waits if the round before made no progress, longer each time. `sequence` is the last record that is known.
    async fn back_off(&mut self, sequence: u64) {
        if self.reached == sequence {
            sleep(self.delay).await;
            self.delay = (self.delay * 2).clamp(BACK_OFF.0, BACK_OFF.1);
        } else {
            (self.reached, self.delay) = (sequence, Duration::ZERO);
        }
    }

    /// Logs once that the log does not answer.
    fn report_silence(&mut self, pending: usize) {
        if !self.is_silent && self.start.elapsed() > ACK_LIMIT {
            self.is_silent = true;
            tracing::warn!(pending, "The log does not answer");
        }
    }
}

impl<L: Log, M: Messages> Writer<L, M> {
    pub(super) async fn on_ack(&mut self, ack: Ack) -> Result<(), WriterError> {
        let Some(position) = self.pending.iter().position(|batch| batch.token == ack.token) else {
            return Ok(());
        };
        match ack.outcome {
            Ok(stored) => {
                let expected = self.fencing.sequence + position as u64 + 1;
                if stored != expected {
                    // Another message lies between the acknowledged end and this record; recovery
                    // of the front record finds it.
                    return self.recover().await;
                }
                if let Some(batch) = self.pending.get_mut(position) {
                    batch.acked = true;
                }
                while self.pending.front().is_some_and(|batch| batch.acked) {
                    let sequence = self.fencing.sequence + 1;
                    self.commit(sequence);
                }
                Ok(())
            }
            Err(_) => self.recover().await,
        }
    }

    /// Commits the front record, which is stored: shows it, notifies watches, and sends the
    /// answers.
    fn commit(&mut self, sequence: u64) {
        let Some(batch) = self.pending.pop_front() else { return };
        self.fencing.advance(sequence, batch.hash);
        self.recent.push(sequence, batch.record.clone());
        let before = {
            let mut state = self.store.write();
            let before = state.mvcc.visible();
            state.mvcc.publish(batch.revision);
            if batch.compacted > state.mvcc.compacted() {
                state.mvcc.compact(batch.compacted);
            }
            before
        };
        self.store.record_proof(batch.number);
        self.store.set_written(sequence, batch.revision);
        self.store.extend_lease(batch.sent + LEASE_USED);
        self.record_stored(&batch, before);
        // Notify watches before replying: a client that then requests the progress of a watch must
        // see its own write.
        self.store.notify_watchers(before, batch.revision);
        batch.replies.into_iter().for_each(answer);
    }

    fn record_stored(&mut self, batch: &Batch, before: i64) {
        let metrics = &self.store.metrics;
        metrics.batches.inc();
        metrics.committed(clock::now().saturating_sub(batch.sent));
        self.background.record_stored(batch, batch.revision > before);
        self.store.set_full(self.background.is_tight());
    }

    /// Determines the fate of all records in flight, front first, and stores them. Returns when no
    /// record is in doubt.
    pub(super) async fn recover(&mut self) -> Result<(), WriterError> {
        self.store.metrics.recoveries.inc();
        tracing::debug!(
            pending = self.pending.len(),
            "Records are unacknowledged; looking them up in the log"
        );
        let mut recovery = Recovery::new(self.fencing.sequence);
        let since = self.pending.front().map_or_else(clock::now, |batch| batch.sent);
        while !self.pending.is_empty() {
            // Any other result between two gaps ends their series.
            let hole = recovery.hole.take();
            recovery.back_off(self.fencing.sequence).await;
            recovery.report_silence(self.pending.len());
            if !self.log.is_connected() {
                continue;
            }
            let next = self.fencing.sequence + 1;
            match self.log.get(next).await {
                Ok(Some(record)) if self.pending.front().is_some_and(|batch| batch.record == record) => {
                    self.commit(next)
                }
                Ok(Some(record)) => self.pass(next, record)?,
                Ok(None) => self.restore_front(&mut recovery, hole).await?,
                Err(error) if error.is_transient() || recovery.is_reported => {
                    tracing::debug!(error = %error, "Cannot read the log")
                }
                Err(error) => {
                    recovery.is_reported = true;
                    tracing::error!(error = %error, "Cannot read the log; storing the remembered records again once it can be read");
                }
            }
        }
        if recovery.is_silent {
            tracing::info!(revision = self.store.revision(), "The log answers again");
        }
        self.background.recheck_log();
        let now = clock::now();
        if now > since + LEASE_USED {
            // No client could renew a lease meanwhile; etcd does the same when a leader starts.
            self.store.write().leases.renew_all(now);
        }
        Ok(())
    }

    /// Sends the front record again, which the log does not have. `hole` is the time since which the log has shown a gap
    /// in its place.
    async fn restore_front(&mut self, recovery: &mut Recovery, hole: Option<Instant>) -> Result<(), WriterError> {
        match self.resend().await? {
            Resent::Answered => recovery.silent = 0,
            Resent::Passed => {
                let since = hole.unwrap_or_else(Instant::now);
                if since.elapsed() >= HOLE {
                    self.store.end_lease();
                    return Err(WriterError::Missing {
                        sequence: self.fencing.sequence + 1,
                    });
                }
                (recovery.silent, recovery.hole) = (0, Some(since));
            }
            Resent::Silent => {
                recovery.silent += 1;
                if recovery.silent >= SILENT_TRIES {
                    recovery.silent = 0;
                    self.log.reconnect().await;
                }
            }
        }
        Ok(())
    }

    /// Handles a record of another writer: ignores it if it is void, and ends this writer
    /// otherwise.
    fn pass(&mut self, sequence: u64, bytes: Bytes) -> Result<(), WriterError> {
        let mut fencing = self.fencing.clone();
        let void = fencing.skip_other_message(sequence, &bytes)
            || fencing.admit(sequence, &codec::decode(&bytes)?, self.store.revision())? == Verdict::Void;
        if void {
            self.store
                .metrics
                .ignored_messages
                .inc_by(fencing.ignored - self.fencing.ignored);
            self.fencing = fencing;
            self.recent.push(sequence, bytes);
            return Ok(());
        }
        self.store.end_lease();
        Err(WriterError::Fenced { epoch: fencing.epoch })
    }

    async fn resend(&mut self) -> Result<Resent, WriterError> {
        let expected = self.fencing.sequence;
        let Some((token, record)) = self.pending.front().map(|batch| (batch.token, batch.record.clone())) else {
            return Ok(Resent::Answered);
        };
        let Ok(info) = self.log.info().await else {
            return Ok(Resent::Silent);
        };
        if info.last < expected {
            self.repair_log().await?;
            return Ok(Resent::Answered);
        }
        if info.first > expected + 1 {
            self.store.end_lease();
            return Err(WriterError::Overtaken {
                first: info.first,
                acknowledged: expected,
            });
        }
        if info.last > expected {
            return Ok(Resent::Passed);
        }
        match self.log.publish(token, record, expected).await {
            Ok(()) => {}
            Err(error @ LogError::TooLarge { .. }) => return Err(error.into()),
            Err(_) => return Ok(Resent::Answered),
        }
        let deadline = Instant::now() + ACK_LIMIT;
        loop {
            let Ok(ack) = timeout_at(deadline, self.acks.recv()).await else {
                return Ok(Resent::Silent);
            };
            let ack = ack.ok_or(WriterError::AcksEnded)?;
            if ack.token != token {
                continue;
            }
            match ack.outcome {
                Ok(stored) if stored == expected + 1 => self.commit(stored),
                // The ack belongs to an earlier send that was ignored; the log shows the result.
                Ok(_) | Err(Rejection::Conflict) => {}
                Err(Rejection::Full) => {
                    tracing::error!("The log's stream is full; storing a snapshot to free space");
                    self.store.set_full(true);
                    self.background.demand(expected);
                    self.background.start_due(&self.store, &self.fencing);
                    self.wait_for_job().await;
                }
                Err(Rejection::Other { code, description }) => {
                    tracing::warn!(code, description, "NATS rejects a record");
                    sleep(RETRY_FULL).await;
                }
            }
            return Ok(Resent::Answered);
        }
    }

    /// Gives a snapshot that may free space the time to finish.
    async fn wait_for_job(&mut self) {
        let deadline = Instant::now() + RETRY_FULL;
        if let Ok(result) = timeout_at(deadline, self.background.finished()).await {
            self.background.apply_result(&self.store, result);
        }
        tokio::time::sleep_until(deadline).await;
    }
}

enum Resent {
    Answered,
    Silent,
    /// The log holds records behind the sequence, at which nothing was found.
    Passed,
}
