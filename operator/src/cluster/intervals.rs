//! Intervals that several modules share.

use std::time::Duration;

/// Requeue interval while a cluster starts, for state that cannot be watched.
pub(crate) const STARTING: Duration = Duration::from_millis(200);
/// Requeue interval of a healthy cluster. Intervals from here on get jitter.
pub(crate) const STEADY: Duration = Duration::from_secs(30);
/// Requeue interval of a sleeping cluster. Its schedules have times of their own, and watches
/// report other changes. Changes of its streams are not watched, but do not matter before it wakes.
/// There may be thousands of such clusters.
pub(crate) const ASLEEP: Duration = Duration::from_secs(1800);
/// Check interval of workers while an upgrade is pending.
pub(crate) const BUSY: Duration = Duration::from_secs(5);
/// Interval for applying the base objects of a cluster again: a tenant may have removed them, and only
/// the addresses are watched.
pub(crate) const BASE_EVERY: Duration = Duration::from_secs(600);
