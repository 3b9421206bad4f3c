use super::*;
use std::collections::BTreeSet;
use yoke_test_support::Dashboard;
use yoke_test_support::page::{check_section, metrics_table};

const DASHBOARD: &str = "kine-nats.json";
/// PromQL keywords and labels, which occur in expressions besides metrics.
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

#[test]
fn the_dashboard_shows_every_metric() {
    let metrics = Metrics::new();
    metrics.committed(Duration::from_millis(1));
    drop(metrics.calls.start("/etcdserverpb.KV/Put"));
    let text = metrics.text(None);
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next());
    let exported: BTreeSet<String> = names.map(str::to_owned).collect();
    let shown = Dashboard::read(DASHBOARD).shown(&exported, &WORDS);
    // Metrics with etcd's names are for etcd's dashboards; the others are parts of the histogram.
    let rest = ["yoke_kine_commit_seconds_sum", "yoke_kine_commit_seconds_count"];
    let own = exported
        .iter()
        .filter(|name| name.starts_with("yoke_kine_") && !rest.contains(&name.as_str()));
    let missing: Vec<_> = own.filter(|metric| !shown.contains(*metric)).collect();
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");
}

#[test]
fn panels_do_not_overlap() {
    Dashboard::read(DASHBOARD).check_panels();
}

#[test]
fn a_write_without_an_answer_counts_as_failed() {
    let metrics = Metrics::new();
    let (answered, lost) = (metrics.propose(), metrics.propose());
    assert_eq!((metrics.pending.get(), metrics.failed.get()), (2, 0));
    answered.answered();
    assert_eq!((metrics.pending.get(), metrics.failed.get()), (1, 0));
    drop(lost);
    assert_eq!((metrics.pending.get(), metrics.failed.get()), (0, 1));
}

#[test]
fn the_book_lists_every_metric() {
    let metrics = Metrics::new();
    metrics.committed(Duration::from_millis(1));
    drop(metrics.calls.start("/etcdserverpb.KV/Put"));
    metrics
        .read
        .member
        .get_or_create(&[("server_id", "1".to_owned())])
        .set(1);
    let command = "cargo test -p yoke-kine-nats --lib metrics";
    check_section(
        "reference/metrics.md",
        "kine-nats",
        &metrics_table(&metrics.text(None)),
        command,
    );
}
