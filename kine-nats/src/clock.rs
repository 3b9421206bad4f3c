//! The clock that leases run on: CLOCK_BOOTTIME, which goes on while the machine is suspended.

use std::time::Duration;

/// Time since the machine started.
#[cfg(not(test))]
pub(crate) fn now() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The clock of the test's runtime, which can be paused.
#[cfg(test)]
pub(crate) fn now() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // A paused clock stands where its runtime began, which may be before the first call.
    let began = *BEGAN - Duration::from_secs(1000);
    tokio::time::Instant::now().into_std().duration_since(began)
}
