//! Metrics of Clusters. Label values are closed sets.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use yoke_api::cluster::Phase;
use yoke_runtime::Metrics;

/// The phases, as metric labels.
const PHASES: [Option<Phase>; 8] = [
    None,
    Some(Phase::Refused),
    Some(Phase::Provisioning),
    Some(Phase::Running),
    Some(Phase::Updating),
    Some(Phase::Unavailable),
    Some(Phase::Asleep),
    Some(Phase::Deleting),
];

/// Label of a phase.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: String,
}

/// Clusters by phase, and how long they take to be ready.
#[derive(Clone, Debug)]
pub struct ClusterMetrics {
    clusters: Family<PhaseLabel, Gauge>,
    ready_seconds: Histogram,
    wake_seconds: Histogram,
    retained_orphans: Gauge,
}

impl ClusterMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            clusters: Family::default(),
            ready_seconds: Histogram::new([2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0]),
            wake_seconds: Histogram::new([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 15.0, 30.0, 60.0]),
            retained_orphans: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register("clusters", "Clusters by phase", own.clusters.clone());
            registry.register(
                "cluster_ready_seconds",
                "Time from a Cluster's creation until it was first Ready",
                own.ready_seconds.clone(),
            );
            registry.register(
                "cluster_wake_seconds",
                "Time from a request that woke a Cluster until it was Ready",
                own.wake_seconds.clone(),
            );
            registry.register(
                "orphans_held",
                "Orphaned identities that are not collected because there are too many at once",
                own.retained_orphans.clone(),
            );
        });
        own
    }

    /// Sets the number of orphans that are not collected.
    pub fn set_retained_orphans(&self, count: usize) {
        self.retained_orphans.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Observes the time until a Cluster was Ready for the first time.
    pub fn observe_first_ready(&self, seconds: f64) {
        self.ready_seconds.observe(seconds);
    }

    /// Observes the time from a wake request until the Cluster was Ready.
    pub fn observe_wake(&self, seconds: f64) {
        self.wake_seconds.observe(seconds);
    }

    /// Sets the number of Clusters in each phase.
    pub fn count_clusters(&self, phases: &[Option<Phase>]) {
        for phase in PHASES {
            let count = phases.iter().filter(|each| **each == phase).count();
            let label = PhaseLabel {
                phase: phase.map_or_else(|| "New".to_owned(), |phase| format!("{phase:?}")),
            };
            self.clusters
                .get_or_create(&label)
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
