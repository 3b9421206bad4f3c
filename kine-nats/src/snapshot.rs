//! Snapshots: the state at a sequence of the log, in chunks with a manifest that is written last and read back.
//!
//! A snapshot holds the leases and, for each key, the newest version below the compact revision, then every change since, in order: what
//! the history holds survives a restart, so that watches resume where they were.
//!
//! ```text
//! kine.<id>.snap.c.<sequence>.<writer>   chunk, chunk, chunk, …   (all of one snapshot under one subject)
//! kine.<id>.snap.m                       manifest: session, revisions, where its chunks are, their digest
//! kine.<id>.snap.f                       floor: how far the log was acknowledged since
//! ```
//!
//! A snapshot that a writer stores beside its requests rests behind each chunk that it writes or reads back, unless
//! something waits for it.

mod chunk;
mod floor;
#[cfg(test)]
pub(crate) mod memory;
mod pacer;
mod stream;

use crate::clock;
use crate::codec::{CodecError, Operation};
use crate::log::LogError;
use crate::mvcc::{Item, Mvcc};
use crate::session::Session;
use crate::state::State;
use bytes::Bytes;
pub(crate) use chunk::{Chunk, Section};
pub(crate) use floor::Floor;
use pacer::Pacer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
pub(crate) use stream::Snapshots;
use tokio::sync::watch;
use tokio::time::timeout;

/// 1 had the leases in the manifest.
const FORMAT: u32 = 2;

/// Far above any revision that was ever told, repairs included, and far below where numbers end.
const HIGHEST: i64 = i64::MAX / 2;

/// Why a snapshot cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The stream does not answer.
    #[error("use the snapshot stream")]
    Log(#[from] LogError),
    /// A chunk is damaged.
    #[error("decode a chunk")]
    Codec(#[from] CodecError),
    /// The manifest is damaged.
    #[error("decode a manifest")]
    Manifest(#[source] serde_json::Error),
    /// The note of how far the log was acknowledged is damaged.
    #[error("decode a floor")]
    Floor(#[source] serde_json::Error),
    /// Written by a later version.
    #[error("decode a manifest: its format {0} is not known")]
    Format(u32),
    /// Its hash is right, and what it says cannot be.
    #[error("decode a manifest: no store is at revision {revision} and compacted at {compacted}")]
    Numbers {
        /// Newest revision.
        revision: i64,
        /// Compact revision.
        compacted: i64,
    },
    /// Chunks are missing, or are not those of the manifest.
    #[error("read a snapshot: its chunks are not whole")]
    Incomplete,
    /// A newer one is there already.
    #[error("store a snapshot: there is one at sequence {newest} already")]
    Stale {
        /// Where that one stands.
        newest: u64,
    },
    /// What was read back is not what was written.
    #[error("store a snapshot: the manifest reads back differently")]
    ReadBack,
}

/// A snapshot that was read.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) session: Session,
    pub(crate) state: State,
}

/// A stream of messages under subjects, where snapshots are kept.
///
/// # Guarantees
/// What [`Messages::store`] answered for is there until it is purged. [`Messages::last`] and [`Messages::subjects`] know
/// everything that was stored before the call.
///
/// # Caveats
/// [`Messages::batch`] may answer from a replica that is behind.
pub(crate) trait Messages: Clone + Send + Sync + 'static {
    /// Stores a message and answers its sequence.
    fn store(&self, subject: String, payload: Bytes) -> impl Future<Output = Result<u64, LogError>> + Send;
    /// The newest message of a subject, with its sequence.
    fn last(&self, subject: &str) -> impl Future<Output = Result<Option<(u64, Bytes)>, LogError>> + Send;
    /// The first message of a subject from a sequence on, with its sequence.
    fn first(&self, from: u64, subject: &str) -> impl Future<Output = Result<Option<(u64, Bytes)>, LogError>> + Send;
    /// Messages of a subject from a sequence on, as many as fit one answer; empty at the end.
    fn batch(&self, from: u64, subject: &str) -> impl Future<Output = Result<Vec<(u64, Bytes)>, LogError>> + Send;
    /// The subjects that match a filter, and how many messages each has.
    fn subjects(&self, filter: &str) -> impl Future<Output = Result<BTreeMap<String, u64>, LogError>> + Send;
    /// Drops what lies below a sequence.
    fn purge_below(&self, sequence: u64) -> impl Future<Output = Result<(), LogError>> + Send;
    /// Drops the messages of one subject.
    fn purge_subject(&self, subject: &str) -> impl Future<Output = Result<(), LogError>> + Send;
}

/// The rests of one snapshot; none where somebody waits for it from the beginning.
#[derive(Debug)]
struct Rests(Option<(Pacer, watch::Receiver<bool>)>);

impl Rests {
    /// `hurried` says when somebody waits.
    fn new(hurried: Option<&watch::Receiver<bool>>) -> Self {
        Self(hurried.map(|hurried| (Pacer::new(clock::now()), hurried.clone())))
    }

    /// Rests behind a piece of work, until somebody waits.
    async fn rest(&mut self) {
        let Some((pacer, hurried)) = &mut self.0 else { return };
        let rest = pacer.rest(clock::now());
        if !rest.is_zero() {
            let _ = timeout(rest, hurried.wait_for(|hurried| *hurried)).await;
        }
        pacer.resume(clock::now());
    }
}

/// What a snapshot is of.
#[derive(Debug, Clone)]
pub(crate) struct Pin {
    pub(crate) session: Session,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// Number and seconds of each lease.
    pub(crate) leases: Vec<(i64, i64)>,
}

impl Pin {
    /// Takes note of what is acknowledged now, `leases` included.
    pub(crate) fn new(state: &RwLock<State>, session: Session, leases: Vec<(i64, i64)>) -> Self {
        let state = state.read().unwrap_or_else(PoisonError::into_inner);
        Self {
            session,
            revision: state.mvcc.visible(),
            compacted: state.mvcc.compacted(),
            leases,
        }
    }
}

/// Describes a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    pub(crate) sequence: u64,
    pub(crate) writer: u64,
    cluster: u64,
    epoch: u64,
    incarnation: u64,
    hash: u64,
    lease_ms: u32,
    resigned: bool,
    #[serde(default)]
    after_void: bool,
    revision: i64,
    compacted: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    leases: Vec<(i64, i64)>,
    pub(crate) chunks: u32,
    /// Sequence of the first chunk in the snapshot stream.
    pub(crate) first: u64,
    /// Hash over the hashes of the chunks.
    pub(crate) digest: u64,
    pub(crate) bytes: u64,
    /// Name of this snapshot among those of the same sequence.
    pub(crate) name: String,
}

