//! Reads metrics in the format of Prometheus.

use anyhow::{Context as _, Result};

/// The value of a series, which is a metric with all its labels. `None` if the page does not have
/// the series.
pub fn find(page: &str, series: &str) -> Result<Option<f64>> {
    let found = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found
        .map(|value| value.trim().parse().with_context(|| format!("reading {series}")))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "# HELP a_total what\na_total{type=\"b\"} 3\na_total_more 4\na 1.5\n";
        assert_eq!(find(page, "a_total{type=\"b\"}").unwrap(), Some(3.0));
        assert_eq!(find(page, "a").unwrap(), Some(1.5));
        assert_eq!(find(page, "a_total").unwrap(), None);
    }
}
