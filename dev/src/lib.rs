//! The development stack: a host cluster of real components with Yoke on it, in one network namespace of one machine.
//!
//! ```text
//!   make up ─▶ steps ─▶ recipes (what is built) ─▶ network, credentials ─▶ supervisor ─▶ host cluster ─▶ images ─▶ Yoke
//!   make host-node ─▶ nodes ─▶ the host cluster has one more
//!   make worker ─▶ workers ─▶ a tenant's cluster has one more
//! ```
//!
//! Everything that it makes is below `.dev/` (see [`layout`]) and is found again, or removed, after it was killed.

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
pub mod down;
pub mod environment;
pub mod host_cluster;
pub mod images;
pub mod kernel;
pub mod kubectl;
pub mod layout;
pub mod leftovers;
pub mod network;
pub mod nodes;
pub mod recipes;
pub mod releases;
pub mod ssh;
pub mod status;
pub mod steps;
pub mod supervisor;
pub mod up;
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
        /// How this workspace's binaries are built.
        #[arg(long, env = "YOKE_PROFILE", default_value = "dev")]
        profile: Profile,
        /// Releases of Kubernetes that tenants can have beside the host's own, with blanks between them.
        #[arg(long, env = "YOKE_VERSIONS", default_value = "")]
        versions: Releases,
        /// Build metrics-server for workers, which takes minutes.
        #[arg(long, env = "YOKE_METRICS_SERVER")]
        metrics_server: bool,
    },
    /// Stop and remove everything but the build cache.
    Down,
    /// Write the images of this workspace's binaries to `.dev/images`.
    Images {
        /// How they are built.
        #[arg(long, env = "YOKE_PROFILE", default_value = "release")]
        profile: Profile,
    },
    /// Add a worker to the demo cluster.
    Worker(workers::Options),
    /// Drain a worker, and remove all of it.
    RemoveWorker {
        /// The name of its Node.
        name: String,
    },
    /// Add a node to the host cluster.
    HostNode(nodes::Options),
    /// Kill all that runs on a node that was added, its pods too.
    KillHostNode {
        /// Its number, from 2 on.
        number: u8,
    },
    /// Cut a node that was added off from all others.
    CutHostNode {
        /// Its number, from 2 on.
        number: u8,
        /// End that.
        #[arg(long)]
        mend: bool,
    },
    /// Remove a node that was added.
    RemoveHostNode {
        /// Its number, from 2 on.
        number: u8,
    },
    /// Show how every component is; exit 1 when one does not work.
    Status,
    /// Print the pid of a supervised process.
    Pid {
        /// Its name, as `status` shows it.
        name: String,
    },
    /// Stop and start a supervised process.
    Restart {
        /// Its name, as `status` shows it.
        name: String,
    },
    /// Keep processes running (started by `up`).
    #[command(hide = true)]
    Supervise {
        /// Do not start another daemon when this one is killed.
        #[arg(long)]
        unguarded: bool,
        /// The number of the node whose processes they are.
        #[arg(long, default_value_t = FIRST_NODE)]
        node: u8,
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
            steps::complain(&format!("yoke-dev: {error:#}"));
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
            // The failed step has been shown already.
            let done = up::up(&layout, options).await.is_ok();
            Ok(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Verb::Down => {
            let _lock = layout.lock()?;
            down::down(&layout).await.map(|()| ExitCode::SUCCESS)
        }
        Verb::Images { profile } => {
            let _lock = layout.lock()?;
            let (files, digests) = images::export(&layout, profile).await?;
            for file in files {
                steps::say(&file.display().to_string());
            }
            let value = serde_json::json!({"worker": {"digests": digests}});
            steps::say(&format!("value of the chart, for join lines:\n{value}"));
            Ok(ExitCode::SUCCESS)
        }
        Verb::Worker(options) => {
            let added = workers::add(&layout, &options).await?;
            Ok(if added { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Verb::RemoveWorker { name } => workers::remove(&layout, &name).await.map(|()| ExitCode::SUCCESS),
        Verb::HostNode(options) => {
            let _lock = layout.lock()?;
            let added = nodes::add(&layout, &options).await?;
            Ok(if added { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Verb::KillHostNode { number } => nodes::kill(&layout, number).await.map(|()| ExitCode::SUCCESS),
        Verb::CutHostNode { number, mend } => nodes::cut(&layout, number, mend).await.map(|()| ExitCode::SUCCESS),
        Verb::RemoveHostNode { number } => {
            let _lock = layout.lock()?;
            nodes::remove(&layout, number).await.map(|()| ExitCode::SUCCESS)
        }
        Verb::Status => {
            let well = status::status(&layout).await?;
            Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Verb::Pid { name } => {
            let services = supervisor::client::processes(&layout)
                .await
                .context("the supervisor does not answer")?;
            let service = services.into_iter().find(|service| service.name == name);
            let pid = service
                .and_then(|service| service.pid)
                .with_context(|| format!("{name} does not run"))?;
            steps::say(&pid.to_string());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Restart { name } => {
            supervisor::client::ask(&layout, &Request::Restart(name)).await?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Supervise { unguarded, node } => {
            let layout = layout.of_node(node);
            if unguarded {
                supervisor::daemon::run(layout).await?;
            } else {
                supervisor::daemon::guard(&layout).await?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
