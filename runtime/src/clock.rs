//! A monotonic clock that continues while the machine is suspended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since boot (CLOCK_BOOTTIME). [`std::time::Instant`] stops while the machine is suspended,
/// but leases that other processes hold still expire.
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}
