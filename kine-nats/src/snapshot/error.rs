//! Why a snapshot cannot be stored or read.

use crate::codec::CodecError;
use crate::log::LogError;

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
    #[error("decode a low watermark")]
    LowWatermark(#[source] serde_json::Error),
    /// A later version wrote the manifest.
    #[error("decode a manifest: its format {0} is unknown")]
    Format(u32),
    /// The hash of the manifest matches, but its numbers are impossible.
    #[error("decode a manifest: revision {revision} with compact revision {compacted} is impossible")]
    Numbers {
        /// Newest revision.
        revision: i64,
        /// Compact revision.
        compacted: i64,
    },
    /// Chunks are missing, or do not belong to the manifest.
    #[error("read a snapshot: chunks are missing")]
    Incomplete,
    /// A newer snapshot exists already.
    #[error("store a snapshot: a newer one exists at sequence {newest}")]
    Stale {
        /// Sequence of the newer snapshot.
        newest: u64,
    },
    /// The data that was read back differs from what was written.
    #[error("store a snapshot: the manifest reads back differently")]
    ReadBack,
}
