//! Limits, times and versions that several modules share.

use std::time::Duration;

/// etcd version reported to clients; ≥ 3.5.13 makes them request progress notifications.
pub(crate) const VERSION: &str = "3.6.8";
/// etcd storage version that backups and `/version` report.
pub(crate) const STORAGE_VERSION: &str = "3.6.0";
/// Timeout of a request that waits for the log; the same as etcd's.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(7);
/// etcd's limit for one request, in bytes.
pub(crate) const MAX_REQUEST: usize = 3 * 512 * 1024;
/// The writer's lease: a follower may take over when the writer has stored no record for this long.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The part of the lease that the writer relies on; clocks do not all run at the same speed.
pub(crate) const LEASE_USED: Duration = Duration::from_millis(1900);
