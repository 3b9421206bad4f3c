use yoke_test_support::page::{check_section, metrics_table};

use super::*;

/// Counts once in each family: one without samples is not in the text of a scrape.
#[test]
fn the_book_lists_what_there_is() {
    let registry = Registry::new(PROCESS);
    let metrics = Metrics::new(&registry);
    metrics.refused.get_or_create(&ReasonLabel { reason: "full" }).inc();
    metrics.count_login(true);
    metrics.count_refused_token("token");
    metrics.count_command("clusters", "ok");
    let command = "cargo test -p yoke-ssh-ui --lib metrics";
    let text = registry.to_text().unwrap_or_default();
    check_section("reference/metrics.md", "ssh-ui", &metrics_table(&text), command);
}
