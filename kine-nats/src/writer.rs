//! The one task that changes a store.
//!
//! ```text
//! requests ─► evaluate against the head ─► record ─► log (up to PIPELINE in flight)
//!                                                      │ ack, in order
//!             answers ◄─ mark watches ◄─ visible ◄─────┘
//! ```
//!
//! When the pipeline has room, all waiting requests become one record. A record without an ack is
//! in doubt. The writer looks it up at the stream's leader and sends it again, until it is known to
//! be stored or the log shows another writer. No client gets a success before that.

mod batch;
mod error;
mod log_repair;
mod low_watermark;
mod pacing;
mod pipeline;
mod recent;
mod snapshotting;
mod task;
#[cfg(test)]
mod tests;

pub use error::WriterError;
pub(crate) use pacing::{SnapshotBackoff, SnapshotConfig, Unsaved};
pub(crate) use recent::{AppendResult, RecentRecords, append_again};
pub(crate) use snapshotting::BackgroundWork;
pub(crate) use task::{Writer, WriterParts, stopped};
