//! Metrics of the watches.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use yoke_runtime::Metrics;

/// Label of an object's kind.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

/// Objects that the operator cannot decode.
#[derive(Clone, Debug)]
pub struct CacheMetrics {
    undecodable: Family<KindLabel, Counter>,
}

impl CacheMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            undecodable: Family::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "undecodable_objects",
                "Objects of the host API that could not be decoded, by kind",
                own.undecodable.clone(),
            );
        });
        own
    }

    /// Counts an object of a watched kind that cannot be decoded.
    pub fn undecodable(&self, kind: &str) {
        let kind = kind.to_owned();
        self.undecodable.get_or_create(&KindLabel { kind }).inc();
    }
}
