//! The Clusters of a run: which of them are awake, and how often the operator reconciles them at
//! rest.

use std::time::Duration;

/// Seconds between two periodic reconciles of an awake Cluster.
const AWAKE_EVERY: f64 = 30.0;
/// Seconds between two periodic reconciles of a sleeping Cluster: about three quarters of an hour.
const ASLEEP_EVERY: f64 = 2700.0;

/// Whether the Cluster with this number is awake. The `awake` ones are spread evenly over all.
pub fn is_awake(number: usize, clusters: usize, awake: usize) -> bool {
    number * awake % clusters.max(1) < awake
}

/// Reconciles a second of Clusters at rest.
pub fn reconcile_rate(awake: usize, asleep: usize) -> f64 {
    awake as f64 / AWAKE_EVERY + asleep as f64 / ASLEEP_EVERY
}

/// Whether so many reconciles in an interval are no more than at rest. Periodic reconciles are not
/// evenly spread, so this allows three times the average.
pub fn is_at_rest(reconciles: f64, rate: f64, interval: Duration) -> bool {
    reconciles <= (rate * interval.as_secs_f64()).max(1.0) * 3.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awake_clusters_are_spread_over_all() {
        let find = |clusters, awake| -> Vec<_> {
            (0..clusters)
                .filter(|number| is_awake(*number, clusters, awake))
                .collect()
        };
        assert_eq!(find(100, 3), [0, 34, 67]);
        assert_eq!(find(6, 2), [0, 3]);
        assert_eq!(find(2, 2), [0, 1]);
        assert!(find(2, 0).is_empty());
        assert_eq!(find(1000, 30).len(), 30);
    }

    #[test]
    fn rest_allows_three_times_the_average() {
        let rate = reconcile_rate(60, 2700);
        assert_eq!(rate, 3.0);
        assert!(is_at_rest(18.0, rate, Duration::from_secs(2)));
        assert!(!is_at_rest(19.0, rate, Duration::from_secs(2)));
        assert!(is_at_rest(3.0, 0.0, Duration::from_secs(2)));
    }
}
