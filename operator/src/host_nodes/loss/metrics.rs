//! Metrics of lost nodes.

use prometheus_client::metrics::counter::Counter;
use yoke_runtime::Metrics;

/// Nodes that were given up, and those that were not because of the limit.
#[derive(Clone, Debug)]
pub struct LossMetrics {
    lost_nodes: Counter,
    limited_losses: Counter,
}

impl LossMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            lost_nodes: Counter::default(),
            limited_losses: Counter::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "machines_lost",
                "Lost nodes of the host whose control planes were started on other nodes",
                own.lost_nodes.clone(),
            );
            registry.register(
                "losses_held",
                "Nodes of the host that seemed lost but were not given up because of the limit per minute",
                own.limited_losses.clone(),
            );
        });
        own
    }

    /// Counts a node of the host that was given up as lost.
    pub fn count_lost_node(&self) {
        self.lost_nodes.inc();
    }

    /// Counts a node that seemed lost and was not given up, since too many were.
    pub fn count_limited_loss(&self) {
        self.limited_losses.inc();
    }
}
