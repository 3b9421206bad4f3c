//! The content of a backup file: versions of keys, leases and members.

use crate::store::peers::Member;
use bytes::Bytes;

/// One version of a key, as etcd stores it.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) revision: i64,
    pub(crate) delete: bool,
    /// Encoded `mvccpb.KeyValue`.
    pub(crate) kv: Bytes,
}

/// The input of a backup file.
#[derive(Debug, Default)]
pub(crate) struct BackupContent {
    /// For each key, the newest version older than the compact revision, in any order.
    pub(crate) base: Vec<Version>,
    /// The changes from the compact revision on, in order.
    pub(crate) history: Vec<Version>,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// Number and seconds of each lease.
    pub(crate) leases: Vec<(i64, i64)>,
    pub(crate) sequence: u64,
    pub(crate) epoch: u64,
    pub(crate) members: Vec<Member>,
}
