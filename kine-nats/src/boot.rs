//! From a log to a writer: newest whole snapshot, replay of the tail, then the epoch record, which is placed exactly behind
//! the last record that was read and not before the last writer's lease is over.

use crate::clock;
use crate::codec::{self, CodecError, Header, Operation, Operations};
use crate::log::{Ack, Log, LogError, LogInfo, Passing, Rejection};
use crate::mvcc::Mvcc;
use crate::session::{Session, SessionError, Verdict};
use crate::snapshot::{Messages, Pin, Snapshot, SnapshotError, Snapshots};
use crate::state::{ApplyError, State};
use crate::writer::{LEASE, Pace, Recent};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

const POLL: Duration = Duration::from_millis(100);
const EPOCH_LIMIT: Duration = Duration::from_secs(2);
/// How often a log and snapshots that do not meet are read, and how long to wait in between: longer than a writer needs
/// to notice that its log is shorter, and to repair it.
const TRIES: u32 = 12;
const AGAIN: Duration = Duration::from_millis(300);

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
    /// The log ends before what is known of it.
    #[error("open the store: the log ends at sequence {last}, and a snapshot or this process knows it up to {known}")]
    Behind {
        /// Where the log ends.
        last: u64,
        /// Where it ended before.
        known: u64,
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

impl Passing for BootError {
    fn is_passing(&self) -> bool {
        match self {
            Self::Log(error) | Self::Snapshot(SnapshotError::Log(error)) => error.is_passing(),
            _ => false,
        }
    }
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
    /// The log when it was last asked.
    pub(crate) info: LogInfo,
    /// The end of the log.
    pub(crate) recent: Recent,
    pace: Pace,
    /// When the newest record was known to be the newest; the lease of its writer ends a lease later at the latest.
    observed: Duration,
}

impl Replica {
    /// Reads the newest whole snapshot and what the log holds behind it. A living writer may shorten the log meanwhile:
    /// then there is a newer snapshot.
    pub(crate) async fn load<L: Log, M: Messages>(log: &L, snapshots: &Snapshots<M, L>) -> Result<Self, BootError> {
        let mut tries = 1;
        loop {
            match Self::read(log, snapshots).await {
                Err(
                    error
                    @ (BootError::NoSnapshot { .. } | BootError::Behind { .. } | BootError::Log(LogError::Gap(_))),
                ) if tries < TRIES => {
                    tracing::debug!(error = %error, "The log and the snapshots do not meet");
                    tries += 1;
                    sleep(AGAIN).await;
                }
                result => return result,
            }
        }
    }

    async fn read<L: Log, M: Messages>(log: &L, snapshots: &Snapshots<M, L>) -> Result<Self, BootError> {
        // In this order: the log never ends before a snapshot that was there already.
        let newest = snapshots.newest().await?;
        let info = log.info().await?;
        let known = clock::now();
        let (session, state) = match newest {
            Some(Snapshot { session, state }) => (session, state),
            None => (Session::default(), State::new(Mvcc::new())),
        };
        if session.sequence > info.last {
            return Err(BootError::Behind {
                last: info.last,
                known: session.sequence,
            });
        }
        if info.first > session.sequence + 1 && info.last > session.sequence {
            return Err(BootError::NoSnapshot { first: info.first });
        }
        let mut replica = Self {
            session,
            state,
            replayed: (0, 0),
            info,
            recent: Recent::default(),
            pace: Pace::default(),
            observed: known,
        };
        replica.catch_up(log, known).await?;
        Ok(replica)
    }

    /// Reads on until the log's last end is reached, which it had before the time `known`. Answers whether there was
    /// anything new.
    async fn catch_up(&mut self, log: &impl Log, known: Duration) -> Result<bool, BootError> {
        let (begin, last) = (self.session.sequence, self.info.last);
        let counted = self.replayed.1;
        while self.session.sequence < last {
            let records = log.read(self.session.sequence + 1).await?;
            if records.is_empty() {
                // A replica that is behind, or a log that ends in what was dropped.
                let next = self.session.sequence + 1;
                if log.info().await?.first > next {
                    return Err(LogError::Gap(next).into());
                }
                sleep(POLL).await;
            }
            for (sequence, record) in records {
                self.apply(sequence, &record)?;
                self.recent.push(sequence, record);
            }
        }
        let new = self.session.sequence > begin;
        // What does not count shows nobody to be alive.
        if self.replayed.1 > counted {
            self.observed = if self.session.sequence == last {
                known
            } else {
                clock::now()
            };
        }
        Ok(new)
    }

    fn apply(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), BootError> {
        if self.session.passes_over(sequence, bytes) {
            return Ok(());
        }
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
    pub(crate) async fn take_over<L: Log, M: Messages>(
        &mut self,
        log: &L,
        snapshots: &Snapshots<M, L>,
        acks: &mut mpsc::Receiver<Ack>,
        identity: &Identity,
    ) -> Result<Duration, BootError> {
        let mut token = u64::MAX / 2;
        // The first try on each end of the log: any of them may be the one that is stored.
        let (mut sent, mut tried) = (Duration::ZERO, None);
        let (mut standby, mut behind, mut said) = (false, 0, false);
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
                if log.publish(token, record, self.session.sequence).await.is_ok()
                    && wait_for_epoch(acks, token).await? == Outcome::Full
                {
                    self.make_room(snapshots).await;
                }
            } else {
                let left = (self.observed + lease).saturating_sub(clock::now());
                sleep(left.min(POLL) + Duration::from_millis(1)).await;
            }
            match self.follow(log, snapshots).await {
                Ok(new) => {
                    behind = 0;
                    if free && !new {
                        sleep(POLL).await;
                    }
                    if new && !standby && self.session.writer != identity.writer {
                        standby = true;
                        tracing::info!(epoch = self.session.epoch, "Another writer lives; standing by");
                    }
                }
                Err(BootError::Behind { .. }) if behind < TRIES => {
                    behind += 1;
                    sleep(AGAIN).await;
                }
                Err(error) if error.is_passing() || matches!(error, BootError::Log(LogError::Refused { .. })) => {
                    if error.is_passing() || said {
                        tracing::debug!(error = %error, "The log cannot be read");
                    } else {
                        said = true;
                        let error = anyhow::Error::new(error);
                        tracing::warn!(error = format!("{error:#}"), "The log refuses to be read; trying on");
                    }
                    sleep(POLL).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what is new, from a snapshot when the log does not begin early enough any more.
    async fn follow<L: Log, M: Messages>(&mut self, log: &L, snapshots: &Snapshots<M, L>) -> Result<bool, BootError> {
        let info = log.info().await?;
        if info.last < self.session.sequence {
            return Err(BootError::Behind {
                last: info.last,
                known: self.session.sequence,
            });
        }
        self.info = info;
        match self.catch_up(log, clock::now()).await {
            Err(BootError::Log(LogError::Gap(sequence))) => {
                tracing::info!(
                    sequence,
                    "The log was shortened; starting again from the newest snapshot"
                );
                *self = Self::load(log, snapshots).await?;
                Ok(true)
            }
            result => result,
        }
    }

    /// Shortens a log that is full, so that a writer can begin.
    async fn make_room<L: Log, M: Messages>(&mut self, snapshots: &Snapshots<M, L>) {
        if !self.pace.allows() {
            return sleep(POLL * 5).await;
        }
        tracing::error!("The stream is full: no writer can begin");
        let sequence = self.session.sequence;
        let nothing = State::new(Mvcc::new());
        let leases = self.state.leases.terms();
        let state = RwLock::new(std::mem::replace(&mut self.state, nothing));
        let pin = Pin::new(&state, self.session.clone(), leases);
        // A start that failed here may have left chunks at this very sequence.
        let kept = match snapshots.remove_strays(sequence + 1).await {
            Ok(()) => snapshots.keep(&state, &pin).await,
            Err(error) => Err(error),
        };
        self.state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match kept {
            Ok(_) => {
                self.replayed = (0, 0);
                self.pace.succeed(sequence);
            }
            Err(error) => {
                self.pace.fail();
                let error = anyhow::Error::new(error);
                tracing::warn!(error = format!("{error:#}"), "A snapshot could not be stored");
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

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// What became of the record is read from the log.
    Look,
    Full,
}

/// Waits for the ack of an epoch record.
async fn wait_for_epoch(acks: &mut mpsc::Receiver<Ack>, token: u64) -> Result<Outcome, BootError> {
    while let Ok(ack) = timeout(EPOCH_LIMIT, acks.recv()).await {
        let ack = ack.ok_or(BootError::AcksEnded)?;
        if ack.token != token {
            continue;
        }
        match ack.outcome {
            Ok(_) | Err(Rejection::Conflict) => {}
            Err(Rejection::Full) => return Ok(Outcome::Full),
            Err(Rejection::Other { code, description }) => {
                tracing::warn!(code, description, "The log refuses the epoch record");
                sleep(POLL).await;
            }
        }
        break;
    }
    Ok(Outcome::Look)
}
