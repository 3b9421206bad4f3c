//! Snapshots: the state at a sequence of the log, in chunks. A manifest is written last and read
//! back.
//!
//! A snapshot holds the leases, for each key the newest version below the compact revision, and
//! then every change since, in order. The history therefore survives a restart, and watches resume
//! where they were.
//!
//! ```text
//! kine.<id>.snap.c.<sequence>.<writer>   chunk, chunk, chunk, …   (all of one snapshot under one subject)
//! kine.<id>.snap.m                       manifest: session, revisions, location of its chunks, their digest
//! kine.<id>.snap.f                       low watermark: how far the log was acknowledged since
//! ```
//!
//! A snapshot that a writer stores while it serves requests pauses behind each chunk that it writes
//! or reads back, unless something waits for the snapshot.

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

/// Format of the manifest. Format 1 had the leases in the manifest.
const FORMAT: u32 = 2;

/// Upper limit of plausible revisions: far above any real one, repairs included, and far below the
/// end of the range.
const HIGHEST: i64 = i64::MAX / 2;

/// Why a snapshot cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The stream does not answer.
    #[error("use the snapshot stream")]
    Log(#[from] LogError),
    /// A chunk is corrupt.
    #[error("decode a chunk")]
    Codec(#[from] CodecError),
    /// The manifest is corrupt.
    #[error("decode a manifest")]
    Manifest(#[source] serde_json::Error),
    /// The low watermark is corrupt.
    #[error("decode a floor")]
    Floor(#[source] serde_json::Error),
    /// A later version wrote the manifest.
    #[error("decode a manifest: its format {0} is not known")]
    Format(u32),
    /// The hash of the manifest matches, but its numbers are impossible.
    #[error("decode a manifest: no store is at revision {revision} and compacted at {compacted}")]
    Numbers {
        /// Newest revision.
        revision: i64,
        /// Compact revision.
        compacted: i64,
    },
    /// Chunks are missing, or do not belong to the manifest.
    #[error("read a snapshot: its chunks are not whole")]
    Incomplete,
    /// A newer snapshot exists already.
    #[error("store a snapshot: there is one at sequence {newest} already")]
    Stale {
        /// Sequence of the newer snapshot.
        newest: u64,
    },
    /// The data that was read back differs from what was written.
    #[error("store a snapshot: the manifest reads back differently")]
    ReadBack,
}

/// A snapshot that was read.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) session: Session,
    pub(crate) state: State,
}

/// A stream of messages under subjects that stores snapshots.
///
/// # Guarantees A message for which [`Messages::store`] returned is available until it is purged.
/// [`Messages::last`] and [`Messages::subjects`] include everything that was stored before the
/// call.
///
/// # Caveats [`Messages::batch`] may answer from a replica that lags behind.
pub(crate) trait Messages: Clone + Send + Sync + 'static {
    /// Stores a message and returns its sequence.
    fn store(&self, subject: String, payload: Bytes) -> impl Future<Output = Result<u64, LogError>> + Send;
    /// The newest message of a subject, with its sequence.
    fn last(&self, subject: &str) -> impl Future<Output = Result<Option<(u64, Bytes)>, LogError>> + Send;
    /// The first message of a subject from a sequence on, with its sequence.
    fn first(&self, from: u64, subject: &str) -> impl Future<Output = Result<Option<(u64, Bytes)>, LogError>> + Send;
    /// Messages of a subject from a sequence on, as many as fit into one response; empty at the
    /// end.
    fn batch(&self, from: u64, subject: &str) -> impl Future<Output = Result<Vec<(u64, Bytes)>, LogError>> + Send;
    /// The subjects that match a filter, with the number of messages of each.
    fn subjects(&self, filter: &str) -> impl Future<Output = Result<BTreeMap<String, u64>, LogError>> + Send;
    /// Drops all messages below a sequence.
    fn purge_below(&self, sequence: u64) -> impl Future<Output = Result<(), LogError>> + Send;
    /// Drops the messages of one subject.
    fn purge_subject(&self, subject: &str) -> impl Future<Output = Result<(), LogError>> + Send;
}

/// The pauses of one snapshot; `None` if something waits for it from the start.
#[derive(Debug)]
struct Rests(Option<(Pacer, watch::Receiver<bool>)>);

impl Rests {
    /// Creates the pauses. `hurried` becomes true when something waits for the snapshot.
    fn new(hurried: Option<&watch::Receiver<bool>>) -> Self {
        Self(hurried.map(|hurried| (Pacer::new(clock::now()), hurried.clone())))
    }

    /// Pauses after a piece of work, at most until something waits.
    async fn rest(&mut self) {
        let Some((pacer, hurried)) = &mut self.0 else { return };
        let rest = pacer.rest(clock::now());
        if !rest.is_zero() {
            let _ = timeout(rest, hurried.wait_for(|hurried| *hurried)).await;
        }
        pacer.resume(clock::now());
    }
}

/// The position and content that a snapshot describes.
#[derive(Debug, Clone)]
pub(crate) struct Pin {
    pub(crate) session: Session,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// Number and seconds of each lease.
    pub(crate) leases: Vec<(i64, i64)>,
}

impl Pin {
    /// Pins what is acknowledged now, including `leases`.
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
    /// Name that distinguishes this snapshot from others at the same sequence.
    pub(crate) name: String,
}

/// Summary of the chunks that were written.
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

    /// Order of snapshots: the one with the higher place is newer.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.sequence, self.epoch)
    }

    /// The encoded manifest, followed by its hash.
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

    /// Creates an empty state into which the chunks are loaded. The time of leases starts with the
    /// next writer.
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
    /// Loads the content of a chunk.
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

    /// Completes the load.
    pub(crate) fn finish(mut self) -> Self {
        while self.state.mvcc.trim(10_000) {}
        self
    }
}
