//! Sets up a worker from a join token: installs the bundle, persists the state, and writes the
//! kubelet's bootstrap files.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use yoke_api::join_token::JoinLine;
use yoke_supervisor::cgroups::Cgroups;

use crate::arguments::{WIREGUARD_PORT, WorkerOptions};
use crate::bundle::kubelet_version::read_kubelet_version;
use crate::error::Error;
use crate::host::facts::host_name;
use crate::host::files::{self, FileError};
use crate::id::Id;
use crate::layout::Layout;
use crate::netns::Netns;
use crate::node_name::is_node_name;
use crate::state::{Lock, Worker};
use crate::uplink::link::{Run, Uplink};
use crate::{bundle, certificate, cleanup, config, node_lifecycle, pods, root, upgrade};

/// Sets up the worker in a folder that has room for one.
pub(crate) async fn set_up(layout: &Layout, worker: &Worker, line: &JoinLine, bundle: &Path) -> Result<(), Error> {
    // Write the state first: it marks the folder as a worker's, and cleanup needs it.
    worker.write(layout)?;
    for folder in layout.folders() {
        files::make_folder(&folder)?;
    }
    let (from, to) = (bundle.to_owned(), layout.clone());
    let api = line.version.parse().expect("a checked version is one");
    // A blocking task, because it hashes and writes hundreds of megabytes.
    let installed = tokio::task::spawn_blocking(move || bundle::install(&from, &to, api)).await;
    installed.map_err(|error| Error::Start(error.into()))??;
    upgrade::remove_record(layout)?;
    bundle::check_skew(read_kubelet_version(&layout.binary("kubelet")).await?, api)?;
    files::write(&layout.ca(), &line.ca, files::PUBLIC)?;
    files::write(&layout.client_ca(), &line.client_ca, files::PUBLIC)?;
    files::write(
        &layout.bootstrap_kubeconfig(),
        &config::build_bootstrap(layout, line)?,
        files::SECRET,
    )?;
    Ok(())
}

/// Returns the name of the worker's Node.
pub(crate) fn choose_name(options: &WorkerOptions) -> Result<String, Error> {
    let name = options.name.clone().unwrap_or_else(|| host_name().to_ascii_lowercase());
    if is_node_name(&name) {
        Ok(name)
    } else {
        Err(Error::Name(name))
    }
}

/// Builds the state of a new worker from the token and the options.
pub(crate) fn build_worker(
    name: String,
    id: Id,
    netns: Netns,
    line: &JoinLine,
    options: &WorkerOptions,
    ephemeral: bool,
) -> Worker {
    Worker {
        name,
        server: line.server.clone(),
        address: line.address,
        cluster_dns: options.cluster_dns,
        cluster_domain: options.cluster_domain.clone(),
        node_ip: options.node_ip,
        public_address: options.public_address,
        wireguard_port: options.machine.wireguard_port.unwrap_or(WIREGUARD_PORT),
        pod_network: line.pod_network,
        node_labels: line.node_labels.clone(),
        taints: line.taints.clone(),
        limits: options.limits(),
        gpus: false,
        id,
        node_uid: None,
        uplink: ephemeral.then(|| Uplink::unassigned(Run::new(rand::random()))),
        netns: Some(netns),
        ephemeral,
        drain: options.drain_timeout,
        // An absolute path, because later commands may run in another folder.
        bundle: std::fs::canonicalize(&options.machine.bundle).unwrap_or_else(|_| options.machine.bundle.clone()),
    }
}

/// Checks that a folder is free for a new worker, and locks it. Removes what a killed ephemeral
/// worker left behind.
pub(crate) async fn claim_folder(layout: &Layout) -> Result<(Id, Lock), Error> {
    let lock = lock_folder(layout)?;
    let found = Worker::read(layout)?;
    if let Some(worker) = &found {
        worker.check_netns(layout)?;
    }
    match found {
        Some(worker) if worker.ephemeral => {
            node_lifecycle::delete_leftover_node(layout, &worker).await?;
            cleanup::remove_worker(layout, &worker).await?;
            drop(lock);
            let lock = lock_folder(layout)?;
            Ok((choose_id(layout)?, lock))
        }
        // A worker that was never admitted, or whose certificate has expired, may try again with
        // another token.
        Some(worker) if certificate::has_joined(layout) => Err(other_worker(layout, worker)),
        Some(worker) => {
            // The worker gets a new Node.
            pods::stop_pods(layout, &worker).await?;
            Ok((worker.id, lock))
        }
        None => Ok((choose_id(layout)?, lock)),
    }
}

