//! Why the writer ended.

use crate::log::LogError;
use crate::log::fencing::FencingError;

/// Why the writer ended.
#[derive(Debug, thiserror::Error)]
pub enum WriterError {
    /// Another writer started.
    #[error("write: fenced by the writer of epoch {epoch}")]
    Fenced {
        /// Epoch of the other writer.
        epoch: u64,
    },
    /// Another writer started, and has purged the records that show it.
    #[error(
        "write: another writer took over: the log starts at sequence {first}, but this writer stopped at {acknowledged}"
    )]
    Overtaken {
        /// First sequence of the log.
        first: u64,
        /// Last sequence that this writer knows.
        acknowledged: u64,
    },
    /// The log has lost acknowledged records.
    #[error(
        "write: the log has lost records: it ends at sequence {last}, \
         and records up to {acknowledged} were acknowledged, with revision {revision}; `kine-nats repair` shows what is left"
    )]
    Lost {
        /// Last sequence of the log.
        last: u64,
        /// Last acknowledged sequence.
        acknowledged: u64,
        /// Newest acknowledged revision.
        revision: i64,
    },
    /// The log has a gap behind the acknowledged records.
    #[error(
        "write: the log has lost the unacknowledged record at sequence {sequence}, but has records behind it; \
         `kine-nats repair` shows what can be read without it"
    )]
    Missing {
        /// Sequence of the missing record.
        sequence: u64,
    },
    /// The log holds a record that cannot be valid.
    #[error("write: the log cannot be continued")]
    Fencing(#[from] FencingError),
    /// A message in the log is not a record.
    #[error("write: the log holds a message that is not a record")]
    Codec(#[from] crate::codec::CodecError),
    /// The task that receives acknowledgements of the log ended.
    #[error("write: the task that receives acknowledgements ended")]
    AcksEnded,
    /// The log cannot be used.
    #[error("write: use the log")]
    Log(#[from] LogError),
}
