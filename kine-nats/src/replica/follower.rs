//! A process that does not write. It follows the log, serves what it has read, and becomes the
//! writer when the log has none. It places its epoch record exactly behind the last record that it
//! read, and not before the last writer's lease has expired.

use crate::clock;
use crate::codec::{self, Header, Operations};
use crate::limits::LEASE;
use crate::log::fencing::{Claim, FencingState};
use crate::log::{Ack, Log, LogError, Rejection, Transient};
use crate::replica::error::RecoverError;
use crate::replica::recover::{AGAIN, Replica, TRIES, Tail};
use crate::snapshot::{Messages, SnapshotError, SnapshotPoint, Snapshots};
use crate::store::Store;
use crate::writer::{AppendResult, SnapshotBackoff, Unsaved, append_again};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Poll interval of the log if no peer announces its growth.
const POLL: Duration = Duration::from_millis(100);
/// Poll interval of the log if the writer announces its growth.
const POLL_ANNOUNCED: Duration = Duration::from_millis(500);
const EPOCH_LIMIT: Duration = Duration::from_secs(2);

/// A process that wants to become the writer.
#[derive(Debug, Clone)]
pub(crate) struct WriterIdentity {
    /// Random; differs in each cycle of a process.
    pub(crate) writer: u64,
    pub(crate) incarnation: u64,
    pub(crate) name: String,
}

/// State of an attempt to become the writer.
#[derive(Debug)]
struct Attempt {
    /// Token of the last epoch record that was sent.
    token: u64,
    /// Time of the first attempt at the current end of the log. Any of the attempts may be the one that is stored.
    sent: Duration,
    /// End of the log at which `sent` was taken.
    tried: Option<u64>,
    /// Number of reads in a row that found a log shorter than what was read.
    behind: u32,
    /// Whether the log shows that this process is on standby.
    is_standby: bool,
    /// Whether a rejected read has been reported.
    is_reported: bool,
}

impl Default for Attempt {
    fn default() -> Self {
        Self {
            // A writer numbers its records from 1, and uses the same channel for acknowledgements.
            token: u64::MAX / 2,
            sent: Duration::ZERO,
            tried: None,
            behind: 0,
            is_standby: false,
            is_reported: false,
        }
    }
}

impl Attempt {
    /// Starts an attempt behind the record `sequence`. Returns its token.
    fn begin(&mut self, sequence: u64) -> u64 {
        self.token += 1;
        if self.tried != Some(sequence) {
            (self.sent, self.tried) = (clock::now(), Some(sequence));
        }
        self.token
    }
}

/// A follower of the log.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) tail: Tail,
    pub(crate) store: Arc<Store>,
    backoff: SnapshotBackoff,
}

impl Follower {
    /// Starts behind the records that were loaded into the store.
    pub(crate) fn new(tail: Tail, store: Arc<Store>) -> Self {
        let tail = tail.with_grace();
        store.quota.follow(tail.info.limit);
        store.set_stored(tail.fencing.sequence, store.revision());
        store.record_position(&tail.fencing, tail.observed + lease(&tail.fencing));
        Self {
            tail,
            store,
            backoff: SnapshotBackoff::default(),
        }
    }

    /// Becomes the writer, and follows the log as long as another writer is alive. Returns the time
    /// from which the lease counts.
    pub(crate) async fn take_over<L: Log, M: Messages>(
        &mut self,
        log: &L,
        snapshots: &Snapshots<M, L>,
        acks: &mut mpsc::Receiver<Ack>,
        identity: &WriterIdentity,
    ) -> Result<Duration, RecoverError> {
        let mut attempt = Attempt::default();
        loop {
            if self.tail.fencing.writer == identity.writer {
                return Ok(attempt.sent);
            }
            let claim = self.claim(identity);
            match claim {
                Claim::Superseded => {
                    return Err(RecoverError::Superseded {
                        theirs: self.tail.fencing.incarnation,
                        ours: identity.incarnation,
                    });
                }
                Claim::Free => {
                    let token = attempt.begin(self.tail.fencing.sequence);
                    self.send_epoch(log, snapshots, &mut *acks, token, identity).await?;
                }
                Claim::Wait(left) => self.wait(left).await,
            }
            match self.follow(log, snapshots).await {
                Ok(new) => {
                    attempt.behind = 0;
                    if claim == Claim::Free && !new {
                        sleep(POLL).await;
                    }
                    if new && !attempt.is_standby && self.tail.fencing.writer != identity.writer {
                        attempt.is_standby = true;
                        tracing::info!(
                            epoch = self.tail.fencing.epoch,
                            "Another process writes the log; this one is on standby"
                        );
                    }
                }
                Err(error) => self.retry(log, &mut *acks, &mut attempt, error).await?,
            }
        }
    }

