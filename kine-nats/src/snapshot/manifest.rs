//! The manifest of a snapshot, and loading the chunks that it names.

use crate::codec::{Operation, seal, unseal};
use crate::log::fencing::FencingState;
use crate::mvcc::{Item, Mvcc};
use crate::snapshot::chunk::{Chunk, Section};
use crate::snapshot::error::SnapshotError;
use crate::snapshot::point::SnapshotPoint;
use crate::state::State;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Format of the manifest. Format 1 had the leases in the manifest.
const FORMAT: u32 = 2;
/// Upper limit of plausible revisions: far above any real one, repairs included, and far below the
/// end of the range.
const HIGHEST: i64 = i64::MAX / 2;

/// A snapshot that was read.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) fencing: FencingState,
    pub(crate) state: State,
}

/// Describes a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(super) format: u32,
    pub(crate) sequence: u64,
    pub(crate) writer: u64,
    pub(super) cluster: u64,
    pub(super) epoch: u64,
    pub(super) incarnation: u64,
    pub(super) hash: u64,
    pub(super) lease_ms: u32,
    pub(super) resigned: bool,
    #[serde(default)]
    pub(super) after_void: bool,
    pub(super) revision: i64,
    pub(super) compacted: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) leases: Vec<(i64, i64)>,
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
    pub(crate) fn new(pin: &SnapshotPoint, written: Written) -> Self {
        let FencingState {
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
        } = pin.fencing;
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
    pub(crate) fn order(&self) -> (u64, u64) {
        (self.sequence, self.epoch)
    }

    /// The encoded manifest, followed by its hash.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = serde_json::to_vec(self).map_err(SnapshotError::Manifest)?;
        seal(&mut bytes);
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let (body, _) = unseal(bytes)?;
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
    pub(crate) fn empty_snapshot(&self) -> Snapshot {
        let fencing = FencingState {
            sequence: self.sequence,
            cluster: self.cluster,
            epoch: self.epoch,
            writer: self.writer,
            incarnation: self.incarnation,
            hash: self.hash,
            lease_ms: self.lease_ms,
            resigned: self.resigned,
            between: (self.after_void.into(), 0),
            ..FencingState::default()
        };
        let mut state = State::new(Mvcc::restored(self.revision, self.compacted));
        for (id, ttl) in &self.leases {
            state.leases.grant(*id, *ttl, Duration::ZERO);
        }
        Snapshot { fencing, state }
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
