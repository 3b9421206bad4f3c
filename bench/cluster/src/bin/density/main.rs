//! `make bench-density`: many Clusters on one machine, most of them asleep, on the running stack.
//!
//! ```text
//! run ─▶ fleet: Tenants and Clusters, created at a fixed rate ─▶ when each was settled
//!     ├▶ costs: CPU time and memory of the host's processes, at rest, before and after
//!     ├▶ wake:  an unmodified kubectl sends requests to sleeping Clusters, and to all awake ones
//!     └▶ restart: the operator is killed; its writes after that, from the host's audit log
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the tables are the result")]

mod arguments;
mod costs;
mod fleet;
mod progress;
mod restart;
mod table;
mod wake;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser as _;
use yoke_e2e::Stack;

use crate::arguments::Arguments;
use crate::costs::Span;
use crate::fleet::Fleet;
use crate::progress::say;

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
