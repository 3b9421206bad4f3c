//! How large streams and accounts are. Pure.
//!
//! JetStream reserves a stream's `max_bytes` when it is made, so an account's limit is what its Cluster's streams reserve,
//! over all replicas.

use super::account::Size;
use super::claims::{AccountLimits, NO_LIMIT};

/// A stream that is full refuses even the record by which a new writer takes over: this much lies above what a store's
/// own quota lets it write.
pub const RESERVE: i64 = 64 << 20;

/// Of the store's instances, and of the operator's own users, which make and inspect streams.
const CONNECTIONS: i64 = 16;

/// Bytes of the log stream of a Cluster with this storage quota: the tail since the older of two snapshots, and the
/// reserve.
pub fn log_bytes(quota: i64) -> i64 {
    quota.saturating_mul(2).saturating_add(RESERVE)
}

/// Bytes of the snapshot stream of a Cluster with this storage quota: two snapshots that are kept, a third that is being
/// written, and the reserve.
pub fn snapshot_bytes(quota: i64) -> i64 {
    quota.saturating_mul(3).saturating_add(RESERVE)
}

/// Bytes of the stream that takes every other snapshot of a store without replicas: one that is kept, another that is being
/// written, and the reserve.
pub fn spare_bytes(quota: i64) -> i64 {
    quota.saturating_mul(2).saturating_add(RESERVE)
}

/// Most bytes in the log stream of a Cluster whose quota becomes lower: with more, the store would put nothing from then on.
pub fn most_log(quota: i64) -> i64 {
    let bytes = log_bytes(quota);
    bytes - RESERVE.min(bytes / 4)
}

/// Most bytes in a stream in which so many of its snapshots are kept: there must be room for the next one, or none makes the
/// log shorter any more.
pub fn most_snapshots(quota: i64, kept: i64) -> i64 {
    quota.saturating_mul(kept)
}

/// Bytes that the streams of a Cluster reserve, over all replicas. A store that was given replicas keeps the stream that it
/// had without.
pub fn disk_storage(size: Size) -> i64 {
    let bytes = log_bytes(size.quota).saturating_add(snapshot_bytes(size.quota));
    bytes
        .saturating_mul(i64::try_from(size.replicas).unwrap_or(1))
        .saturating_add(spare_bytes(size.quota))
}

/// Limits of the account of a Cluster; none of JetStream if it has no storage.
pub fn account_limits(disk_storage: i64) -> AccountLimits {
    AccountLimits {
        subs: NO_LIMIT,
        data: NO_LIMIT,
        payload: NO_LIMIT,
        imports: 0,
        exports: 0,
        wildcards: false,
        conn: CONNECTIONS,
        leaf: 0,
        disk_storage,
        streams: 3,
        // A store makes none; 0 would mean without limit.
        consumer: 1,
        max_bytes_required: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    #[test]
    fn sizes_are_written_out() {
        assert_eq!(log_bytes(256 * MIB), 576 * MIB);
        assert_eq!(snapshot_bytes(256 * MIB), 832 * MIB);
        assert_eq!(spare_bytes(256 * MIB), 576 * MIB);
        assert_eq!(log_bytes(i64::MAX), i64::MAX);
        assert_eq!((most_log(256 * MIB), most_log(16 * MIB)), (512 * MIB, 72 * MIB));
        assert_eq!(most_snapshots(16 * MIB, 2), 32 * MIB);
        for (quota, replicas, disk) in [
            (256 * MIB, 1, 1984 * MIB),
            (256 * MIB, 3, 4800 * MIB),
            (MIB, 1, 199 * MIB),
        ] {
            assert_eq!(disk_storage(Size { quota, replicas }), disk);
        }
    }
}
