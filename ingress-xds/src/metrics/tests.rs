use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use yoke_test_support::Dashboard;
use yoke_test_support::page::{check_section, metrics_table};

use super::*;
use crate::snapshot::Snapshot;
use crate::snapshot::entries::entry;
use crate::snapshot::resource::resource_name;
use crate::traffic::series::{Record, RecordKind};

const DASHBOARD: &str = "ingress.json";
/// A metric of Envoy; a test with the real Envoy shows that it exists.
const ENVOYS: &str = "envoy_access_logs_grpc_access_log_logs_dropped";
/// Words in the dashboard's expressions that are not metrics.
const WORDS: [&str; 18] = [
    "answer",
    "by",
    "cluster",
    "code",
    "label_values",
    "max",
    "min",
    "outcome",
    "rate",
    "result",
    "sum",
    "tenant",
    "time",
    "topk",
    "type",
    "verdict",
    "__rate_interval",
    "datasource",
];

/// The text of a scrape, once everything has been counted.
fn scraped() -> String {
    let registry = Registry::new(PROCESS);
    let metrics = Metrics::new(&registry);
    metrics.count_response(ResourceKind::Cluster, 1);
    metrics.count_refusal(ResourceKind::Cluster);
    metrics.count_verdict("allowed");
    metrics.count_request("allowed");
    metrics.count_handshake(true);
    metrics.count_reload(true);
    metrics.count_base_change(true);
    metrics.count_entry(true);
    metrics.count_activator_answer("waking");
    metrics.count_activator_handshake(true);
    metrics.count_wake("told");
    metrics.count_wake_write(true);
    let served = entry("a", &["a"], "1", "1");
    for kind in [RecordKind::Connection, RecordKind::Request { code: 200 }] {
        assert!(served.traffic.count(&Record {
            kind,
            verdict: "allowed",
            received: 1,
            sent: 1,
            duration: Duration::from_secs(1),
        }));
    }
    let mut snapshot = Snapshot::default();
    snapshot.set(&resource_name("a"), Some(served));
    let (_sender, snapshots) = watch::channel(Some(Arc::new(snapshot)));
    Metrics::register_traffic(&registry, TrafficCollector::new(snapshots, Arc::default()));
    registry.to_text().unwrap()
}

/// The names of all samples of [`scraped`].
fn exported() -> BTreeSet<String> {
    let text = scraped();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_dashboard_shows_what_there_is_and_all_of_it() {
    let mut exported = exported();
    exported.insert(ENVOYS.to_owned());
    let shown = Dashboard::read(DASHBOARD).shown(&exported, &WORDS);
    let missing: Vec<_> = exported.difference(&shown).collect();
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");
}

#[test]
fn the_panels_lie_beside_each_other() {
    Dashboard::read(DASHBOARD).check_panels();
}

/// Every exported metric is documented.
#[test]
fn traffic_metrics_have_descriptions() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/admin/monitoring.md");
    let text = std::fs::read_to_string(file).unwrap();
    for name in exported().iter().filter(|name| name.contains("_cluster")) {
        assert!(text.contains(name.as_str()), "{name}");
    }
    assert!(text.contains(ENVOYS));
}

#[test]
fn the_book_lists_what_there_is() {
    let command = "cargo test -p yoke-ingress-xds --lib metrics";
    check_section(
        "reference/metrics.md",
        "ingress-xds",
        &metrics_table(&scraped()),
        command,
    );
}
