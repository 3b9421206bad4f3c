//! From a log to a writer: newest whole snapshot, replay of the tail, then the epoch record, which is placed exactly behind
//! the last record that was read and not before the last writer's lease is over.

use crate::clock;
use crate::codec::{self, CodecError, Header, Operation, Operations};
use crate::log::{Ack, Log, LogError, LogInfo, Rejection};
use crate::mvcc::Mvcc;
use crate::session::{Session, SessionError, Verdict};
use crate::snapshot::{Messages, Snapshot, SnapshotError, Snapshots};
use crate::state::{ApplyError, State};
use crate::writer::LEASE;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

const POLL: Duration = Duration::from_millis(100);
const EPOCH_LIMIT: Duration = Duration::from_secs(2);

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    /// The log does not answer.
    #[error("open the store: use the log")]
    Log(#[from] LogError),
    /// A message is not a record.
    #[error("open the store: the record at sequence {sequence} is damaged")]
    Codec {
        /// Where.
        sequence: u64,
        /// What is wrong with it.
        #[source]
        source: CodecError,
    },
    /// The records do not follow each other.
    #[error("open the store: follow the log")]
    Session(#[from] SessionError),
    /// A record does not fit the state.
    #[error("open the store: apply the record at sequence {sequence}")]
    Apply {
        /// Where.
        sequence: u64,
        /// What does not fit.
        #[source]
        source: ApplyError,
    },
    /// The log begins behind what snapshots hold.
    #[error("open the store: the log begins at sequence {first} and no whole snapshot reaches it")]
    NoSnapshot {
        /// Where the log begins.
        first: u64,
    },
    /// The log ends before the snapshot was taken.
    #[error("open the store: the log ends at sequence {last}, before the snapshot at {snapshot}")]
    Behind {
        /// Where the log ends.
        last: u64,
        /// Where the snapshot stands.
        snapshot: u64,
    },
    /// Snapshots cannot be read.
    #[error("open the store: read snapshots")]
    Snapshot(#[from] SnapshotError),
    /// A newer process was given the store.
    #[error("open the store: incarnation {theirs} has it, and this is incarnation {ours}")]
    Superseded {
        /// Of the newest writer.
        theirs: u64,
        /// Of this process.
        ours: u64,
    },
    /// A task of the log ended.
    #[error("open the store: the log's acknowledgements ended")]
    AcksEnded,
}

/// Who wants to write.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Random for each process.
    pub(crate) writer: u64,
    pub(crate) incarnation: u64,
    pub(crate) name: String,
}

/// A copy of the store, as far as the log was read.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) session: Session,
    pub(crate) state: State,
    /// Sizes of what was replayed behind the snapshot.
    pub(crate) replayed: (u64, u64),
    /// When the newest record was known to be the newest; the lease of its writer ends a lease later at the latest.
    observed: Duration,
}

impl Replica {
    fn new() -> Self {
        Self {
            session: Session::default(),
            state: State::new(Mvcc::new()),
            replayed: (0, 0),
            observed: Duration::ZERO,
        }
    }

    /// Reads the newest whole snapshot and what the log holds behind it.
    pub(crate) async fn load<L: Log, M: Messages>(log: &L, snapshots: &Snapshots<M, L>) -> Result<Self, BootError> {
        let LogInfo { first, last, .. } = log.info().await?;
        let known = clock::now();
        let mut replica = Self::new();
        if let Some(Snapshot { session, state }) = snapshots.newest().await? {
            if session.sequence > last {
                return Err(BootError::Behind {
                    last,
                    snapshot: session.sequence,
                });
            }
            replica = Self {
                session,
                state,
                ..replica
            };
        }
        if first > replica.session.sequence + 1 && last > replica.session.sequence {
            return Err(BootError::NoSnapshot { first });
        }
        replica.observed = known;
        replica.catch_up(log, last, known).await?;
        Ok(replica)
    }

    /// Reads on until `last` is reached, which was the newest record before the time `known`. Answers whether there was
    /// anything new.
    async fn catch_up(&mut self, log: &impl Log, last: u64, known: Duration) -> Result<bool, BootError> {
        let begin = self.session.sequence;
        while self.session.sequence < last {
            let records = log.read(self.session.sequence + 1).await?;
            if records.is_empty() {
                // A replica that is behind.
                sleep(POLL).await;
            }
            for (sequence, record) in records {
                self.apply(sequence, &record)?;
            }
        }
        let new = self.session.sequence > begin;
        if new {
            self.observed = if self.session.sequence == last {
                known
            } else {
                clock::now()
            };
        }
        Ok(new)
    }

