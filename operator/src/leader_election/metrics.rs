//! Metrics of leader election.

use prometheus_client::metrics::gauge::Gauge;
use yoke_runtime::Metrics;

/// Whether this operator is the leader.
#[derive(Clone, Debug)]
pub struct LeaderMetrics {
    acting: Gauge,
}

impl LeaderMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            acting: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "acting",
                "1 in the operator that holds the Lease, 0 in a standby operator",
                own.acting.clone(),
            );
        });
        own
    }

    /// Sets that this operator holds the Lease.
    pub fn acts(&self) {
        self.acting.set(1);
    }
}
