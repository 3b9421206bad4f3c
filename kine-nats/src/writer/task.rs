//! The task of the writer: evaluates requests, sends records, and ends leases.

use crate::clock;
use crate::codec::{Header, Operations, encode};
use crate::command::Command;
use crate::limits::LEASE_USED;
use crate::log::fencing::FencingState;
use crate::log::{Ack, Log, LogError};
use crate::role::{Outcome, Queued};
use crate::snapshot::Messages;
use crate::store::Store;
use crate::txn::{Evaluation, evaluate};
use crate::writer::batch::{ACK_LIMIT, Batch, Reply, answer};
use crate::writer::error::WriterError;
use crate::writer::recent::RecentRecords;
use crate::writer::snapshotting::BackgroundWork;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// Heartbeat interval of an idle writer.
const IDLE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(250);
/// Records in flight. Each costs the server a sync of its own, so waiting requests are better
/// combined in the next record.
pub(super) const PIPELINE: usize = 2;
/// Largest number of records that a writer of any version may have in flight when it is replaced.
const STRAGGLERS: u64 = 4;
/// A record that has reached this size takes no further requests.
const BATCH_BYTES: usize = 256 * 1024;
const BATCH_REQUESTS: usize = 1024;
/// Evaluation of one batch should not take longer; etcd's own limit.
const SLOW: Duration = Duration::from_millis(100);
/// Limits of one record: leases that expire, and keys that are deleted with them. A single lease
/// may have more keys.
const EXPIRIES: usize = 200;
const EXPIRY_KEYS: usize = 1000;

/// The writer's own state.
#[derive(Debug)]
pub(crate) struct Writer<L, M> {
    pub(super) log: Arc<L>,
    pub(super) acks: mpsc::Receiver<Ack>,
    pub(super) queue: mpsc::Receiver<Queued>,
    pub(super) store: Arc<Store>,
    pub(super) incarnation: u64,
    /// The acknowledged end of the log.
    pub(super) fencing: FencingState,
    /// Sequence at which this writer started, just behind its epoch record.
    pub(super) first: u64,
    /// Hash of the newest record that was sent.
    pub(super) hash: u64,
    pub(super) pending: VecDeque<Batch>,
    pub(super) token: u64,
    pub(super) last_sent: Duration,
    /// Whether expired leases may still exist.
    pub(super) expiring: bool,
    /// Time of the last check for expired leases.
    pub(super) awake: Duration,
    /// Whether there was a connection at the last check.
    pub(super) connected: bool,
    pub(super) background: BackgroundWork<L, M>,
    pub(super) recent: RecentRecords,
}

/// The parts of a writer.
#[derive(Debug)]
pub(crate) struct WriterParts<L, M> {
    pub(crate) log: Arc<L>,
    pub(crate) acks: mpsc::Receiver<Ack>,
    pub(crate) queue: mpsc::Receiver<Queued>,
    pub(crate) store: Arc<Store>,
    pub(crate) incarnation: u64,
    pub(crate) fencing: FencingState,
    pub(crate) background: BackgroundWork<L, M>,
    /// The newest records of the log.
    pub(crate) recent: RecentRecords,
}

impl<L: Log, M: Messages> Writer<L, M> {
    pub(crate) fn new(parts: WriterParts<L, M>) -> Self {
        let WriterParts {
            log,
            acks,
            queue,
            store,
            incarnation,
            fencing,
            background,
            recent,
        } = parts;
        store.set_stored(fencing.sequence, store.revision());
        store.metrics.ignored_messages.inc_by(fencing.ignored);
        let (hash, first) = (fencing.hash, fencing.sequence);
        Self {
            log,
            acks,
            queue,
            store,
            incarnation,
            fencing,
            first,
            hash,
            pending: VecDeque::new(),
            token: 0,
            last_sent: Duration::ZERO,
            expiring: false,
            awake: clock::now(),
            connected: true,
            background,
            recent,
        }
    }

