//! Metrics of lost nodes.

use prometheus_client::metrics::counter::Counter;
use yoke_runtime::Metrics;

/// Nodes that were given up, and those that were not because of the limit.
#[derive(Clone, Debug)]
pub struct LossMetrics {
    machines_lost: Counter,
    losses_held: Counter,
}

impl LossMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            machines_lost: Counter::default(),
            losses_held: Counter::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "machines_lost",
                "Lost nodes of the host whose control planes were started on other nodes",
                own.machines_lost.clone(),
            );
            registry.register(
                "losses_held",
                "Nodes of the host that seemed lost but were not given up because of the limit per minute",
                own.losses_held.clone(),
            );
        });
        own
    }

    /// Counts a node of the host that was given up as lost.
    pub fn lost_machine(&self) {
        self.machines_lost.inc();
    }

    /// Counts a node that seemed lost and was not given up, since too many were.
    pub fn held_loss(&self) {
        self.losses_held.inc();
    }
}
