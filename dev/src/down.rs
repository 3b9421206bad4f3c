//! `make down`: removes everything of this clone's stack but the build cache, in whatever state it was left.
//!
//! Processes are found in three ways, each of which says that they are this stack's: the supervisor's own children, the
//! pids and start times it wrote down, and the clone's control groups. Nothing is ever looked for by name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::UnmountFlags;

use crate::cgroups::Cgroups;
use crate::layout::Layout;
use crate::network::Network;
use crate::steps::say;
use crate::supervisor::{Request, client};

/// Mounts lie over one another; each round takes the uppermost ones.
const UNMOUNT_ROUNDS: usize = 10;

/// Stops and removes everything.
pub async fn down(layout: &Layout) -> Result<()> {
    let begun = std::time::Instant::now();
    // The supervisor first, or it would start again what is killed below.
    let supervised = client::ask(layout, &Request::Shutdown).await.is_ok();
    report(
        "processes",
        if supervised {
            "stopped by the supervisor"
        } else {
            "no supervisor answers"
        },
    );
    let cgroups = Cgroups::discover(&layout.stack_name())?;
    // The shims and what runs in the pods outlive containerd.
    let killed = cgroups.kill_all().await;
    report("pods", &format!("{killed} processes ended"));
    let unmounted = unmount_below(&layout.dev())?;
    report("mounts", &format!("{unmounted} removed"));
    Network::remove(layout).await?;
    report("network", "namespace and link removed");
    cgroups.remove().await?;
    report("control groups", "removed");
    let strays = remove_strays(layout)?;
    report("files outside .dev", &format!("{strays} removed"));
    match fs::remove_dir_all(layout.dev()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context("removing .dev"),
        _ => {}
    }
    say(&format!(
        "down in {:.1}s; the build cache stays in {}",
        begun.elapsed().as_secs_f64(),
        layout.cache().display()
    ));
    Ok(())
}

fn report(what: &str, how: &str) {
    say(&format!("  {what}: {how}"));
}

/// Detaches every mount at or below a folder. Only what is below it: nothing else can have been mounted by this stack.
fn unmount_below(dir: &Path) -> Result<usize> {
    let mut removed = 0;
    for _ in 0..UNMOUNT_ROUNDS {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading the mounts")?;
        let mut targets = parse_mounts_below(&mounts, dir);
        if targets.is_empty() {
            break;
        }
        targets.reverse();
        for target in targets {
            if rustix::mount::unmount(&target, UnmountFlags::DETACH).is_ok() {
                removed += 1;
            }
        }
    }
    Ok(removed)
}

fn parse_mounts_below(mountinfo: &str, dir: &Path) -> Vec<PathBuf> {
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|target| PathBuf::from(unescape(target)))
        .filter(|target| target.starts_with(dir))
        .collect()
}

/// mountinfo writes a space, a tab, a line feed and a backslash as three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

/// Removes what the components put at fixed places: links to pods' logs, the CNI library's cached results, the shims'
/// sockets. Each is recognised by leading into this clone.
fn remove_strays(layout: &Layout) -> Result<usize> {
    let mut removed = 0;
    let mut remove = |path: &Path| removed += usize::from(fs::remove_file(path).is_ok());
    for link in entries("/var/log/containers") {
        if fs::read_link(&link).is_ok_and(|target| target.starts_with(layout.dev())) {
            remove(&link);
        }
    }
    let dev = layout.dev().display().to_string();
    for result in entries("/var/lib/cni/results") {
        // Each names the network namespace of its pod, which is below .dev.
        if fs::read_to_string(&result).is_ok_and(|text| text.contains(&dev)) {
            remove(&result);
        }
    }
    let tasks = layout.containerd().join("state/io.containerd.runtime.v2.task/k8s.io");
    for task in entries(tasks) {
        if let Ok(address) = fs::read_to_string(task.join("address"))
            && let Some(socket) = address.trim().strip_prefix("unix://")
        {
            remove(Path::new(socket));
        }
    }
    Ok(removed)
}

fn entries(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_of_the_clone_are_found() {
        let mounts = "\
30 1 0:26 / /sys rw - sysfs sysfs rw
31 1 0:27 / /home/a\\040b/.dev/containerd/x rw - overlay overlay rw
32 1 0:28 / /home/a\\040b/.device rw - tmpfs tmpfs rw
";
        let found = parse_mounts_below(mounts, Path::new("/home/a b/.dev"));
        assert_eq!(found, [PathBuf::from("/home/a b/.dev/containerd/x")]);
    }
}
