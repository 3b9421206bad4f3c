//! What is counted, in etcd's names where etcd has one, so that existing dashboards work, and in our own.

use crate::store::Store;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// Counters that the tasks hold.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    pub(crate) batches: Counter,
    pub(crate) requests: Counter,
    pub(crate) recoveries: Counter,
    pub(crate) snapshots: Counter,
    pub(crate) failed_snapshots: Counter,
    pub(crate) foreign: Counter,
    pub(crate) forwarded: Counter,
    pub(crate) leader_changes: Counter,
    pub(crate) commit: Histogram,
    revision: Gauge,
    bytes: Gauge,
    quota: Gauge,
    keys: Gauge,
    history: Gauge,
    watches: Gauge,
    has_leader: Gauge,
    is_leader: Gauge,
    sequence: Gauge,
    full: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let buckets = || exponential_buckets(0.000_1, 2.0, 16);
        let metrics = Self {
            batches: Counter::default(),
            requests: Counter::default(),
            recoveries: Counter::default(),
            snapshots: Counter::default(),
            failed_snapshots: Counter::default(),
            foreign: Counter::default(),
            forwarded: Counter::default(),
            leader_changes: Counter::default(),
            commit: Histogram::new(buckets()),
            revision: Gauge::default(),
            bytes: Gauge::default(),
            quota: Gauge::default(),
            keys: Gauge::default(),
            history: Gauge::default(),
            watches: Gauge::default(),
            has_leader: Gauge::default(),
            is_leader: Gauge::default(),
            sequence: Gauge::default(),
            full: Gauge::default(),
            registry: Arc::new(Registry::default()),
        };
        registry.register("yoke_kine_batches", "Records stored", metrics.batches.clone());
        registry.register(
            "yoke_kine_requests",
            "Requests that the writer did",
            metrics.requests.clone(),
        );
        registry.register(
            "yoke_kine_recoveries",
            "Times a record was in doubt",
            metrics.recoveries.clone(),
        );
        registry.register(
            "yoke_kine_forwarded",
            "Times another process was asked to do a request",
            metrics.forwarded.clone(),
        );
        registry.register("yoke_kine_snapshots", "Snapshots stored", metrics.snapshots.clone());
        registry.register(
            "yoke_kine_snapshot_failures",
            "Snapshots that could not be stored",
            metrics.failed_snapshots.clone(),
        );
        registry.register(
            "yoke_kine_log_full",
            "Whether nothing is put until there is room in the log",
            metrics.full.clone(),
        );
        registry.register(
            "yoke_kine_foreign_messages",
            "Messages in the log that are not of this store, and copies",
            metrics.foreign.clone(),
        );
        registry.register(
            "yoke_kine_commit_seconds",
            "From sending a record to its ack",
            metrics.commit.clone(),
        );
        registry.register("yoke_kine_revision", "Newest stored revision", metrics.revision.clone());
        registry.register(
            "yoke_kine_log_sequence",
            "Sequence of the newest record",
            metrics.sequence.clone(),
        );
        registry.register("yoke_kine_keys", "Keys with an entry", metrics.keys.clone());
        registry.register(
            "yoke_kine_history_changes",
            "Changes since the compact revision",
            metrics.history.clone(),
        );
        registry.register("yoke_kine_watches", "Open watches", metrics.watches.clone());
        registry.register(
            "etcd_server_has_leader",
            "Whether the lease of the writer, here or in another process, holds",
            metrics.has_leader.clone(),
        );
        registry.register(
            "etcd_server_is_leader",
            "Whether this process is the writer",
            metrics.is_leader.clone(),
        );
        registry.register(
            "etcd_server_leader_changes_seen",
            "Writers that began",
            metrics.leader_changes.clone(),
        );
        registry.register(
            "etcd_mvcc_db_total_size_in_bytes",
            "What is kept, history included",
            metrics.bytes.clone(),
        );
        registry.register(
            "etcd_server_quota_backend_bytes",
            "Most that may be kept",
            metrics.quota.clone(),
        );
        registry.register(
            "etcd_debugging_mvcc_current_revision",
            "Newest stored revision",
            metrics.revision.clone(),
        );
        Self {
            registry: Arc::new(registry),
            ..metrics
        }
    }

    /// All of it as text; the gauges are read from the store now.
    pub(crate) fn text(&self, store: Option<&Store>) -> String {
        if let Some(store) = store {
            let state = store.read();
            self.revision.set(state.mvcc.visible());
            self.bytes.set(state.mvcc.bytes().cast_signed());
            self.keys.set(state.mvcc.keys() as i64);
            self.history.set(state.mvcc.history_len() as i64);
            self.quota.set(store.quota.cast_signed());
            self.watches.set(store.hub.watches() as i64);
            let writes = store.is_writer();
            let led = if writes {
                store.lease_holds()
            } else {
                store.has_leader()
            };
            self.has_leader.set(i64::from(led));
            self.is_leader.set(i64::from(writes));
            self.full.set(i64::from(store.is_full()));
            self.sequence.set(store.sequence().cast_signed());
        }
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Words of PromQL and labels, which are in expressions besides metrics.
    const WORDS: [&str; 17] = [
        "by",
        "count",
        "group_right",
        "histogram_quantile",
        "increase",
        "le",
        "max",
        "namespace",
        "on",
        "or",
        "pod",
        "rate",
        "sum",
        "vector",
        "1h",
        "__rate_interval",
        "label_values",
    ];

    fn dashboard() -> Value {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dashboards/kine-nats.json");
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    }

    /// All expressions and queries.
    fn expressions(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text) if name == "expr" || name == "query" => into.push(text.clone()),
                        _ => expressions(value, into),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| expressions(value, into)),
            _ => {}
        }
    }

    #[test]
    fn the_dashboard_shows_what_there_is_and_all_of_it() {
        let metrics = Metrics::new();
        // A histogram has its buckets from the first value on.
        metrics.commit.observe(0.001);
        let text = metrics.text(None);
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let exported: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
        let mut found = Vec::new();
        expressions(&dashboard(), &mut found);
        assert!(found.len() > 15, "{found:?}");
        let mut shown = BTreeSet::new();
        for expression in found.iter().filter(|expression| *expression != "prometheus") {
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|word| !word.is_empty() && word.parse::<f64>().is_err()) {
                if !WORDS.contains(&word) {
                    assert!(
                        exported.contains(word),
                        "{word} of {expression:?} is not one of {exported:?}"
                    );
                    shown.insert(word);
                }
            }
        }
        let same_as = |metric: &&str| {
            // The revision in etcd's name, and the rest of the histogram.
            let others = ["etcd_debugging_mvcc_current_revision", "yoke_kine_commit_seconds_sum"];
            others.contains(metric) || *metric == "yoke_kine_commit_seconds_count"
        };
        let missing: Vec<_> = exported.iter().filter(|metric| !shown.contains(*metric)).collect();
        let missing: Vec<_> = missing.into_iter().filter(|metric| !same_as(metric)).collect();
        assert!(missing.is_empty(), "not on the dashboard: {missing:?}");
    }

    #[test]
    fn the_panels_lie_beside_each_other() {
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().unwrap();
        let mut taken = BTreeSet::new();
        for panel in panels {
            let number = |field: &str| panel["gridPos"][field].as_u64().unwrap();
            for x in number("x")..number("x") + number("w") {
                for y in number("y")..number("y") + number("h") {
                    assert!(x < 24 && taken.insert((x, y)), "{}", panel["title"]);
                }
            }
            assert!(panel["description"].as_str().is_some_and(|text| text.len() > 20));
        }
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len());
    }
}
