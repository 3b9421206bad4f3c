//! Metrics of planned takeovers.

use prometheus_client::metrics::counter::Counter;
use yoke_runtime::Metrics;

/// Planned takeovers that began, and those that failed.
#[derive(Clone, Debug)]
pub struct TakeoverMetrics {
    takeovers: Counter,
    takeover_failures: Counter,
}

impl TakeoverMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            takeovers: Counter::default(),
            takeover_failures: Counter::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "takeovers",
                "Planned takeovers of control planes that were started",
                own.takeovers.clone(),
            );
            registry.register(
                "takeover_failures",
                "Planned takeovers that failed because no standby pod was ready in time",
                own.takeover_failures.clone(),
            );
        });
        own
    }

    /// Counts a started takeover.
    pub fn count_started(&self) {
        self.takeovers.inc();
    }

    /// Counts a failed takeover.
    pub fn count_failed(&self) {
        self.takeover_failures.inc();
    }
}
