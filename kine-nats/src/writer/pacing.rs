//! When a snapshot is due, and how full the log is.

use crate::clock;
use crate::quota::RESERVE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Shortest delay between two snapshots.
const SPACING: Duration = Duration::from_millis(100);
/// Delay after a failed snapshot: the first time, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(30));
/// Number of snapshots at one sequence after which another one there frees nothing more.
const ENOUGH: u32 = 2;

/// Thresholds at which a snapshot is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotThresholds {
    /// Log bytes. The size of the last snapshot counts instead if it is larger, so that a large
    /// store is not written over and over.
    pub(crate) bytes: u64,
    /// Log bytes at which a snapshot is due in any case.
    pub(crate) most: u64,
    pub(crate) records: u64,
    pub(crate) age: Duration,
}

/// Configured thresholds; those that are not set follow from the log's limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SnapshotConfig {
    pub(crate) thresholds: Option<SnapshotThresholds>,
    pub(crate) bytes: Option<u64>,
}

impl SnapshotConfig {
    pub(super) fn thresholds(self, limit: Option<u64>) -> SnapshotThresholds {
        let limit = limit.unwrap_or(u64::MAX);
        self.thresholds.unwrap_or(SnapshotThresholds {
            bytes: self.bytes.unwrap_or((limit / 4).min(RESERVE)),
            most: limit / 4,
            records: 50_000,
            age: Duration::from_secs(600),
        })
    }
}

/// Content of the log that is not in the newest snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unsaved {
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    /// Bytes and number of the records with changes. Most records of an idle writer are heartbeats
    /// without any.
    pub(crate) changes: (u64, u64),
    pub(crate) since: Duration,
    pub(crate) urgent: bool,
}

impl Unsaved {
    /// Counts a record.
    pub(crate) fn count(&mut self, bytes: u64, changed: bool) {
        self.bytes += bytes;
        self.records += 1;
        if changed {
            self.changes.0 += bytes;
            self.changes.1 += 1;
        }
    }

    /// Adds back the content of a snapshot that failed.
    pub(super) fn add(&mut self, earlier: Self) {
        self.bytes += earlier.bytes;
        self.records += earlier.records;
        self.changes.0 += earlier.changes.0;
        self.changes.1 += earlier.changes.1;
        self.since = earlier.since;
        self.urgent |= earlier.urgent;
    }
}

/// Decides when the next snapshot may start.
#[derive(Debug)]
pub(crate) struct SnapshotBackoff {
    /// Sequence of the newest stored snapshot, and how many were stored there in a row.
    stored: (u64, u32),
    not_before: Duration,
    /// Delay after the next snapshot that fails or does not help.
    again: Duration,
}

impl Default for SnapshotBackoff {
    fn default() -> Self {
        Self {
            stored: (0, 0),
            not_before: Duration::ZERO,
            again: AGAIN.0,
        }
    }
}

impl SnapshotBackoff {
    pub(crate) fn allows(&self) -> bool {
        clock::now() >= self.not_before
    }

    /// Records a stored snapshot.
    pub(crate) fn succeed(&mut self, sequence: u64) {
        let count = if self.stored.0 == sequence {
            self.stored.1 + 1
        } else {
            1
        };
        self.stored = (sequence, count);
        if count < ENOUGH {
            self.not_before = clock::now() + SPACING;
            self.again = AGAIN.0;
        } else {
            self.fail();
        }
    }

    /// Records a failed snapshot.
    pub(crate) fn fail(&mut self) {
        self.not_before = clock::now() + self.again;
        self.again = (self.again * 2).min(AGAIN.1);
    }

    /// Lets the next snapshot start earlier. It may succeed now, even after repeated failures.
    pub(super) fn demand(&mut self, sequence: u64) {
        if self.stored.0 != sequence || self.stored.1 < ENOUGH {
            self.not_before = self.not_before.min(clock::now() + AGAIN.0);
        }
    }
}

/// Used and available space of the log.
#[derive(Debug, Clone)]
pub(super) struct Space {
    pub(super) limit: Option<u64>,
    /// Bytes at the last check, and bytes that had been appended by then.
    pub(super) checked: (u64, u64),
    /// Bytes that this writer appended.
    pub(super) appended: Arc<AtomicU64>,
}

impl Space {
    /// Whether only the reserve is left. The reserve is for records that must be stored even while
    /// puts are rejected: epochs, heartbeats, ends of leases, deletes and compactions.
    pub(super) fn is_tight(&self) -> bool {
        let Some(limit) = self.limit else { return false };
        let used = self.checked.0 + (self.appended.load(Ordering::Relaxed) - self.checked.1);
        used + RESERVE.min(limit / 4) >= limit
    }
}
