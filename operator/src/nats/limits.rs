//! Sizes of streams and accounts. Pure.
//!
//! JetStream reserves a stream's `max_bytes` at its creation. The limit of an account is therefore
//! the sum that its Cluster's streams reserve, over all replicas.

use yoke_nats_auth::{AccountLimits, JetStreamLimits, NO_LIMIT};

use crate::nats::account::Size;

/// Bytes above what a store's own quota allows it to write. A full stream would refuse even the
/// record with which a new writer takes over.
pub const RESERVE: i64 = 64 << 20;

/// Connections of the store's instances, and of the operator's own users, which create and inspect
/// streams.
const CONNECTIONS: i64 = 16;

/// Bytes of the log stream of a Cluster with this storage quota: the tail since the older of two
/// snapshots, and the reserve.
pub fn log_bytes(quota: i64) -> i64 {
    quota.saturating_mul(2).saturating_add(RESERVE)
}

/// Bytes of the snapshot stream of a Cluster with this storage quota: two complete snapshots, a
/// third in progress, and the reserve.
pub fn snapshot_bytes(quota: i64) -> i64 {
    quota.saturating_mul(3).saturating_add(RESERVE)
}

/// Bytes of the stream for every other snapshot of a store without replicas: one complete snapshot,
/// another in progress, and the reserve.
pub fn spare_bytes(quota: i64) -> i64 {
    quota.saturating_mul(2).saturating_add(RESERVE)
}

/// Maximum bytes in the log stream of a Cluster whose quota is lowered: with more, the store could
/// not write any more.
pub fn most_log(quota: i64) -> i64 {
    let bytes = log_bytes(quota);
    bytes - RESERVE.min(bytes / 4)
}

/// Maximum bytes in a stream with this many snapshots of a Cluster whose quota is lowered. There
/// must be room for the next snapshot, or the log can never be truncated again.
pub fn most_snapshots(quota: i64, retained: i64) -> i64 {
    quota.saturating_mul(retained)
}

/// Bytes that the streams of a Cluster reserve, over all replicas. The spare stream always counts:
/// a store that got replicas later still has it.
pub fn disk_storage(size: Size) -> i64 {
    let bytes = log_bytes(size.quota).saturating_add(snapshot_bytes(size.quota));
    bytes
        .saturating_mul(i64::try_from(size.replicas).unwrap_or(1))
        .saturating_add(spare_bytes(size.quota))
}

/// Limits of the account of a Cluster; without JetStream if it has no storage.
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
        jetstream: Some(JetStreamLimits {
            disk_storage,
            streams: 3,
            // A store creates no consumers, but 0 means unlimited.
            consumer: 1,
            max_bytes_required: true,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    #[test]
    fn the_sizes_have_these_values() {
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
