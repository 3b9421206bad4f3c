//! What the operator counts. Label values are closed sets.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use yoke_api::Reason;
use yoke_api::cluster::Phase;
use yoke_pki::request::Use;
use yoke_runtime::Metrics;

use crate::signer::validate::{Asked, Refusal, Requester};

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

/// Which controller.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ControllerLabel {
    controller: &'static str,
}

/// Which controller, and why.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    controller: &'static str,
    reason: &'static str,
}

/// Which phase.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: String,
}

/// Which kind of object.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

/// What a certificate is for.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PurposeLabel {
    purpose: &'static str,
}

/// Why a certificate is refused.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabel {
    reason: &'static str,
}

/// The operator's metrics.
#[derive(Clone, Debug)]
pub struct OperatorMetrics {
    reconciles: Family<ControllerLabel, Counter>,
    failures: Family<ReasonLabel, Counter>,
    durations: Family<ControllerLabel, Histogram>,
    clusters: Family<PhaseLabel, Gauge>,
    ready_seconds: Histogram,
    wake_seconds: Histogram,
    undecodable: Family<KindLabel, Counter>,
    orphans_held: Gauge,
    signed: Family<PurposeLabel, Counter>,
    sign_refusals: Family<RefusalLabel, Counter>,
    sign_failures: Counter,
    reaped: Counter,
    reap_failures: Counter,
    machines_lost: Counter,
    losses_held: Counter,
    takeovers: Counter,
    takeover_failures: Counter,
    acting: Gauge,
}

impl OperatorMetrics {
    /// Registers all of them.
    pub fn new(metrics: &Metrics) -> Self {
        let buckets = || Histogram::new([0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);
        let own = Self {
            reconciles: Family::default(),
            failures: Family::default(),
            durations: Family::new_with_constructor(buckets),
            clusters: Family::default(),
            ready_seconds: Histogram::new([2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0]),
            wake_seconds: Histogram::new([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 15.0, 30.0, 60.0]),
            undecodable: Family::default(),
            orphans_held: Gauge::default(),
            signed: Family::default(),
            sign_refusals: Family::default(),
            sign_failures: Counter::default(),
            reaped: Counter::default(),
            reap_failures: Counter::default(),
            machines_lost: Counter::default(),
            losses_held: Counter::default(),
            takeovers: Counter::default(),
            takeover_failures: Counter::default(),
            acting: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register("reconciles", "Reconciliations", own.reconciles.clone());
            registry.register(
                "failures",
                "Reconciliations that failed or refused, by reason",
                own.failures.clone(),
            );
            registry.register("reconcile_seconds", "Time of a reconciliation", own.durations.clone());
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
                "undecodable_objects",
                "Times that an object of the host API could not be read, by kind",
                own.undecodable.clone(),
            );
            registry.register(
                "orphans_held",
                "Identities without a Cluster that are not collected, since they are too many at once",
                own.orphans_held.clone(),
            );
            registry.register(
                "certificates_signed",
                "Certificates of kubelets and users",
                own.signed.clone(),
            );
            registry.register(
                "certificates_refused",
                "Requests for certificates that were refused, by reason",
                own.sign_refusals.clone(),
            );
            registry.register(
                "certificate_failures",
                "Times that requests of a cluster could not be seen or answered, and were tried again",
                own.sign_failures.clone(),
            );
            registry.register(
                "nodes_reaped",
                "Nodes of silent workers that were removed",
                own.reaped.clone(),
            );
            registry.register(
                "reap_failures",
                "Looks for silent Nodes in a cluster that failed, and were tried again",
                own.reap_failures.clone(),
            );
            registry.register(
                "machines_lost",
                "Machines of the host that were given up, whose control planes were started on others",
                own.machines_lost.clone(),
            );
            registry.register(
                "losses_held",
                "Times that a machine seemed lost and was not given up, since too many were within a minute",
                own.losses_held.clone(),
            );
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
            registry.register(
                "acting",
                "1 in the operator that acts, 0 in one that stands by",
                own.acting.clone(),
            );
        });
        own
    }

    /// A reconciliation ended after `seconds`.
    pub fn reconciled(&self, controller: &'static str, seconds: f64) {
        let label = ControllerLabel { controller };
        self.reconciles.get_or_create(&label).inc();
        self.durations.get_or_create(&label).observe(seconds);
    }

    /// A reconciliation failed or refused.
    pub fn failed(&self, controller: &'static str, reason: Reason) {
        let reason = reason.as_str();
        self.failures.get_or_create(&ReasonLabel { controller, reason }).inc();
    }

    /// An object of a watched kind cannot be read.
    pub fn undecodable(&self, kind: &str) {
        let kind = kind.to_owned();
        self.undecodable.get_or_create(&KindLabel { kind }).inc();
    }

    /// A kubelet or a user was given a certificate.
    pub fn signed(&self, asked: &Asked) {
        let purpose = match (&asked.requester, asked.purpose) {
            (Requester::Approved, _) => "user",
            (_, Use::Client) => "client",
            (_, Use::Server) => "server",
        };
        self.signed.get_or_create(&PurposeLabel { purpose }).inc();
    }

    /// Somebody was given none.
    pub fn refused_to_sign(&self, refusal: Refusal) {
        let reason = refusal.as_str();
        self.sign_refusals.get_or_create(&RefusalLabel { reason }).inc();
    }

    /// Requests of a cluster could not be seen or answered.
    pub fn signing_failed(&self) {
        self.sign_failures.inc();
    }

    /// A Node was removed.
    pub fn reaped(&self) {
        self.reaped.inc();
    }

    /// A look for silent Nodes failed.
    pub fn reaping_failed(&self) {
        self.reap_failures.inc();
    }

    /// A machine of the host was given up.
    pub fn lost_machine(&self) {
        self.machines_lost.inc();
    }

    /// One was not, since too many were.
    pub fn held_loss(&self) {
        self.losses_held.inc();
    }

    /// This operator is the one that acts.
    pub fn acts(&self) {
        self.acting.set(1);
    }

    /// A takeover was begun.
    pub fn began_takeover(&self) {
        self.takeovers.inc();
    }

    /// One came to nothing.
    pub fn failed_takeover(&self) {
        self.takeover_failures.inc();
    }

    /// Sets how many orphans are left alone.
    pub fn hold_orphans(&self, count: usize) {
        self.orphans_held.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A Cluster was Ready for the first time.
    pub fn became_ready(&self, seconds: f64) {
        self.ready_seconds.observe(seconds);
    }

    /// A Cluster that somebody needed was Ready so long after.
    pub fn woke(&self, seconds: f64) {
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

#[cfg(test)]
mod tests;
