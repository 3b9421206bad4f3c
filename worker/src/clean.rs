//! Removes what a worker made on the machine: processes, mounts, links, control groups and files, in this order.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use tokio::process::Command;

use crate::cgroups::Cgroups;
use crate::config::BRIDGE;
use crate::files::FileError;
use crate::layout::Layout;
use crate::machine::PATH;
use crate::state::Worker;
use crate::{Error, boxed};

const LINK_LIMIT: Duration = Duration::from_secs(10);
/// Mounts may be stacked, and a new list is read after each round.
const ROUNDS: u32 = 10;

/// Removes all of it. What cannot be removed is an error, and the folder stays then: it says what there is to remove.
pub(crate) async fn clean(layout: &Layout, worker: &Worker) -> Result<(), Error> {
    let cgroups = Cgroups::discover(&worker.cgroup)?;
    cgroups.kill_all().await;
    unmount_all(layout.root())?;
    remove_link().await;
    let left = cgroups.remove().await;
    if !left.is_empty() {
        return Err(Error::Left(left));
    }
    boxed::remove_usual(layout);
    remove_folder(layout.root())
}

fn unmount_all(root: &Path) -> Result<(), Error> {
    let mut left = Vec::new();
    for _ in 0..ROUNDS {
        left = list_mounts(root)?;
        if left.is_empty() {
            return Ok(());
        }
        for mount in left.iter().rev() {
            // What is in use goes when it is used no more; the next round sees whether it is gone from here.
            let _ = rustix::mount::unmount(mount, UnmountFlags::DETACH);
        }
    }
    Err(Error::Left(left))
}

/// Mounts in the folder, in the order in which they were made.
fn list_mounts(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let file = Path::new("/proc/self/mountinfo");
    let mounts = fs::read_to_string(file).map_err(|error| FileError::new("read", file, error))?;
    Ok(parse_mounts(&mounts, root))
}

fn parse_mounts(mountinfo: &str, root: &Path) -> Vec<PathBuf> {
    let points = mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescape);
    points
        .filter(|point| point.starts_with(root) && point != root)
        .collect()
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut plain = text.to_owned();
    for (escaped, byte) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(escaped, byte);
    }
    plain.into()
}

/// The bridge. In a network namespace that goes away it goes by itself.
async fn remove_link() {
    let mut command = Command::new("ip");
    command.args(["link", "delete", BRIDGE]).env_clear().env("PATH", PATH);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    // There is none if there was no Pod; and one that stays does no harm: the next worker uses it.
    let _ = tokio::time::timeout(LINK_LIMIT, command.status()).await;
}

/// Never through a mount: what is there would be removed as well.
fn remove_folder(root: &Path) -> Result<(), Error> {
    let left = list_mounts(root)?;
    if !left.is_empty() {
        return Err(Error::Left(left));
    }
    fs::remove_dir_all(root).map_err(|error| FileError::new("remove", root, error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_in_the_folder_are_found() {
        const MOUNTS: &str = "\
1 0 0:1 / / rw - ext4 /dev/vda rw
2 1 0:2 / /w rw - ext4 /dev/vdb rw
3 2 0:3 / /w/kubelet/pods/a\\040b rw - tmpfs tmpfs rw
4 1 0:4 / /w-other/x rw - tmpfs tmpfs rw
5 2 0:5 / /w/containerd rw - overlay overlay rw
";
        let expected = ["/w/kubelet/pods/a b", "/w/containerd"].map(PathBuf::from);
        assert_eq!(parse_mounts(MOUNTS, Path::new("/w")), expected);
    }
}
