//! Parts that the benchmarks of the running development stack share.
//!
//! ```text
//!  yoke-e2e: Stack ─▶ yoke-bench          one Cluster: creation, recovery, wake, idle, workers
//!                  └▶ yoke-bench-density  many Clusters on one machine
//! ```

pub mod floor;
pub mod machine;

use std::time::Duration;

pub use crate::floor::Floor;

/// A percentile of durations. `None` if there are none.
pub fn percentile(times: &[Duration], hundredths: usize) -> Option<Duration> {
    let mut times = times.to_vec();
    times.sort();
    let last = times.len().saturating_sub(1);
    times.get((times.len() * hundredths / 100).min(last)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_sorted_times() {
        let times = [3, 1, 2].map(Duration::from_secs);
        let seconds = [0, 50, 99, 100].map(|hundredths| percentile(&times, hundredths).map(|time| time.as_secs()));
        assert_eq!(seconds, [Some(1), Some(2), Some(3), Some(3)]);
        assert_eq!(percentile(&[], 50), None);
    }
}
