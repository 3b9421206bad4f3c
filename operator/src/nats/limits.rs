//! How large streams and accounts are. Pure.
//!
//! JetStream reserves a stream's `max_bytes` when it is made, so the account's limit is the sum of what its Clusters'
//! streams reserve, over all replicas.

use super::claims::{AccountLimits, NO_LIMIT};

/// A stream that is full refuses even the record by which a new writer takes over: this much lies above what a store's
/// own quota lets it write.
pub const RESERVE: i64 = 64 << 20;

const CONNECTIONS_PER_CLUSTER: i64 = 8;
const CONSUMERS_PER_CLUSTER: i64 = 16;
// The operator's own users, which make and inspect streams.
const CONNECTIONS_OF_OPERATOR: i64 = 8;

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

/// Limits of the account of a Tenant who may have `clusters` Clusters with `storage` bytes of quota in all.
pub fn account_limits(clusters: i32, storage: i64, replicas: usize) -> AccountLimits {
    let clusters = i64::from(clusters.max(0));
    // The two formulas are linear: their sum over all Clusters is the one over the sum, but for the reserves.
    let bytes = (log_bytes(storage).saturating_add(snapshot_bytes(storage)))
        .saturating_add(RESERVE.saturating_mul(2).saturating_mul((clusters - 1).max(0)));
    AccountLimits {
        subs: NO_LIMIT,
        data: NO_LIMIT,
        payload: NO_LIMIT,
        imports: 0,
        exports: 0,
        wildcards: false,
        conn: clusters * CONNECTIONS_PER_CLUSTER + CONNECTIONS_OF_OPERATOR,
        leaf: 0,
        disk_storage: bytes.saturating_mul(i64::try_from(replicas).unwrap_or(1)),
        // 0 would mean without limit.
        streams: (clusters * 2).max(1),
        consumer: (clusters * CONSUMERS_PER_CLUSTER).max(1),
        max_bytes_required: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    #[test]
    fn account_covers_its_clusters_streams() {
        for (clusters, each, replicas) in [(1, 256 * MIB, 1), (10, 100 * MIB, 3), (3, MIB, 1)] {
            let limits = account_limits(clusters, each * i64::from(clusters), replicas);
            let reserved = i64::from(clusters) * (log_bytes(each) + snapshot_bytes(each));
            assert_eq!(limits.disk_storage, reserved * i64::try_from(replicas).unwrap());
            assert_eq!(limits.streams, i64::from(clusters) * 2);
        }
    }

    #[test]
    fn sizes_are_written_out() {
        assert_eq!(log_bytes(256 * MIB), 576 * MIB);
        assert_eq!(snapshot_bytes(256 * MIB), 832 * MIB);
        assert_eq!(log_bytes(i64::MAX), i64::MAX);
        assert_eq!(account_limits(0, MIB, 1).streams, 1);
    }
}
