use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use super::*;
use crate::snapshot::entries::entry;
use crate::snapshot::{Snapshot, resource_name};
use crate::traffic::{Kind as Ended, Record};

/// Of Envoy's own; a test on the real one shows that it has it.
const ENVOYS: &str = "envoy_access_logs_grpc_access_log_logs_dropped";
/// What is not a metric in the dashboard's expressions.
const WORDS: [&str; 17] = [
    "by",
    "cluster",
    "code",
    "label_values",
    "max",
    "min",
    "rate",
    "result",
    "sum",
    "tenant",
    "time",
    "topk",
    "type",
    "verdict",
    "__rate_interval",
    "prometheus",
    "datasource",
];

fn dashboard() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dashboards/ingress.json");
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

/// The names of all samples, once everything has been counted.
fn exported() -> BTreeSet<String> {
    let registry = Registry::new(PROCESS);
    let metrics = Metrics::new(&registry);
    metrics.count_response(Kind::Cluster, 1);
    metrics.count_refusal(Kind::Cluster);
    metrics.count_verdict("allowed");
    metrics.count_request("allowed");
    metrics.count_handshake(true);
    metrics.count_reload(true);
    metrics.count_base_change(true);
    metrics.count_entry(true);
    let served = entry("a", &["a"], "1", "1");
    for kind in [Ended::Connection, Ended::Request { code: 200 }] {
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
    Metrics::show_traffic(&registry, Shown::new(snapshots, Arc::default()));
    let text = registry.to_text().unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_dashboard_shows_what_there_is_and_all_of_it() {
    let mut exported = exported();
    exported.insert(ENVOYS.to_owned());
    let mut found = Vec::new();
    expressions(&dashboard(), &mut found);
    assert!(found.len() > 15, "{found:?}");
    let mut shown = BTreeSet::new();
    for expression in &found {
        let unquoted: String = expression.split('"').step_by(2).collect();
        let words = unquoted.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let words = words.filter(|word| !word.is_empty() && word.parse::<f64>().is_err());
        for word in words.filter(|word| !WORDS.contains(word)) {
            assert!(
                exported.contains(word),
                "{word} of {expression:?} is none of {exported:?}"
            );
            shown.insert(word.to_owned());
        }
    }
    let missing: Vec<_> = exported.difference(&shown).collect();
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

/// What a scrape says is documented.
#[test]
fn what_is_counted_of_clusters_is_described() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring.md");
    let text = std::fs::read_to_string(file).unwrap();
    for name in exported().iter().filter(|name| name.contains("_cluster")) {
        assert!(text.contains(name.as_str()), "{name}");
    }
    assert!(text.contains(ENVOYS));
}
