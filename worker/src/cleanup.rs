//! Removes everything that a worker created on the machine: processes, mounts, links, control
//! groups and files, in this order.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use tokio::process::Command;
use yoke_supervisor::cgroups::Cgroups;
use yoke_supervisor::programs::PATH;

use crate::error::Error;
use crate::error_chain::format_chain;
use crate::host::files::{self, FileError};
use crate::host::mounts::parse_mounts;
use crate::host::{etc_hosts, iptables, sysctls};
use crate::id::GROUPS;
use crate::layout::Layout;
use crate::output::progress;
use crate::state::Worker;
use crate::{cni, sandbox, uplink};

const LINK_LIMIT: Duration = Duration::from_secs(10);
/// Rounds of unmounting. Mounts may be stacked, so each round reads a new list.
const ROUNDS: u32 = 10;

/// Removes everything. On failure `worker.json` stays, because a retry needs it to know what to
/// remove.
pub(crate) async fn remove_worker(layout: &Layout, worker: &Worker) -> Result<(), Error> {
    let cgroups = Cgroups::discover(&worker.id.cgroup())?;
    cgroups.kill_all().await;
    match &worker.uplink {
        // The rest of the sandbox network disappeared with its processes.
        Some(uplink) => uplink::remove(&uplink.run).await,
        None => remove_host_network(layout, worker).await,
    }
    unmount_all(layout.root())?;
    let left = cgroups.remove().await;
    if !left.is_empty() {
        return Err(Error::Leftover(left));
    }
    sandbox::remove_shared_folders(layout);
    etc_hosts::remove_entry(&worker.id)?;
    // The sysctls stay while another worker relies on them. A failed restore does not fail the
    // cleanup.
    if !cgroups.has_others(GROUPS)
        && let Err(error) = sysctls::restore(layout)
    {
        progress(&format_chain(&error));
    }
    remove_folder(layout)
}

/// Removes what the worker created in the machine's own network namespace.
async fn remove_host_network(layout: &Layout, worker: &Worker) {
    // A killed worker left these results behind. They are in the folder where the worker's libcni
    // wrote them, in a sandbox or not.
    for results in [
        PathBuf::from(cni::RESULTS_FOLDER),
        layout.replacement(cni::RESULTS_FOLDER),
    ] {
        for fault in cni::detach_all(&layout.bin(), &results, &worker.id).await {
            progress(&format!("cannot disconnect a Pod from the network: {fault}"));
        }
    }
    for link in [worker.id.bridge(), worker.id.tunnel()] {
        remove_link(&link).await;
    }
    // A worker that was never admitted has no rules. Its network namespace may also belong to
    // another worker.
    if layout.kubeconfig().exists() {
        iptables::remove_worker_rules(&worker.id).await;
    }
}

fn unmount_all(root: &Path) -> Result<(), Error> {
    let mut left = Vec::new();
    for _ in 0..ROUNDS {
        left = list_mounts(root)?;
        if left.is_empty() {
            return Ok(());
        }
        for mount in left.iter().rev() {
            // A busy mount disappears after its last use. The next round checks whether it has left
            // this namespace.
            let _ = rustix::mount::unmount(mount, UnmountFlags::DETACH);
        }
    }
    Err(Error::Leftover(left))
}

/// Returns the mounts below the folder, in the order of their creation.
fn list_mounts(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let file = Path::new("/proc/self/mountinfo");
    let mounts = fs::read(file).map_err(|error| FileError::new("read", file, error))?;
    Ok(parse_mounts(&mounts, root))
}

/// Deletes a link: the bridge, or the tunnel of a worker that is still exiting. In a network
/// namespace that is deleted, links disappear by themselves.
async fn remove_link(link: &str) {
    let mut command = Command::new("ip");
    command.args(["link", "delete", link]).env_clear().env("PATH", PATH);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    // The link does not exist if no Pod was started, and a link that remains is harmless.
    let _ = tokio::time::timeout(LINK_LIMIT, command.status()).await;
}

/// Removes the worker's folder, but never through a mount, whose content would be removed too. The
/// state file and the lock go last, because they mark the folder as a worker's.
fn remove_folder(layout: &Layout) -> Result<(), Error> {
    let left = list_mounts(layout.root())?;
    if !left.is_empty() {
        return Err(Error::Leftover(left));
    }
    let failed = |path: &Path, error| FileError::new("remove", path, error);
    let last = [layout.state(), layout.lock()];
    let entries = fs::read_dir(layout.root()).map_err(|error| failed(layout.root(), error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(layout.root(), error))?;
        let path = entry.path();
        if last.contains(&path) {
            continue;
        }
        // The type of the entry itself: a symbolic link is removed, not its target.
        let removed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(error) => Err(error),
        };
        removed.map_err(|error| failed(&path, error))?;
    }
    for path in &last {
        files::remove(path)?;
    }
    match fs::remove_dir(layout.root()) {
        // The folder stays if it is a mount point, or if another process has created files in it.
        Err(error) if matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::DirectoryNotEmpty) => Ok(()),
        removed => removed.map_err(|error| failed(layout.root(), error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("w"), dir.path().join("other"));
        fs::create_dir_all(root.join("kubelet/pods")).unwrap();
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("letter"), "dear").unwrap();
        std::os::unix::fs::symlink(&other, root.join("link")).unwrap();
        std::os::unix::fs::symlink(&other, root.join("kubelet/pods/link")).unwrap();
        let layout = crate::root::open(&root).unwrap();
        for path in [layout.state(), layout.lock()] {
            fs::write(path, "").unwrap();
        }
        remove_folder(&layout).unwrap();
        assert!(!root.exists());
        assert!(other.join("letter").exists());
    }
}
