//! `make worker`: adds a worker to a tenant's cluster, in the same way as any holder of the
//! Tenant's SSH key.
//!
//! ```text
//!   bundle.rs ─▶ network/lan.rs ─▶ ssh … join demo ─▶ its output, run in the worker's namespace ─▶ the Node is Ready
//! ```
//!
//! The worker's process belongs to the stack's control group. Its child processes have a group of
//! their own. Its folder `.dev/workers/<number>` holds these files:
//!
//! - its pid, join command and kubeconfig
//! - `bin`, mounted at `/usr/local/bin` in its mount namespace
//! - `root`, all state of the worker.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use yoke_supervisor::cgroups::Cgroups;

use crate::cgroups;
use crate::layout::Layout;
use crate::names::DEMO;
use crate::network::Network;
use crate::recipes::Made;
use crate::ssh;
use crate::steps::{self, Label, Reporter};
use crate::supervisor::client;
use crate::workers::worker::Worker;

mod bundle;
mod worker;

const BUNDLE: Label = Label {
    title: "pack the worker's programs",
    advice: "`make up` builds missing programs; then run `make worker` again",
};
const NETWORK: Label = Label {
    title: "create the worker's network",
    advice: "`make down && make up` creates a new stack",
};
const JOIN: Label = Label {
    title: "get a join command over SSH",
    advice: "`make status` shows what is down",
};
const START: Label = Label {
    title: "start the worker with its join command",
    advice: "look at .dev/log and .dev/workers/*/root/logs, then run `make worker` again",
};

/// Options of `make worker`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Cluster to join.
    #[arg(long, default_value = DEMO)]
    cluster: String,
    /// SSH key of the Cluster's Tenant; by default, the demo tenant's.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// File with a join command; by default, a new one is requested.
    #[arg(long, value_name = "FILE")]
    line_file: Option<PathBuf>,
    /// End the worker after this time, such as 2h or 90m.
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
}

/// Adds a worker. Returns false if a step failed; the failure has been shown.
pub async fn add(layout: &Layout, options: &Options) -> Result<bool> {
    let network = Network::read(layout)?;
    let (Some(network), true) = (network, client::processes(layout).await.is_some()) else {
        bail!("the stack is not running: `make up` starts it");
    };
    let mut reporter = Reporter::new(4);
    let (worker, lock) = (Worker::claim(layout)?, lock(layout)?);
    let added = async {
        steps::show(&mut reporter, BUNDLE, |_| async {
            Ok(match bundle::make(layout).await? {
                Made::Built => "packed".to_owned(),
                Made::Cached => "unchanged".to_owned(),
            })
        })
        .await?;
        steps::show(&mut reporter, NETWORK, |_| async {
            network.connect_worker(&worker.link).await?;
            Ok(format!("{} in {}", worker.link.address, worker.link.namespace))
        })
        .await?;
        drop(lock);
        let key = options.key.clone().unwrap_or_else(|| ssh::demo_key(layout));
        let ssh = |words: &[&str]| ssh::command(layout, &network, &key, words);
        steps::show(&mut reporter, JOIN, |_| {
            worker.request_join(ssh, &options.cluster, options.line_file.as_deref())
        })
        .await?;
        worker.install_ssh(&key)?;
        steps::show(&mut reporter, START, |_| async {
            worker.start(&network, options.ttl.as_deref()).await?;
            worker.wait_ready().await
        })
        .await
    };
    if added.await.is_err() {
        // A running worker stays for inspection. `make down` removes it.
        if worker.find_process().is_none() {
            worker.remove_files().await?;
        }
        return Ok(false);
    }
    let kubeconfig = match &options.key {
        Some(_) => worker.kubeconfig(),
        None => layout.demo_kubeconfig(),
    };
    steps::print_line(&format!(
        "\n{} is Ready after {}. Its cluster's workers:\n\n     {} --kubeconfig {} get nodes -o wide\n",
        worker.name,
        reporter.elapsed(),
        layout.binary("kubectl").display(),
        kubeconfig.display()
    ));
    Ok(true)
}

/// Drains a worker and removes it with all its files.
pub async fn remove(layout: &Layout, name: &str) -> Result<()> {
    match Worker::find(layout, name) {
        Some(worker) => worker.leave().await,
        None => bail!("no worker is called {name}: `make status` lists the workers"),
    }
}

/// Every worker, and what is wrong with it.
pub async fn status(layout: &Layout) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    for worker in Worker::list(layout) {
        let problem = match worker.find_process() {
            // The worker has left by itself.
            None if !worker.root().exists() => continue,
            None => Some("its process was killed".to_owned()),
            Some(_) => worker.check_ready().await.err().map(|error| format!("{error:#}")),
        };
        found.push((worker.name, problem));
    }
    found
}

/// Kills the processes of all workers and returns the number of workers. `down` removes their
/// folders and namespaces with the stack.
pub async fn kill_all(layout: &Layout) -> Result<usize> {
    let workers = Worker::list(layout);
    for group in workers.iter().filter_map(Worker::find_group) {
        let cgroups = Cgroups::discover(&group)?;
        cgroups.kill_all().await;
        cgroups::remove(&cgroups).await?;
    }
    Ok(workers.len())
}

/// Packs the programs of workers and returns their folder.
pub(crate) async fn pack(layout: &Layout) -> Result<PathBuf> {
    fs::create_dir_all(layout.workers()).context("creating .dev/workers")?;
    let _lock = lock(layout)?;
    bundle::make(layout).await.context("packing the programs of workers")?;
    Ok(layout.bundle())
}

/// Locks the files that all workers share.
fn lock(layout: &Layout) -> Result<File> {
    let path = layout.workers().join("lock");
    let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    file.lock().with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}
