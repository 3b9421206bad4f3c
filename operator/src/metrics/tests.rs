use yoke_test_support::page::{check_section, metrics_table};

use super::*;
use crate::cluster::metrics::ClusterMetrics;
use crate::csr_signer::SignerMetrics;
use crate::csr_signer::refusal::Refusal;
use crate::host_api::cache::CacheMetrics;
use crate::host_nodes::drain::TakeoverMetrics;
use crate::host_nodes::loss::LossMetrics;
use crate::leader_election::LeaderMetrics;
use crate::node_reaper::ReaperMetrics;

/// Counts once in each family: a family without samples is not in the text of a scrape.
#[test]
fn the_book_lists_every_metric() {
    let registry = Metrics::new("operator");
    let reconciles = ReconcileMetrics::new(&registry);
    reconciles.reconciled("cluster", 0.1);
    reconciles.failed("cluster", Reason::ReconcileFailed);
    CacheMetrics::new(&registry).undecodable("Cluster");
    ClusterMetrics::new(&registry).count_clusters(&[]);
    let signer = SignerMetrics::new(&registry);
    signer.signed("client");
    signer.refused_to_sign(Refusal::RequestInvalid);
    TakeoverMetrics::new(&registry);
    LossMetrics::new(&registry);
    ReaperMetrics::new(&registry);
    LeaderMetrics::new(&registry);
    let command = "cargo test -p yoke-operator --lib metrics";
    let text = registry.to_text().unwrap_or_default();
    check_section("reference/metrics.md", "operator", &metrics_table(&text), command);
}
