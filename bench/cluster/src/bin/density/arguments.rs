//! Arguments of the program.

/// Measures the cost of many sleeping Clusters on the running stack. Removes the Clusters at the
/// end.
#[derive(Debug, clap::Parser)]
#[command(max_term_width = 110)]
pub(crate) struct Arguments {
    /// Number of Clusters.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) clusters: usize,
    /// Number of awake Clusters among them. The others are created asleep.
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) awake: usize,
    /// Number of Clusters that are created per second.
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = parse_rate)]
    pub(crate) rate: f64,
    /// Number of Tenants that share the Clusters.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) tenants: usize,
    /// Number of sleeping Clusters that are woken one after the other, twice each.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) wakes: usize,
    /// Number of sleeping Clusters that are woken at the same time.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) together: usize,
    /// Duration of each measurement at rest.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) rest: u64,
    /// Keep the Clusters for inspection. The next run removes them.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Measure the Clusters that an earlier run left, with the same numbers, instead of creating
    /// new ones.
    #[arg(long)]
    pub(crate) kept: bool,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=1000.0).contains(rate));
    rate.ok_or_else(|| "it is to be a number from 0.001 to 1000".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    #[test]
    fn without_arguments_it_is_a_thousand_clusters() {
        Arguments::command().debug_assert();
        let arguments = Arguments::try_parse_from(["x"]).unwrap();
        assert_eq!((arguments.clusters, arguments.awake), (1000, 30));
    }

    #[test]
    fn a_rate_is_more_than_nothing() {
        for (rate, expected) in [
            ("20", true),
            ("0.5", true),
            ("0", false),
            ("-1", false),
            ("1e-300", false),
            ("NaN", false),
            ("inf", false),
            ("many", false),
        ] {
            let parsed = Arguments::try_parse_from(["x", &format!("--rate={rate}")]);
            assert_eq!(parsed.is_ok(), expected, "{rate}");
        }
        let error = Arguments::try_parse_from(["x", "--rate=0"]).unwrap_err().to_string();
        assert!(error.contains("a number from 0.001 to 1000"), "{error}");
    }
}
