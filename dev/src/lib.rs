//! The development stack: a host cluster of real components with Yoke on it, in one network namespace of one machine.
//!
//! ```text
//!   make up ─▶ steps ─▶ recipes (what is built) ─▶ network, credentials ─▶ supervisor ─▶ host cluster ─▶ images ─▶ Yoke
//! ```
//!
//! Everything that it makes is below `.dev/` (see [`layout`]) and is found again, or removed, after it was killed.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::host_cluster::HostStore;
use crate::layout::Layout;
use crate::steps::Step;

pub mod cgroups;
pub mod command;
pub mod credentials;
pub mod host_cluster;
pub mod images;
pub mod kubectl;
pub mod layout;
pub mod network;
pub mod recipes;
pub mod steps;
pub mod supervisor;
pub mod up;

/// Yoke's development stack.
#[derive(Debug, Parser)]
#[command(name = "yoke-dev")]
struct Args {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build what is missing and start what does not run.
    Up {
        /// What keeps the host API's state: kine-nats or etcd.
        #[arg(long, env = "HOST_STORE", default_value = "kine-nats")]
        host_store: HostStore,
        /// Stop after this step.
        #[arg(long, default_value = "demo")]
        until: Step,
        /// Leave out a step; what it makes must be there already.
        #[arg(long)]
        skip: Vec<Step>,
    },
    /// Keep processes running (started by `up`).
    #[command(hide = true)]
    Supervise {
        /// Do not start another daemon when this one is killed.
        #[arg(long)]
        unguarded: bool,
    },
}

/// Parses the command line and does what it asks.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let done = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")
        .and_then(|runtime| runtime.block_on(run(args.command)));
    match done {
        Ok(code) => code,
        Err(error) => {
            steps::say(&format!("yoke-dev: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    let layout = Layout::discover()?;
    match verb {
        // The failed step has been shown already.
        Verb::Up {
            host_store,
            until,
            skip,
        } => Ok(match up::up(&layout, host_store, steps::plan(until, &skip)).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }),
        Verb::Supervise { unguarded: false } => supervisor::daemon::guard(&layout).await.map(|()| ExitCode::SUCCESS),
        Verb::Supervise { unguarded: true } => supervisor::daemon::run(layout).await.map(|()| ExitCode::SUCCESS),
    }
}