    /// Whether this process may become the writer now.
    fn claim(&self, identity: &WriterIdentity) -> Claim {
        let fencing = &self.tail.fencing;
        match fencing.claim(identity.incarnation, self.tail.observed + lease(fencing), clock::now()) {
            Claim::Free if fencing.resigned && self.store.yields_to_successor() => Claim::Wait(POLL),
            claim => claim,
        }
    }

    /// Handles a failed read of the log: waits before the next one, or stores lost records again. Returns errors that
    /// another read cannot mend.
    async fn retry(
        &mut self,
        log: &impl Log,
        acks: &mut mpsc::Receiver<Ack>,
        attempt: &mut Attempt,
        error: RecoverError,
    ) -> Result<(), RecoverError> {
        match error {
            RecoverError::Behind { .. } if attempt.behind < TRIES => {
                attempt.behind += 1;
                sleep(AGAIN).await;
            }
            RecoverError::Behind { last, .. } => {
                if !self.restore_records(log, acks, &mut attempt.token, last).await {
                    return Err(error);
                }
            }
            error if error.is_transient() || matches!(error, RecoverError::Log(LogError::Refused { .. })) => {
                if error.is_transient() || attempt.is_reported {
                    tracing::debug!(error = %error, "Cannot read the log");
                } else {
                    attempt.is_reported = true;
                    let error = anyhow::Error::new(error);
                    tracing::warn!(error = format!("{error:#}"), "NATS rejects reads of the log; retrying");
                }
                sleep(POLL).await;
            }
            error => return Err(error),
        }
        Ok(())
    }

    /// Sends an epoch record, and frees space if the log is full. The log then shows the result.
    async fn send_epoch<L: Log, M: Messages>(
        &mut self,
        log: &L,
        snapshots: &Snapshots<M, L>,
        acks: &mut mpsc::Receiver<Ack>,
        token: u64,
        identity: &WriterIdentity,
    ) -> Result<(), RecoverError> {
        let record = self.epoch_record(identity);
        if self.may_continue(log, snapshots).await?
            && log.publish(token, record, self.tail.fencing.sequence).await.is_ok()
            && wait_for_epoch(acks, token).await? == EpochResult::Full
        {
            self.make_room(snapshots).await;
        }
        Ok(())
    }

    /// Stores records again that the log has lost. No writer will restore them. This process has
    /// read them, so they were stored and may have been acknowledged. Returns `false` if that is
    /// impossible.
    async fn restore_records(
        &mut self,
        log: &impl Log,
        acks: &mut mpsc::Receiver<Ack>,
        token: &mut u64,
        last: u64,
    ) -> bool {
        let tail = &self.tail;
        match append_again(log, acks, token, &tail.recent, &tail.fencing, tail.info).await {
            Ok(AppendResult::Done) => {
                tracing::warn!(last, "The log had lost records; stored them again");
                self.tail.low_watermark.lost = self.tail.info.lost;
            }
            Ok(AppendResult::Impossible | AppendResult::Taken) => return false,
            Err(_) => sleep(AGAIN).await,
        }
        true
    }

    /// Waits until there may be something to do.
    async fn wait(&self, left: Duration) {
        let poll = if self.store.peers().is_some() {
            POLL_ANNOUNCED
        } else {
            POLL
        };
        // A notification that arrived before this call is not lost.
        let _ = timeout(left.min(poll) + Duration::from_millis(1), self.store.appended()).await;
    }

    /// Reads new records. If the log no longer starts early enough, reloads from a snapshot.
    async fn follow<L: Log, M: Messages>(
        &mut self,
        log: &L,
        snapshots: &Snapshots<M, L>,
    ) -> Result<bool, RecoverError> {
        match self.read(log).await {
            Err(RecoverError::Log(LogError::Gap(sequence))) => {
                tracing::info!(sequence, "The log was truncated; reloading from the newest snapshot");
                let tail = reinstall(&self.store, Replica::load(log, snapshots).await?)?;
                self.tail = tail.with_grace();
                let fencing = &self.tail.fencing;
                self.store.record_position(fencing, self.tail.observed + lease(fencing));
                Ok(true)
            }
            result => result,
        }
    }

    async fn read(&mut self, log: &impl Log) -> Result<bool, RecoverError> {
        let store = Arc::clone(&self.store);
        self.tail.trim(store.state()).await;
        let on_record = |fencing: &FencingState, before: i64| {
            let revision = store.read().mvcc.visible();
            store.set_stored(fencing.sequence, revision);
            store.record_position(fencing, clock::now() + lease(fencing));
            store.notify_watchers(before, revision);
        };
        if store.announced() > self.tail.fencing.sequence && self.tail.read_on(log, store.state(), &on_record).await? {
            return Ok(true);
        }
        let info = log.info().await?;
        self.tail.info = info;
        store.quota.follow(info.limit);
        if info.last < self.tail.fencing.sequence {
            return Err(RecoverError::Behind {
                last: info.last,
                known: self.tail.fencing.sequence,
                revision: store.revision(),
            });
        }
        self.tail.catch_up(log, store.state(), clock::now(), &on_record).await
    }

