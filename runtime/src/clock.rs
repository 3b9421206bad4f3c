//! A clock that nobody sets, and that goes on while the machine is suspended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine started (CLOCK_BOOTTIME). [`std::time::Instant`] stands still while the machine is suspended, when
/// leases of others run out.
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}