    /// Writes until stopped. Then stores a last snapshot if that is worthwhile, answers the
    /// requests in flight, and gives up the lease.
    pub(crate) async fn run(mut self, stop: watch::Receiver<bool>) -> Result<(), WriterError> {
        let result = self.write(stop).await;
        // Requests in flight get no answer from here on. Requests that did not start may be
        // executed by the next writer.
        self.pending.clear();
        self.store.step_down();
        self.queue.close();
        while let Ok(Queued { command, reply, .. }) = self.queue.try_recv() {
            let _ = reply.send(Outcome::Returned(command));
        }
        self.background.abort().await;
        result
    }

    async fn write(&mut self, mut stop: watch::Receiver<bool>) -> Result<(), WriterError> {
        let mut tick = interval_at(Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut leaving = None;
        while leaving.is_none_or(|end| clock::now() < end && self.background.is_worth_saving(&self.store)) {
            self.background.start_due(&self.store, &self.fencing);
            // Before taking more: an endless stream of requests would use all room in the pipeline.
            self.expire_due().await?;
            let open = self.has_room();
            tokio::select! {
                biased;
                ack = self.acks.recv() => self.on_ack(ack.ok_or(WriterError::AcksEnded)?).await?,
                // Before the queue, which may never be empty.
                _ = tick.tick() => self.on_tick().await?,
                result = self.background.finished() => self.background.apply_result(&self.store, result),
                () = stopped(&mut stop), if leaving.is_none() => leaving = Some(self.background.prepare_stop(&self.store)),
                queued = self.queue.recv(), if open => match queued {
                    Some(queued) => self.evaluate(Some(queued)).await?,
                    None => return self.resign().await,
                },
                // Requests that were taken from the queue meanwhile form a record, too.
                () = self.store.wait_for_proof_request(), if open => self.dispatch(Operations::default(), Vec::new()).await?,
            }
        }
        self.queue.close();
        while let Some(queued) = self.queue.recv().await {
            self.evaluate(Some(queued)).await?;
            while !self.has_room() {
                self.next_ack().await?;
            }
        }
        self.resign().await
    }

    /// Whether another record may be sent. Late records of the previous writer may still arrive, in
    /// place of the first records of this writer. A record that was sent behind a displaced one
    /// would continue nothing. The writer therefore sends one record at a time, until the log is
    /// longer than any late record expects.
    fn has_room(&self) -> bool {
        let alone = self.fencing.sequence < self.first + STRAGGLERS;
        self.pending.len() < if alone { 1 } else { PIPELINE }
    }

    async fn resign(&mut self) -> Result<(), WriterError> {
        while !self.pending.is_empty() {
            self.next_ack().await?;
        }
        self.background.finish(&self.store).await;
        self.store.end_lease();
        let mut operations = Operations::default();
        operations.resign();
        self.dispatch(operations, Vec::new()).await?;
        while !self.pending.is_empty() {
            self.next_ack().await?;
        }
        tracing::info!(revision = self.store.revision(), "The writer has resigned");
        Ok(())
    }

    async fn next_ack(&mut self) -> Result<(), WriterError> {
        match tokio::time::timeout(ACK_LIMIT, self.acks.recv()).await {
            Ok(ack) => self.on_ack(ack.ok_or(WriterError::AcksEnded)?).await,
            Err(_) => self.recover().await,
        }
    }

    async fn on_tick(&mut self) -> Result<(), WriterError> {
        let now = clock::now();
        if self.pending.front().is_some_and(|batch| now > batch.sent + ACK_LIMIT) {
            self.recover().await?;
        }
        self.expiring = true;
        let connected = self.log.is_connected();
        // The log may have lost records meanwhile; sending a record shows it.
        let reconnected = connected && !std::mem::replace(&mut self.connected, connected);
        if reconnected {
            self.background.recheck_log();
        }
        if self.pending.is_empty() && (reconnected || now > self.last_sent + IDLE) {
            self.dispatch(Operations::default(), Vec::new()).await?;
        }
        Ok(())
    }

    /// Ends the leases that had expired at the last tick, as far as there is room in the pipeline.
    async fn expire_due(&mut self) -> Result<(), WriterError> {
        let now = clock::now();
        if now > self.awake + LEASE_USED {
            // The node was suspended, or the log did not answer, so no client could renew a lease.
            // etcd's clock stands still in a suspend.
            self.store.write().leases.renew_all(now);
        }
        self.awake = now;
        while self.expiring && self.has_room() {
            let expired = self.store.read().leases.expired(now, EXPIRIES);
            self.expiring = !expired.is_empty();
            if self.expiring {
                self.expire(expired).await?;
            }
        }
        Ok(())
    }

    async fn expire(&mut self, leases: Vec<i64>) -> Result<(), WriterError> {
        let mut operations = Operations::default();
        {
            let mut state = self.store.write();
            let now = clock::now();
            let mut keys = 0;
            for id in leases {
                keys += state.leases.get(id).map_or(0, |lease| lease.keys.len());
                if keys > EXPIRY_KEYS && !operations.is_empty() {
                    break;
                }
                let mut evaluation = Evaluation {
                    state: &mut state,
                    operations: &mut operations,
                    now,
                    quota: self.store.quota.bytes(),
                };
                // A lease that no longer exists needs nothing more.
                if evaluate(&mut evaluation, &Command::Revoke(id)).is_ok() {
                    self.store.metrics.expired.inc();
                }
            }
        }
        self.dispatch(operations, Vec::new()).await
    }

    /// Evaluates all waiting requests, and sends them as one record.
    async fn evaluate(&mut self, mut next: Option<Queued>) -> Result<(), WriterError> {
        let mut operations = Operations::default();
        let mut replies: Vec<Reply> = Vec::new();
        let quota = if self.store.is_full() {
            0
        } else {
            self.store.quota.bytes()
        };
        {
            let mut state = self.store.write();
            let now = clock::now();
            while let Some(Queued { command, reply, room }) = next {
                // A request whose client has gone is dropped before it starts.
                if !reply.is_closed() {
                    let mut evaluation = Evaluation {
                        state: &mut state,
                        operations: &mut operations,
                        now,
                        quota,
                    };
                    replies.push((reply, evaluate(&mut evaluation, &command)));
                }
                drop((command, room));
                // Reads add no bytes, and each may take a while.
                let more =
                    operations.len() < BATCH_BYTES && replies.len() < BATCH_REQUESTS && clock::now() < now + SLOW;
                next = if more { self.queue.try_recv().ok() } else { None };
            }
            if clock::now() > now + SLOW {
                self.store.metrics.slow_batches.inc();
            }
        }
        self.store.metrics.requests.inc_by(replies.len() as u64);
        // A batch without changes has read the newest state while no other process could have
        // written. It may show records in flight, so its answers wait for those. For strict reads
        // this is not sufficient: the records in flight were sent before the reads arrived.
        if operations.is_empty() && !self.store.is_strict() && self.store.has_valid_lease() {
            match self.pending.back_mut() {
                Some(batch) => batch.replies.extend(replies),
                None => replies.into_iter().for_each(answer),
            }
            return Ok(());
        }
        self.dispatch(operations, replies).await
    }

    /// Builds a record of operations that are applied to the head already, and sends it.
    async fn dispatch(&mut self, mut operations: Operations, replies: Vec<Reply>) -> Result<(), WriterError> {
        let (revision, compacted) = {
            let state = self.store.read();
            (state.mvcc.head(), state.compacting)
        };
        let base = self
            .pending
            .back()
            .map_or_else(|| self.store.revision(), |batch| batch.revision);
        let header = Header {
            cluster: self.fencing.cluster,
            epoch: self.fencing.epoch,
            writer: self.fencing.writer,
            incarnation: self.incarnation,
            previous: self.hash,
            base,
        };
        let (record, hash) = encode(&header, &operations);
        let expected = self.fencing.sequence + self.pending.len() as u64;
        let (sent, number) = (clock::now(), self.store.number_record());
        self.token += 1;
        self.hash = hash;
        self.last_sent = sent;
        let token = self.token;
        let copy = record.clone();
        self.pending.push_back(Batch {
            token,
            record,
            hash,
            revision,
            compacted,
            leases: operations.take_leases(),
            sent,
            number,
            acked: false,
            replies,
        });
        match self.log.publish(token, copy, expected).await {
            Ok(()) => Ok(()),
            Err(error @ LogError::TooLarge { .. }) => Err(error.into()),
            Err(_) => self.recover().await,
        }
    }
}

/// Waits until the process is stopped.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A dropped sender counts as a stop, too.
    let _ = stop.wait_for(|stop| *stop).await;
}