/// What was written of the chunks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Written {
    pub(crate) chunks: u32,
    pub(crate) first: u64,
    pub(crate) digest: u64,
    pub(crate) bytes: u64,
    pub(crate) name: String,
}

impl Manifest {
    pub(crate) fn new(pin: &Pin, written: Written) -> Self {
        let Session {
            sequence,
            cluster,
            epoch,
            writer,
            incarnation,
            hash,
            lease_ms,
            resigned,
            between,
            ..
        } = pin.session;
        let Written {
            chunks,
            first,
            digest,
            bytes,
            name,
        } = written;
        Self {
            format: FORMAT,
            sequence,
            writer,
            cluster,
            epoch,
            incarnation,
            hash,
            lease_ms,
            resigned,
            after_void: between.0 > 0,
            revision: pin.revision,
            compacted: pin.compacted,
            leases: Vec::new(),
            chunks,
            first,
            digest,
            bytes,
            name,
        }
    }

    /// What of the log it holds: the one that stands higher is the newer one.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.sequence, self.epoch)
    }

    /// Its bytes, with a hash behind them.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = serde_json::to_vec(self).map_err(SnapshotError::Manifest)?;
        crate::codec::seal(&mut bytes);
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let (body, _) = crate::codec::unseal(bytes)?;
        let manifest: Self = serde_json::from_slice(body).map_err(SnapshotError::Manifest)?;
        let (revision, compacted) = (manifest.revision, manifest.compacted);
        if !(1..=FORMAT).contains(&manifest.format) {
            Err(SnapshotError::Format(manifest.format))
        } else if !(1..HIGHEST).contains(&revision) || !(-1..=revision).contains(&compacted) {
            Err(SnapshotError::Numbers { revision, compacted })
        } else {
            Ok(manifest)
        }
    }

    /// An empty state into which the chunks are loaded. The time of leases begins with the next writer.
    pub(crate) fn begin(&self) -> Snapshot {
        let session = Session {
            sequence: self.sequence,
            cluster: self.cluster,
            epoch: self.epoch,
            writer: self.writer,
            incarnation: self.incarnation,
            hash: self.hash,
            lease_ms: self.lease_ms,
            resigned: self.resigned,
            between: (self.after_void.into(), 0),
            ..Session::default()
        };
        let mut state = State::new(Mvcc::restored(self.revision, self.compacted));
        for (id, ttl) in &self.leases {
            state.leases.grant(*id, *ttl, Duration::ZERO);
        }
        Snapshot { session, state }
    }
}

impl Snapshot {
    /// Takes what a chunk holds.
    pub(crate) fn load(&mut self, chunk: Chunk) {
        for operation in chunk.operations {
            match operation {
                Operation::Grant { id, ttl } => self.state.leases.grant(id, ttl, Duration::ZERO),
                Operation::Change(item) => self.load_item(chunk.section, item),
                _ => {}
            }
        }
    }

    fn load_item(&mut self, section: Section, item: Item) {
        let (key, lease) = (Bytes::copy_from_slice(item.key()), item.lease);
        let before = self.state.mvcc.latest(&key).map_or(0, |item| item.lease);
        if section == Section::Base {
            self.state.mvcc.load(item);
        } else {
            self.state.mvcc.replay(item);
        }
        self.state.leases.attach(&key, before, lease);
    }

    /// Ends loading.
    pub(crate) fn finish(mut self) -> Self {
        while self.state.mvcc.trim(10_000) {}
        self
    }
}