/// Builds the error for a folder whose worker was admitted.
pub(crate) fn other_worker(layout: &Layout, worker: Worker) -> Error {
    Error::OtherWorker {
        root: layout.root().to_owned(),
        name: worker.name,
        server: worker.server,
    }
}

/// Copies this program into the worker's folder, where it stays. The original may be anywhere.
pub(crate) fn install_self(layout: &Layout) -> Result<(), FileError> {
    let to = layout.own_program();
    let partial = layout.binary(".yoke-worker.partial");
    let copy = || {
        // Copy the running executable: its path may lead to another program by now.
        std::fs::copy("/proc/self/exe", &partial)?;
        std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o755))?;
        std::fs::File::open(&partial)?.sync_all()?;
        std::fs::rename(&partial, &to)
    };
    copy().map_err(|error| FileError::new("write", &to, error))
}

/// Locks a folder that is empty or a worker's.
fn lock_folder(layout: &Layout) -> Result<Lock, Error> {
    let check = || match Worker::read(layout)? {
        None if !is_empty(layout.root()) => Err(Error::NotEmpty(layout.root().to_owned())),
        _ => Ok(()),
    };
    // Checked before, so that an unrelated folder does not even get a lock file, and again under
    // the lock.
    check()?;
    files::make_folder(layout.root())?;
    // In a folder where every user may create entries, such as /tmp, another user may have created
    // it first.
    root::verify(layout)?;
    let lock = Lock::take(layout)?;
    root::verify(layout)?;
    check()?;
    Ok(lock)
}

/// Derives the worker's id. Leaving kills all processes in the worker's control groups, so they
/// must be empty of other processes now.
fn choose_id(layout: &Layout) -> Result<Id, Error> {
    let id = root::identify(layout)?;
    match Cgroups::discover(&id.cgroup())?.find_populated() {
        Some(group) => Err(Error::Populated(group)),
        None => Ok(id),
    }
}

/// Reports whether the folder has at most a lock, and an incomplete `worker.json`. Leaving removes
/// everything in a worker's folder.
fn is_empty(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.all(|name| name == "lock" || name == ".worker.json.partial")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::RootError;

    #[tokio::test]
    async fn a_folder_with_other_files_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("w")).unwrap();
        drop(claim_folder(&layout).await.unwrap());
        // Leftover of a worker that was killed while it wrote its state.
        std::fs::write(layout.root().join(".worker.json.partial"), "{").unwrap();
        drop(claim_folder(&layout).await.unwrap());
        std::fs::write(layout.root().join("letter"), "dear").unwrap();
        assert!(matches!(claim_folder(&layout).await, Err(Error::NotEmpty(path)) if path == layout.root()));
    }

    #[tokio::test]
    async fn a_folder_of_another_user_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let layout = root::open(&dir.path().join("w")).unwrap();
        std::fs::create_dir(dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), layout.root()).unwrap();
        let claimed = claim_folder(&layout).await;
        assert!(
            matches!(&claimed, Err(Error::Root(RootError::Moved(path))) if path == layout.root()),
            "{claimed:?}"
        );
        std::fs::remove_file(layout.root()).unwrap();
        std::fs::create_dir(layout.root()).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(layout.root(), Some(1234), None).unwrap();
            let claimed = claim_folder(&layout).await;
            assert!(
                matches!(&claimed, Err(Error::Root(RootError::Owner(path))) if path == layout.root()),
                "{claimed:?}"
            );
        }
        assert_eq!(std::fs::read_dir(layout.root()).unwrap().count(), 0);
    }
}
