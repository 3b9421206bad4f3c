//! Makes a worker out of a join token: the bundle's programs, what is remembered, and what the kubelet begins with.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use yoke_api::join_token::JoinLine;

use crate::arguments::WorkerOptions;
use crate::layout::Layout;
use crate::machine::{PATH, host_name};
use crate::preflight::is_node_name;
use crate::state::{Lock, Worker};
use crate::{Error, bundle, clean, config, files};

const VERSION_LIMIT: Duration = Duration::from_secs(30);

/// Makes the worker in a folder that has room for one.
pub(crate) async fn set_up(layout: &Layout, worker: &Worker, line: &JoinLine, bundle: &Path) -> Result<(), Error> {
    for folder in layout.folders() {
        files::make_folder(&folder)?;
    }
    // First of all: it says that the folder is a worker's, and what there is to remove.
    worker.write(layout)?;
    let (from, to) = (bundle.to_owned(), layout.clone());
    // Hundreds of megabytes are hashed and written.
    let installed = tokio::task::spawn_blocking(move || bundle::install(&from, &to)).await;
    installed.map_err(|error| Error::Start(error.into()))??;
    let api = line.version.parse().expect("a checked version is one");
    bundle::check_skew(ask_version(&layout.binary("kubelet")).await?, api)?;
    files::write(&layout.authority(), &line.ca, files::PUBLIC)?;
    files::write(&layout.client_authority(), &line.client_ca, files::PUBLIC)?;
    files::write(
        &layout.bootstrap_kubeconfig(),
        &config::build_bootstrap(layout, line)?,
        files::SECRET,
    )?;
    Ok(())
}

/// The worker that a token and a person describe.
pub(crate) fn build_worker(line: &JoinLine, options: &WorkerOptions) -> Result<Worker, Error> {
    let name = options.name.clone().unwrap_or_else(|| host_name().to_ascii_lowercase());
    if !is_node_name(&name) {
        return Err(Error::Name(name));
    }
    Ok(Worker {
        name,
        server: line.server.clone(),
        cluster_dns: options.cluster_dns,
        cluster_domain: options.cluster_domain.clone(),
        node_ip: options.node_ip,
        cgroup: options.cgroup.clone(),
        ephemeral: options.rm,
        drain: options.drain_timeout,
    })
}

async fn ask_version(kubelet: &Path) -> Result<yoke_api::KubernetesVersion, Error> {
    let mut command = Command::new(kubelet);
    command
        .arg("--version")
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let said = match tokio::time::timeout(VERSION_LIMIT, command.output()).await {
        Ok(output) => String::from_utf8_lossy(&output.map_err(Error::Start)?.stdout).into_owned(),
        Err(_) => String::new(),
    };
    Ok(bundle::parse_version(&said)?)
}

/// Sees that a folder is free for a new worker, and takes it. What an ephemeral one left that was killed goes.
pub(crate) async fn make_room(layout: &Layout) -> Result<Lock, Error> {
    let known = Worker::read(layout)?;
    if known.is_none() && !is_empty(layout.root()) {
        return Err(Error::Foreign(layout.root().to_owned()));
    }
    files::make_folder(layout.root())?;
    let lock = Lock::take(layout)?;
    match known {
        Some(worker) if worker.ephemeral => {
            clean::clean(layout, &worker).await?;
            files::make_folder(layout.root())?;
            Lock::take(layout)
        }
        // One that was never let in may try again, with another token.
        Some(worker) if layout.kubeconfig().exists() => Err(Error::Taken {
            root: layout.root().to_owned(),
            name: worker.name,
            server: worker.server,
        }),
        _ => Ok(lock),
    }
}

/// Whether there is nothing in the folder but a lock. All that is in a worker's folder is removed when it leaves.
fn is_empty(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).all(|name| name == "lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_with_something_else_in_it_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("w")).unwrap();
        drop(make_room(&layout).await.unwrap());
        drop(make_room(&layout).await.unwrap());
        std::fs::write(layout.root().join("letter"), "dear").unwrap();
        assert!(matches!(make_room(&layout).await, Err(Error::Foreign(path)) if path == layout.root()));
    }
}
