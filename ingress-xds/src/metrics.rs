//! The metrics of the process. Label values are closed sets, except for the traffic of clusters,
//! which is collected from the snapshot (ADR 0012). The log says which cluster a problem belongs
//! to.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use yoke_runtime::Metrics as Registry;

use crate::model::Table;
use crate::snapshot::resource::ResourceKind;
use crate::traffic::TrafficCollector;

/// Prefix of all metric names of this process.
pub const PROCESS: &str = "ingress_xds";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabel {
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabel {
    answer: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Metrics of the process. Clones share their values.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    clusters: Gauge,
    names: Gauge,
    problems: Gauge,
    expiry: Gauge,
    streams: Gauge,
    responses: Family<TypeLabel, Counter>,
    refused: Family<TypeLabel, Counter>,
    bytes: Family<TypeLabel, Counter>,
    open_connections: Gauge,
    pending_requests: Gauge,
    activator_answers: Family<AnswerLabel, Counter>,
    activator_handshakes: Family<ResultLabel, Counter>,
    wakes: Family<OutcomeLabel, Counter>,
    wake_writes: Family<ResultLabel, Counter>,
    verdicts: Family<VerdictLabel, Counter>,
    requests: Family<VerdictLabel, Counter>,
    handshakes: Family<ResultLabel, Counter>,
    reloads: Family<ResultLabel, Counter>,
    watch_errors: Counter<u64, AtomicU64>,
    broken_logs: Counter<u64, AtomicU64>,
    log_entries: Family<ResultLabel, Counter>,
    base_refused: Gauge,
    base_changes: Family<ResultLabel, Counter>,
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self::default();
        metrics.register_served(registry);
        metrics.register_clients(registry);
        metrics
    }

    fn register_served(&self, registry: &Registry) {
        registry.register(|registry| {
            let m = self.clone();
            registry.register("clusters", "Clusters that are routed", m.clusters);
            registry.register("names", "SNI names that lead to a cluster", m.names);
            registry.register(
                "problems",
                "Invalid host objects, and names that more than one cluster claims",
                m.problems,
            );
            registry.register(
                "certificate_expiry_timestamp_seconds",
                "End of the ingress certificate's validity, 0 if there is none",
                m.expiry,
            );
            registry.register("streams", "Open xDS streams", m.streams);
            registry.register("responses", "xDS responses sent", m.responses);
            registry.register("refused_responses", "xDS responses that Envoy refused", m.refused);
            registry.register("response_bytes", "Bytes of resources in xDS responses", m.bytes);
        });
    }

    fn register_clients(&self, registry: &Registry) {
        registry.register(|registry| {
            let m = self.clone();
            registry.register(
                "held_connections",
                "Client connections that are known to be open",
                m.open_connections,
            );
            registry.register(
                "held_requests",
                "Requests of pods that wait for a cluster to wake",
                m.pending_requests,
            );
            registry.register(
                "sleeper_answers",
                "Answers to clients of sleeping clusters",
                m.activator_answers,
            );
            registry.register(
                "sleeper_handshakes",
                "TLS handshakes with clients of sleeping clusters",
                m.activator_handshakes,
            );
            registry.register("wakes", "Wake requests by outcome", m.wakes);
            registry.register("wake_writes", "Wake requests written to Clusters", m.wake_writes);
            registry.register("gate_verdicts", "Decisions about new connections", m.verdicts);
            registry.register(
                "request_verdicts",
                "Decisions about requests whose TLS ended at Envoy",
                m.requests,
            );
            registry.register(
                "broken_logs",
                "Broken streams of Envoy's access logs; entries in flight were lost",
                m.broken_logs,
            );
            registry.register(
                "log_entries",
                "Ended connections and requests; failed are those of unknown clusters",
                m.log_entries,
            );
            registry.register("handshakes", "TLS handshakes of clients", m.handshakes);
            registry.register("certificate_reloads", "Reloads of changed certificates", m.reloads);
            registry.register(
                "base_refused",
                "1 if the base configuration is refused and the last good one served",
                m.base_refused,
            );
            registry.register("base_changes", "Changes of the base configuration", m.base_changes);
            registry.register("watch_errors", "Failures of a watch on the host API", m.watch_errors);
        });
    }

    /// Registers the collector of the clusters' traffic.
    pub fn register_traffic(registry: &Registry, collector: TrafficCollector) {
        registry.register(|registry| registry.register_collector(Box::new(collector)));
    }

    pub(crate) fn set_objects(&self, table: &Table) {
        self.clusters.set(to_gauge(table.route_count()));
        self.names.set(to_gauge(table.name_count()));
        self.problems.set(to_gauge(table.problem_count()));
        self.expiry.set(
            table
                .certificate()
                .map_or(0, |certificate| certificate.not_after.as_second()),
        );
    }

    pub(crate) fn add_streams(&self, change: i64) {
        self.streams.inc_by(change);
    }

    pub(crate) fn count_response(&self, kind: ResourceKind, bytes: usize) {
        let label = TypeLabel { r#type: to_label(kind) };
        self.responses.get_or_create(&label).inc();
        self.bytes.get_or_create(&label).inc_by(bytes as u64);
    }

    pub(crate) fn count_refusal(&self, kind: ResourceKind) {
        self.refused.get_or_create(&TypeLabel { r#type: to_label(kind) }).inc();
    }

    pub(crate) fn set_open_connections(&self, connections: usize) {
        self.open_connections.set(to_gauge(connections));
    }

    pub(crate) fn set_pending_requests(&self, requests: usize) {
        self.pending_requests.set(to_gauge(requests));
    }

    pub(crate) fn count_activator_answer(&self, answer: &'static str) {
        self.activator_answers.get_or_create(&AnswerLabel { answer }).inc();
    }

    pub(crate) fn count_activator_handshake(&self, good: bool) {
        self.activator_handshakes.get_or_create(&to_result(good)).inc();
    }

    pub(crate) fn count_wake(&self, outcome: &'static str) {
        self.wakes.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(crate) fn count_wake_write(&self, good: bool) {
        self.wake_writes.get_or_create(&to_result(good)).inc();
    }

    pub(crate) fn count_verdict(&self, verdict: &'static str) {
        self.verdicts.get_or_create(&VerdictLabel { verdict }).inc();
    }

    pub(crate) fn count_request(&self, verdict: &'static str) {
        self.requests.get_or_create(&VerdictLabel { verdict }).inc();
    }

    pub(crate) fn count_handshake(&self, good: bool) {
        self.handshakes.get_or_create(&to_result(good)).inc();
    }

    pub(crate) fn count_reload(&self, good: bool) {
        self.reloads.get_or_create(&to_result(good)).inc();
    }

    pub(crate) fn count_broken_log(&self) {
        self.broken_logs.inc();
    }

    pub(crate) fn count_entry(&self, counted: bool) {
        self.log_entries.get_or_create(&to_result(counted)).inc();
    }

    pub(crate) fn set_base_refused(&self, refused: bool) {
        self.base_refused.set(refused.into());
    }

    pub(crate) fn count_base_change(&self, good: bool) {
        self.base_changes.get_or_create(&to_result(good)).inc();
    }

    pub(crate) fn count_watch_error(&self) {
        self.watch_errors.inc();
    }
}

fn to_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn to_label(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::Cluster => "cluster",
        ResourceKind::Endpoints => "endpoints",
        ResourceKind::Listener => "listener",
        ResourceKind::Routes => "routes",
        ResourceKind::Secret => "secret",
    }
}

fn to_result(good: bool) -> ResultLabel {
    let result = if good { "ok" } else { "failed" };
    ResultLabel { result }
}

#[cfg(test)]
mod tests;
