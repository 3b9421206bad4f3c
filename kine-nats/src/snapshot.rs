//! Snapshots: the state at a sequence of the log, in chunks. A manifest is written last and read
//! back.
//!
//! A snapshot holds the leases, for each key the newest version below the compact revision, and
//! then every change since, in order. The history therefore survives a restart, and watches resume
//! where they were.
//!
//! ```text
//! kine.<id>.snap.c.<sequence>.<writer>   chunk, chunk, chunk, …   (all of one snapshot under one subject)
//! kine.<id>.snap.m                       manifest: fencing state, revisions, location of its chunks, their digest
//! kine.<id>.snap.f                       low watermark: how far the log was acknowledged since
//! ```
//!
//! A snapshot that a writer stores while it serves requests pauses behind each chunk that it writes
//! or reads back, unless something waits for the snapshot.

mod chunk;
mod error;
mod jetstream;
mod low_watermark;
mod manifest;
#[cfg(test)]
pub(crate) mod memory;
mod messages;
mod point;
mod rate_limit;
mod stream;

pub use error::SnapshotError;
pub(crate) use low_watermark::LowWatermark;
pub(crate) use manifest::Snapshot;
pub(crate) use messages::Messages;
pub(crate) use point::SnapshotPoint;
pub(crate) use stream::Snapshots;
