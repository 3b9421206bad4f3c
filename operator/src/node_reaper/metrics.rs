//! Metrics of the node reaper.

use prometheus_client::metrics::counter::Counter;
use yoke_runtime::Metrics;

/// Removed Nodes, and checks that failed.
#[derive(Clone, Debug)]
pub struct ReaperMetrics {
    reaped: Counter,
    reap_failures: Counter,
}

impl ReaperMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            reaped: Counter::default(),
            reap_failures: Counter::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "nodes_reaped",
                "Nodes of silent workers that were deleted",
                own.reaped.clone(),
            );
            registry.register(
                "reap_failures",
                "Failed checks of a cluster for silent Nodes, each retried",
                own.reap_failures.clone(),
            );
        });
        own
    }

    /// Counts a deleted Node.
    pub fn reaped(&self) {
        self.reaped.inc();
    }

    /// Counts a failed search for silent Nodes.
    pub fn reaping_failed(&self) {
        self.reap_failures.inc();
    }
}
