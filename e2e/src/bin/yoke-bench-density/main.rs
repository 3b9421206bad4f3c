//! `make bench-density`: many Clusters on one machine, most of them asleep, on the running stack.
//!
//! ```text
//! run ─▶ fleet: Tenants and Clusters, created at a fixed rate ─▶ when each was settled
//!     ├▶ costs: CPU time and memory of the host's processes, at rest, before and after
//!     ├▶ wake:  an unmodified kubectl sends requests to sleeping Clusters, and to all awake ones
//!     └▶ restart: the operator is killed; its writes after that, from the host's audit log
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the tables are the result")]

mod costs;
mod fleet;
mod restart;
mod table;
mod wake;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser as _;
use yoke_e2e::Stack;

use crate::costs::Span;
use crate::fleet::Fleet;

/// Measures the cost of many sleeping Clusters on the running stack. Removes the Clusters at the
/// end.
#[derive(Debug, clap::Parser)]
#[command(max_term_width = 110)]
struct Arguments {
    /// Number of Clusters.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    clusters: usize,
    /// Number of awake Clusters among them. The others are created asleep.
    #[arg(long, value_name = "N", default_value_t = 30)]
    awake: usize,
    /// Number of Clusters that are created per second.
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = parse_rate)]
    rate: f64,
    /// Number of Tenants that share the Clusters.
    #[arg(long, value_name = "N", default_value_t = 10)]
    tenants: usize,
    /// Number of sleeping Clusters that are woken one after the other, twice each.
    #[arg(long, value_name = "N", default_value_t = 10)]
    wakes: usize,
    /// Number of sleeping Clusters that are woken at the same time.
    #[arg(long, value_name = "N", default_value_t = 10)]
    together: usize,
    /// Duration of each measurement at rest.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    rest: u64,
    /// Keep the Clusters for inspection. The next run removes them.
    #[arg(long)]
    keep: bool,
    /// Measure the Clusters that an earlier run left, with the same numbers, instead of creating
    /// new ones.
    #[arg(long)]
    kept: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let rest = Duration::from_secs(arguments.rest);
    let stack = Stack::connect().await?;
    let fleet = Fleet::new(&stack, &arguments)?;
    let without = if arguments.kept {
        let unsettled = fleet.count_unsettled().await?;
        ensure!(
            unsettled == 0,
            "{unsettled} Clusters are not as an earlier run left them"
        );
        None
    } else {
        Some(make(&fleet, rest).await?)
    };
    say("waiting until the machine is at rest");
    Span::wait_for_rest(&stack).await?;
    say("what the machine costs with them");
    let with = Span::measure(&stack, rest).await?;
    match without {
        Some(without) => costs::print(&without, &with, fleet.count()),
        None => costs::print_with(&with, fleet.count()),
    }
    say("waking some");
    wake::measure(&fleet, arguments.wakes, arguments.together).await?;
    say("killing the operator");
    restart::measure(&fleet, rest).await?;
    if arguments.keep {
        return Ok(());
    }
    say("removing them");
    let begun = Instant::now();
    fleet.remove().await?;
    println!("\nAll were gone after {:.0} s.", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Creates the Clusters. Returns the resource usage before that.
async fn make(fleet: &Fleet, rest: Duration) -> Result<Span> {
    fleet.prepare().await?;
    say("what the machine costs without them");
    let without = Span::measure(&fleet.stack, rest).await?;
    say("making Clusters");
    fleet.make().await?.print();
    Ok(without)
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=1000.0).contains(rate));
    rate.ok_or_else(|| "it is to be a number from 0.001 to 1000".to_owned())
}

/// Prints the next step for the user.
fn say(what: &str) {
    eprintln!("-- {what}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

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