    /// Whether this process may continue the log that it has read. It may not if the server dropped
    /// records that neither this process nor a writer stored again; the low watermark of a writer
    /// would show that. Returns `false` while that cannot be determined.
    async fn may_continue<L: Log, M: Messages>(
        &mut self,
        log: &L,
        snapshots: &Snapshots<M, L>,
    ) -> Result<bool, RecoverError> {
        if self.tail.check_end().is_ok() {
            return Ok(true);
        }
        let checked = async {
            let low_watermark = snapshots.low_watermark().await?;
            Ok::<_, RecoverError>((low_watermark, log.info().await?))
        };
        match checked.await {
            Ok((low_watermark, info)) => (self.tail.low_watermark, self.tail.info) = (low_watermark, info),
            Err(error) if error.is_transient() => return Ok(false),
            Err(error) => return Err(error),
        }
        match self.tail.check_end() {
            // This process first stores its own records again.
            Err(_) if self.tail.info.last < self.tail.fencing.sequence => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Truncates a full log, so that a writer can start.
    async fn make_room<L: Log, M: Messages>(&mut self, snapshots: &Snapshots<M, L>) {
        if !self.backoff.allows() {
            return sleep(POLL * 5).await;
        }
        tracing::error!("The log's stream is full, so no writer can start; storing a snapshot to free space");
        let fencing = &self.tail.fencing;
        let leases = self.store.read().leases.terms();
        let pin = SnapshotPoint::new(self.store.state(), fencing.clone(), leases);
        // A start that failed here may have left chunks at this very sequence.
        let result = match snapshots.remove_orphans(fencing.sequence + 1).await {
            Ok(()) => snapshots.store_and_purge(self.store.state(), &pin).await,
            Err(error) => Err::<u64, SnapshotError>(error),
        };
        match result {
            Ok(_) => {
                self.tail.replayed = Unsaved::default();
                self.backoff.succeed(fencing.sequence);
            }
            Err(error) => {
                self.backoff.fail();
                let error = anyhow::Error::new(error);
                tracing::warn!(error = format!("{error:#}"), "Cannot store a snapshot");
            }
        }
    }

    fn epoch_record(&self, identity: &WriterIdentity) -> bytes::Bytes {
        let fencing = &self.tail.fencing;
        let mut operations = Operations::default();
        operations.epoch(u32::try_from(LEASE.as_millis()).unwrap_or(u32::MAX), &identity.name);
        let cluster = if fencing.epoch == 0 {
            rand::random::<u64>() >> 1 | 1
        } else {
            fencing.cluster
        };
        let header = Header {
            cluster,
            epoch: fencing.epoch + 1,
            writer: identity.writer,
            incarnation: identity.incarnation,
            previous: fencing.hash,
            base: self.store.read().mvcc.head(),
        };
        codec::encode(&header, &operations).0
    }
}

/// Replaces the state of a store by one that was reread from the log.
pub(crate) fn reinstall(store: &Store, replica: Replica) -> Result<Tail, RecoverError> {
    let Replica { tail, state } = replica;
    if state.mvcc.visible() < store.revision() {
        return Err(RecoverError::Behind {
            last: tail.fencing.sequence,
            known: store.sequence(),
            revision: store.revision(),
        });
    }
    store.install_state(state, tail.fencing.sequence);
    Ok(tail)
}

/// The lease of the writer, as its challengers count it.
fn lease(fencing: &FencingState) -> Duration {
    LEASE.max(Duration::from_millis(fencing.lease_ms.into()))
}

#[derive(Debug, PartialEq, Eq)]
enum EpochResult {
    /// The log shows whether the record was stored.
    Unknown,
    Full,
}

/// Waits for the acknowledgement of an epoch record.
async fn wait_for_epoch(acks: &mut mpsc::Receiver<Ack>, token: u64) -> Result<EpochResult, RecoverError> {
    while let Ok(ack) = timeout(EPOCH_LIMIT, acks.recv()).await {
        let ack = ack.ok_or(RecoverError::AcksEnded)?;
        if ack.token != token {
            continue;
        }
        match ack.outcome {
            Ok(_) | Err(Rejection::Conflict) => {}
            Err(Rejection::Full) => return Ok(EpochResult::Full),
            Err(Rejection::Other { code, description }) => {
                tracing::warn!(code, description, "NATS rejects the epoch record");
                sleep(POLL).await;
            }
        }
        break;
    }
    Ok(EpochResult::Unknown)
}
