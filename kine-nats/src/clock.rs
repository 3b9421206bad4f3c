//! The clock that leases run on: CLOCK_BOOTTIME, which goes on while the machine is suspended.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Time since the machine started.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
