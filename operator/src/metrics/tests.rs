use yoke_test_support::page::{check_section, metrics_table};

use super::*;

/// Counts once in each family: one without samples is not in the text of a scrape.
#[test]
fn the_book_lists_what_there_is() {
    let registry = Metrics::new("operator");
    let metrics = OperatorMetrics::new(&registry);
    metrics.reconciled("cluster", 0.1);
    metrics.failed("cluster", Reason::ReconcileFailed);
    metrics.undecodable("Cluster");
    metrics.count_clusters(&[]);
    metrics.signed.get_or_create(&PurposeLabel { purpose: "client" }).inc();
    metrics
        .sign_refusals
        .get_or_create(&RefusalLabel { reason: "Name" })
        .inc();
    let command = "cargo test -p yoke-operator --lib metrics";
    let text = registry.to_text().unwrap_or_default();
    check_section("reference/metrics.md", "operator", &metrics_table(&text), command);
}
