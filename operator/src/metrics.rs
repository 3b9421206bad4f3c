//! Metrics of reconciles, which all controllers share. Label values are closed sets.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use yoke_api::Reason;
use yoke_runtime::Metrics;

/// Label of a controller.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ControllerLabel {
    controller: &'static str,
}

/// Labels of a controller and a reason.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    controller: &'static str,
    reason: &'static str,
}

/// Counts and durations of reconciles, by controller.
#[derive(Clone, Debug)]
pub struct ReconcileMetrics {
    reconciles: Family<ControllerLabel, Counter>,
    failures: Family<ReasonLabel, Counter>,
    durations: Family<ControllerLabel, Histogram>,
}

impl ReconcileMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            reconciles: Family::default(),
            failures: Family::default(),
            durations: Family::new_with_constructor(|| {
                Histogram::new([0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
            }),
        };
        metrics.register(|registry| {
            registry.register("reconciles", "Reconciliations", own.reconciles.clone());
            registry.register(
                "failures",
                "Reconciliations that failed or refused the spec, by reason",
                own.failures.clone(),
            );
            registry.register(
                "reconcile_seconds",
                "Duration of a reconciliation",
                own.durations.clone(),
            );
        });
        own
    }

    /// Counts a reconciliation that took `seconds`.
    pub fn reconciled(&self, controller: &'static str, seconds: f64) {
        let label = ControllerLabel { controller };
        self.reconciles.get_or_create(&label).inc();
        self.durations.get_or_create(&label).observe(seconds);
    }

    /// Counts a reconciliation that failed or refused.
    pub fn failed(&self, controller: &'static str, reason: Reason) {
        let reason = reason.as_str();
        self.failures.get_or_create(&ReasonLabel { controller, reason }).inc();
    }
}

#[cfg(test)]
mod tests;
