//! A copy of the store that follows the log: recovers it from a snapshot and the records behind it,
//! and follows new records until this process becomes the writer.

pub(crate) mod error;
pub(crate) mod follower;
pub(crate) mod recover;