    fn apply(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), BootError> {
        let record = codec::decode(bytes).map_err(|source| BootError::Codec { sequence, source })?;
        let revision = self.state.mvcc.head();
        if self.session.admit(sequence, &record, revision)? == Verdict::Void {
            return Ok(());
        }
        if let Some(Operation::Epoch { name, .. }) = record.operations.first() {
            tracing::debug!(epoch = record.header.epoch, name, "A writer began");
        }
        let now = clock::now();
        for operation in &record.operations {
            self.state
                .apply(operation, now)
                .map_err(|source| BootError::Apply { sequence, source })?;
        }
        self.state.mvcc.publish(self.state.mvcc.head());
        while self.state.mvcc.trim(10_000) {}
        self.replayed.0 += bytes.len() as u64;
        self.replayed.1 += 1;
        Ok(())
    }

    /// Becomes the writer. Waits as long as another one lives. Answers from when the lease counts.
    pub(crate) async fn take_over(
        &mut self,
        log: &impl Log,
        acks: &mut mpsc::Receiver<Ack>,
        identity: &Identity,
    ) -> Result<Duration, BootError> {
        let mut token = u64::MAX / 2;
        // The first try on each end of the log: any of them may be the one that is stored.
        let (mut sent, mut tried) = (Duration::ZERO, None);
        let mut standby = false;
        loop {
            if self.session.writer == identity.writer {
                return Ok(sent);
            }
            if self.session.incarnation > identity.incarnation {
                return Err(BootError::Superseded {
                    theirs: self.session.incarnation,
                    ours: identity.incarnation,
                });
            }
            let lease = LEASE.max(Duration::from_millis(self.session.lease_ms.into()));
            let free = self.session.epoch == 0 || self.session.resigned || clock::now() > self.observed + lease;
            if free {
                token += 1;
                if tried != Some(self.session.sequence) {
                    (sent, tried) = (clock::now(), Some(self.session.sequence));
                }
                let (record, _) = self.epoch_record(identity);
                if log.publish(token, record, self.session.sequence).await.is_ok() {
                    wait_for_epoch(acks, token).await?;
                }
            } else {
                let left = (self.observed + lease).saturating_sub(clock::now());
                sleep(left.min(POLL) + Duration::from_millis(1)).await;
            }
            let last = match log.info().await {
                Ok(info) => info.last,
                Err(error) => {
                    tracing::debug!(error = %error, "The log cannot be asked");
                    sleep(POLL).await;
                    continue;
                }
            };
            match self.catch_up(log, last, clock::now()).await {
                Ok(true) => {
                    if !standby && self.session.writer != identity.writer {
                        standby = true;
                        tracing::info!(epoch = self.session.epoch, "Another writer lives; standing by");
                    }
                }
                Ok(false) => {}
                Err(BootError::Log(
                    error @ (LogError::Disconnected | LogError::Timeout | LogError::Refused { .. }),
                )) => {
                    tracing::debug!(error = %error, "The log cannot be read");
                    sleep(POLL).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn epoch_record(&self, identity: &Identity) -> (bytes::Bytes, u64) {
        let mut operations = Operations::default();
        operations.epoch(u32::try_from(LEASE.as_millis()).unwrap_or(u32::MAX), &identity.name);
        let cluster = if self.session.epoch == 0 {
            rand::random::<u64>() >> 1 | 1
        } else {
            self.session.cluster
        };
        let header = Header {
            cluster,
            epoch: self.session.epoch + 1,
            writer: identity.writer,
            incarnation: identity.incarnation,
            previous: self.session.hash,
            base: self.state.mvcc.head(),
        };
        codec::encode(&header, &operations)
    }
}

/// Waits for the ack of an epoch record. What became of it is read from the log in any case.
async fn wait_for_epoch(acks: &mut mpsc::Receiver<Ack>, token: u64) -> Result<(), BootError> {
    while let Ok(ack) = timeout(EPOCH_LIMIT, acks.recv()).await {
        let ack = ack.ok_or(BootError::AcksEnded)?;
        if ack.token != token {
            continue;
        }
        match ack.outcome {
            Ok(_) | Err(Rejection::Conflict) => {}
            Err(Rejection::Full) => {
                tracing::error!("The stream is full: no writer can begin");
                sleep(EPOCH_LIMIT).await;
            }
            Err(Rejection::Other { code, description }) => {
                tracing::warn!(code, description, "The log refuses the epoch record");
                sleep(POLL).await;
            }
        }
        return Ok(());
    }
    Ok(())
}
