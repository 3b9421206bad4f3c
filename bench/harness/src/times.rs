//! Durations of many operations.

use std::time::Duration;

/// Durations of operations of one kind, and the number of those that failed.
#[derive(Clone, Debug, Default)]
pub struct Times {
    succeeded: Vec<Duration>,
    failed: u64,
}

impl From<Vec<Duration>> for Times {
    fn from(succeeded: Vec<Duration>) -> Self {
        Self { succeeded, failed: 0 }
    }
}

impl Times {
    /// Adds the duration of an operation that succeeded.
    pub fn add(&mut self, time: Duration) {
        self.succeeded.push(time);
    }

    /// Counts an operation that failed.
    pub fn fail(&mut self) {
        self.failed += 1;
    }

    /// Adds all operations of `other`.
    pub fn append(&mut self, other: Self) {
        self.succeeded.extend(other.succeeded);
        self.failed += other.failed;
    }

    /// Number of operations that succeeded.
    pub fn succeeded(&self) -> usize {
        self.succeeded.len()
    }

    /// Number of operations that failed.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// The quantiles of the successful durations, in milliseconds. NaN if none succeeded.
    pub fn quantiles<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        let mut sorted = self.succeeded.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        shares.map(|share| {
            let time = sorted.get((last as f64 * share).round() as usize);
            time.map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
        })
    }

    /// One quantile of the successful durations, in milliseconds.
    pub fn quantile(&self, share: f64) -> f64 {
        let [time] = self.quantiles([share]);
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_sorted_times() {
        let times = Times::from((1..=200).rev().map(Duration::from_millis).collect::<Vec<_>>());
        assert_eq!(times.quantiles([0.5, 0.99, 1.0]), [101.0, 198.0, 200.0]);
        assert!(Times::default().quantile(0.5).is_nan());
    }

    #[test]
    fn failed_operations_have_no_duration() {
        let mut times = Times::default();
        times.add(Duration::from_millis(3));
        times.fail();
        times.append(times.clone());
        assert_eq!((times.succeeded(), times.failed(), times.quantile(1.0)), (2, 2, 3.0));
    }
}
