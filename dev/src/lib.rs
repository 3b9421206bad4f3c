//! The development stack: a host cluster of real components with Yoke on it, on one Linux computer.
//! Each node of the host cluster has its own network namespace.
//!
//! ```text
//!   make up ─▶ steps ─▶ recipes (builds) ─▶ network, credentials ─▶ supervisor ─▶ host cluster ─▶ images ─▶ Yoke
//!   make host-node ─▶ nodes ─▶ one more node in the host cluster
//!   make worker ─▶ workers ─▶ one more worker in a tenant's cluster
//! ```
//!
//! Everything that the stack creates is below `.dev/` (see [`layout`]). So it can be found again,
//! or removed, after any process was killed.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::host_cluster::HostStore;
use crate::layout::{FIRST_NODE, Layout};
use crate::recipes::rust::Profile;
use crate::releases::Releases;
use crate::steps::Step;
use crate::supervisor::Request;

pub mod cgroups;
pub mod command;
pub mod credentials;
pub mod demo;
pub mod down;
pub mod environment;
mod files;
pub mod host_cluster;
pub mod images;
pub mod kernel;
pub mod kubectl;
pub mod layout;
pub mod leftovers;
pub mod names;
pub mod network;
pub mod nodes;
pub mod recipes;
pub mod releases;
pub mod ssh;
pub mod status;
pub mod steps;
pub mod supervisor;
pub mod up;
pub mod versions;
pub mod workers;
pub mod yoke;

/// Yoke's development stack.
#[derive(Debug, Parser)]
#[command(name = "yoke-dev")]
struct Args {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build missing binaries, and start everything that does not run.
    Up {
        /// Datastore of the host API: kine-nats or etcd.
        #[arg(long, env = "HOST_STORE", default_value = "kine-nats")]
        host_store: HostStore,
        /// Last step to run.
        #[arg(long, default_value = "demo")]
        until: Step,
        /// Step to leave out; its result must exist already. Can be repeated.
        #[arg(long)]
        skip: Vec<Step>,
        /// Cargo profile for this workspace's binaries.
        #[arg(long, env = "YOKE_PROFILE", default_value = "dev")]
        profile: Profile,
        /// Kubernetes versions for tenants, in addition to the host's own; separated by spaces.
        #[arg(long, env = "YOKE_VERSIONS", default_value = "")]
        versions: Releases,
        /// Build metrics-server for workers. This takes minutes.
        #[arg(long, env = "YOKE_METRICS_SERVER")]
        metrics_server: bool,
    },
    /// Stop and remove everything except the build cache.
    Down,
    /// Write the images of this workspace's binaries to `.dev/images`.
    Images {
        /// Cargo profile for the binaries.
        #[arg(long, env = "YOKE_PROFILE", default_value = "release")]
        profile: Profile,
    },
    /// Add a worker to the demo cluster.
    Worker(workers::Options),
    /// Drain a worker and remove it with all its files.
    RemoveWorker {
        /// Name of the worker's Node.
        name: String,
    },
    /// Add a node to the host cluster.
    HostNode(nodes::Options),
    /// Kill all processes of an added node, including its pods.
    KillHostNode {
        /// Number of the node, at least 2.
        number: u8,
    },
    /// Disconnect an added node from all other nodes.
    CutHostNode {
        /// Number of the node, at least 2.
        number: u8,
        /// Reconnect the node instead.
        #[arg(long)]
        mend: bool,
    },
    /// Remove an added node.
    RemoveHostNode {
        /// Number of the node, at least 2.
        number: u8,
    },
    /// Show the state of every component; exit 1 if one is down.
    Status,
    /// Print the pid of a supervised process.
    Pid {
        /// Name of the process, as shown by `status`.
        name: String,
    },
    /// Stop and start a supervised process.
    Restart {
        /// Name of the process, as shown by `status`.
        name: String,
    },
    /// Supervise processes (started by `up`).
    #[command(hide = true)]
    Supervise {
        /// Do not start another daemon if this one is killed.
        #[arg(long)]
        unguarded: bool,
        /// Number of the node whose processes to supervise.
        #[arg(long, default_value_t = FIRST_NODE)]
        node: u8,
    },
}

/// Parses the command line and runs the command.
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
            steps::print_error(&format!("yoke-dev: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    let layout = Layout::discover()?;
    match verb {
        Verb::Up {
            host_store,
            until,
            skip,
            profile,
            versions,
            metrics_server,
        } => {
            let _lock = layout.lock()?;
            let options = up::Options {
                store: host_store,
                profile,
                releases: versions,
                metrics_server,
                plan: steps::plan(until, &skip),
            };
            // The reporter has shown the failed step already.
            let done = up::up(&layout, options).await.is_ok();
            Ok(to_exit_code(done))
        }
        Verb::Down => {
            let _lock = layout.lock()?;
            down::down(&layout).await.map(|()| ExitCode::SUCCESS)
        }
        Verb::Images { profile } => export_images(&layout, profile).await,
        Verb::Worker(options) => workers::add(&layout, &options).await.map(to_exit_code),
        Verb::RemoveWorker { name } => workers::remove(&layout, &name).await.map(|()| ExitCode::SUCCESS),
        Verb::HostNode(options) => {
            let _lock = layout.lock()?;
            let added = nodes::add(&layout, &options).await?;
            Ok(to_exit_code(added))
        }
        Verb::KillHostNode { number } => nodes::kill(&layout, number).await.map(|()| ExitCode::SUCCESS),
        Verb::CutHostNode { number, mend } => {
            match mend {
                true => nodes::reconnect(&layout, number).await?,
                false => nodes::disconnect(&layout, number).await?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::RemoveHostNode { number } => {
            let _lock = layout.lock()?;
            nodes::remove(&layout, number).await.map(|()| ExitCode::SUCCESS)
        }
        Verb::Status => status::status(&layout).await.map(to_exit_code),
        Verb::Pid { name } => print_pid(&layout, &name).await,
        Verb::Restart { name } => {
            supervisor::client::request(&layout, &Request::Restart(name)).await?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Supervise { unguarded, node } => supervise(layout.for_node(node), unguarded).await,
    }
}

fn to_exit_code(success: bool) -> ExitCode {
    match success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

async fn export_images(layout: &Layout, profile: Profile) -> anyhow::Result<ExitCode> {
    let _lock = layout.lock()?;
    let (files, digests) = images::export::export(layout, profile).await?;
    for file in files {
        steps::print_line(&file.display().to_string());
    }
    let value = serde_json::json!({"worker": {"digests": digests}});
    steps::print_line(&format!("value of the chart, for join commands:\n{value}"));
    Ok(ExitCode::SUCCESS)
}

async fn supervise(layout: Layout, unguarded: bool) -> anyhow::Result<ExitCode> {
    if unguarded {
        supervisor::daemon::run(layout).await?;
    } else {
        supervisor::daemon::guard(&layout).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn print_pid(layout: &Layout, name: &str) -> anyhow::Result<ExitCode> {
    let services = supervisor::client::processes(layout)
        .await
        .context("the supervisor does not answer: `make up` starts it")?;
    let service = services.into_iter().find(|service| service.name == name);
    let pid = service
        .and_then(|service| service.pid)
        .with_context(|| format!("{name} is not running"))?;
    steps::print_line(&pid.to_string());
    Ok(ExitCode::SUCCESS)
}
