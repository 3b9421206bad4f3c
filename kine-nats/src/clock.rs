//! The clock that leases run on.

#[cfg(test)]
use std::time::Duration;

#[cfg(not(test))]
pub(crate) use yoke_runtime::clock::since_boot as now;

/// The clock of the test's runtime, which tests can pause.
#[cfg(test)]
pub(crate) fn now() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // A paused clock stands at the start of its runtime, which may lie before the first call.
    let began = *BEGAN - Duration::from_secs(1000);
    tokio::time::Instant::now().into_std().duration_since(began)
}
