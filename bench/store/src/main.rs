//! `make bench-store`, `make bench-fleet` and `make bench-idle`: measures kine-nats beside the
//! stores that it replaces, and a control plane on it, in one run on one machine.
//!
//! ```text
//! stores (kinds of stores) ── process (on the servers' cores) ──► client (etcd's gRPC, Kubernetes' requests)
//!                                                                   ▲
//! run (order of the steps) ──► phases, watches, starts, takeovers ── load (on the cores of the load) ──► table
//!                          └──► etcd_benchmark (etcd's own client, as a program) ──────────────────────────┘
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the tables are the result")]

mod client;
mod etcd_benchmark;
mod fleet;
mod idle;
mod load;
mod phases;
mod process;
mod run;
mod starts;
mod stores;
mod table;
mod takeovers;
mod watches;

use clap::Parser as _;

/// Measures kine-nats beside other stores.
#[derive(Debug, clap::Parser)]
#[command(max_term_width = 110)]
enum Args {
    Stores(run::Args),
    Fleet(fleet::Args),
    Idle(idle::Args),
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Args::Stores(args) = &args {
        process::pin_self(&args.load_cores)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match args {
            Args::Stores(args) => run::run(&args).await,
            Args::Fleet(args) => fleet::run(&args).await,
            Args::Idle(args) => idle::run(&args).await,
        }
    })
}
