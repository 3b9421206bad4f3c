use super::*;
use serde_json::Value;
use std::collections::BTreeSet;

/// Words of PromQL and labels, which are in expressions besides metrics.
const WORDS: [&str; 21] = [
    "and",
    "by",
    "count",
    "grpc_code",
    "grpc_method",
    "grpc_type",
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
    metrics.committed(Duration::from_millis(1));
    drop(metrics.calls.begin("/etcdserverpb.KV/Put"));
    let text = metrics.text(None);
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let exported: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
    let mut found = Vec::new();
    expressions(&dashboard(), &mut found);
    assert!(found.len() > 15, "{found:?}");
    let mut shown = BTreeSet::new();
    for expression in found.iter().filter(|expression| *expression != "prometheus") {
        let unquoted: String = expression.split('"').step_by(2).collect();
        let words = unquoted.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| !word.is_empty() && word.parse::<f64>().is_err()) {
            if !WORDS.contains(&word) {
                let known = exported.get(word);
                let known = known.unwrap_or_else(|| panic!("{word} of {expression:?} is not one of {exported:?}"));
                shown.insert(*known);
            }
        }
    }
    // What has a name of etcd's is for etcd's dashboards; and the rest of the histogram.
    let rest = ["yoke_kine_commit_seconds_sum", "yoke_kine_commit_seconds_count"];
    let own = exported
        .iter()
        .filter(|name| name.starts_with("yoke_kine_") && !rest.contains(name));
    let missing: Vec<_> = own.filter(|metric| !shown.contains(*metric)).collect();
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

#[test]
fn a_write_is_pending_until_it_ends_and_has_failed_without_an_answer() {
    let metrics = Metrics::new();
    let (answered, lost) = (metrics.propose(), metrics.propose());
    assert_eq!((metrics.pending.get(), metrics.failed.get()), (2, 0));
    answered.answered();
    assert_eq!((metrics.pending.get(), metrics.failed.get()), (1, 0));
    drop(lost);
    assert_eq!((metrics.pending.get(), metrics.failed.get()), (0, 1));
}
