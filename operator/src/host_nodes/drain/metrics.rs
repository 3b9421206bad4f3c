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
                "Control planes for which another pod was asked to stand by, since their machines are about to go",
                own.takeovers.clone(),
            );
            registry.register(
                "takeover_failures",
                "Those of them for which none came in time",
                own.takeover_failures.clone(),
            );
        });
        own
    }

    /// Counts a started takeover.
    pub fn began_takeover(&self) {
        self.takeovers.inc();
    }

    /// Counts a failed takeover.
    pub fn failed_takeover(&self) {
        self.takeover_failures.inc();
    }
}
