//! Why a store cannot be opened or followed.

use crate::codec::CodecError;
use crate::log::fencing::FencingError;
use crate::log::{LogError, Transient};
use crate::snapshot::SnapshotError;
use crate::state::ApplyError;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoverError {
    /// The log does not answer.
    #[error("open the store: use the log")]
    Log(#[from] LogError),
    /// A message is not a record.
    #[error("open the store: the record at sequence {sequence} is corrupt")]
    Codec {
        /// Sequence of the message.
        sequence: u64,
        /// Why the record cannot be decoded.
        #[source]
        source: CodecError,
    },
    /// The records do not form a chain.
    #[error("open the store: follow the log")]
    Fencing(#[from] FencingError),
    /// A record does not fit the state.
    #[error("open the store: apply the record at sequence {sequence}")]
    Apply {
        /// Sequence of the record.
        sequence: u64,
        /// The mismatch.
        #[source]
        source: ApplyError,
    },
    /// The log starts behind the end of every snapshot.
    #[error("open the store: the log starts at sequence {first}, and no complete snapshot reaches it")]
    NoSnapshot {
        /// First sequence of the log.
        first: u64,
    },
    /// The log ends before a sequence that is known to be acknowledged.
    #[error(
        "open the store: the log has lost the records behind sequence {last}: it is known to have reached {known}, at \
         revision {revision}; restore the files of NATS, or continue without these records with `kine-nats repair`"
    )]
    Behind {
        /// Last sequence of the log.
        last: u64,
        /// Last sequence that is known.
        known: u64,
        /// Revision at that sequence.
        revision: i64,
    },
    /// The log ends before the sequence at which it ended earlier in the same read.
    #[error(
        "open the store: the log ended at sequence {known} at first, and ends at {last} now: acknowledged records behind \
         that are lost; `kine-nats repair` shows what can be read without them"
    )]
    Shrunk {
        /// Last sequence of the log.
        last: u64,
        /// Last sequence that the log had before.
        known: u64,
    },
    /// The NATS server reports that it dropped the end of the log.
    #[error(
        "open the store: the NATS server found the log corrupt and dropped {bytes} bytes of it: acknowledged records behind \
         sequence {last} may be lost; restore the files of NATS, or continue without these records with `kine-nats repair`"
    )]
    Dropped {
        /// Bytes that were dropped.
        bytes: u64,
        /// Last sequence of the log.
        last: u64,
    },
    /// The log has a gap.
    #[error(
        "open the store: the log has lost the record at sequence {sequence}, but has records behind it; \
         `kine-nats repair` shows what can be read without it"
    )]
    Missing {
        /// Sequence of the missing record.
        sequence: u64,
    },
    /// Snapshots cannot be read.
    #[error("open the store: read snapshots")]
    Snapshot(#[from] SnapshotError),
    /// A process of a newer incarnation owns the store.
    #[error("open the store: incarnation {theirs} owns it, and this process is incarnation {ours}")]
    Superseded {
        /// Incarnation of the newest writer.
        theirs: u64,
        /// Incarnation of this process.
        ours: u64,
    },
    /// The task that receives acknowledgements of the log ended.
    #[error("open the store: the task that receives acknowledgements ended")]
    AcksEnded,
}

impl Transient for RecoverError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Log(error) | Self::Snapshot(SnapshotError::Log(error)) => error.is_transient(),
            _ => false,
        }
    }
}
