//! `make down`: removes the whole stack of this clone, in any state, except the build cache.
//!
//! Processes are found through the supervisors (their own children) and through the clone's control
//! groups. Nothing is found by process name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::mount::UnmountFlags;
use yoke_supervisor::cgroups::Cgroups;

use crate::cgroups;
use crate::files::{is_dead_socket, list_entries};
use crate::host_cluster::node::Node;
use crate::layout::Layout;
use crate::leftovers;
use crate::network::Network;
use crate::steps::print_line;
use crate::supervisor::{Request, client};
use crate::workers;

/// Mounts can be stacked. Each round removes the uppermost ones.
const UNMOUNT_ROUNDS: usize = 10;

/// Stops and removes everything.
pub async fn down(layout: &Layout) -> Result<()> {
    let started = std::time::Instant::now();
    // The supervisors stop first: they would restart the processes that are killed below.
    let network = Network::read(layout)?;
    let nodes = network
        .map(|network| Node::added(layout, &network.plan))
        .unwrap_or_default();
    for node in nodes {
        report(&node.name, shut_down(&node.layout).await);
    }
    report("processes", shut_down(layout).await);
    let cgroups = Cgroups::discover(&layout.stack_name())?;
    // The containerd shims and the pods' processes outlive containerd.
    let killed = cgroups.kill_all().await;
    report("pods", &format!("{killed} processes killed"));
    let killed = workers::kill_all(layout).await?;
    report("workers", &format!("{killed} killed"));
    let unmounted = unmount_below(&layout.dev())?;
    report("mounts", &format!("{unmounted} removed"));
    Network::remove(layout).await?;
    report("network", "namespaces and link removed");
    cgroups::remove(&cgroups).await?;
    report("control groups", "removed");
    let removed = remove_files_outside(layout);
    report("files outside .dev", &format!("{removed} removed"));
    match fs::remove_dir_all(layout.dev()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context("removing .dev"),
        _ => {}
    }
    let left = leftovers::find(layout);
    if !left.is_empty() {
        bail!(
            "these objects of the stack remain and must be removed by hand:\n  {}",
            left.join("\n  ")
        );
    }
    print_line(&format!(
        "down in {:.1}s; the build cache stays in {}",
        started.elapsed().as_secs_f64(),
        layout.cache().display()
    ));
    Ok(())
}

/// Makes a supervisor stop all its services. Returns the text to report.
async fn shut_down(layout: &Layout) -> &'static str {
    match client::request(layout, &Request::Shutdown).await {
        Ok(_) => "stopped by the supervisor",
        Err(_) => "no supervisor answered",
    }
}

fn report(what: &str, how: &str) {
    print_line(&format!("  {what}: {how}"));
}

/// Unmounts every mount at or below a folder. This stack mounts nothing elsewhere.
pub(crate) fn unmount_below(dir: &Path) -> Result<usize> {
    let mut removed = 0;
    for _ in 0..UNMOUNT_ROUNDS {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?;
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
    let left = parse_mounts_below(
        &fs::read_to_string("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?,
        dir,
    );
    if !left.is_empty() {
        bail!("cannot unmount {left:?}: a process may still use them");
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

/// Paths outside `.dev` where components write files in spite of their configuration. The folders
/// are removed too once they are empty. No Debian package owns a file in them.
const FIXED_PLACES: &[&str] = &[
    "/run/containerd/runc/k8s.io",
    "/run/containerd/runc",
    "/run/containerd/s",
    "/run/containerd",
    "/var/lib/cni/results",
    "/var/lib/cni",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/var/log/containers",
];

/// Removes the files that components wrote at fixed paths: links to pod logs, cached CNI results,
/// and sockets of shims and of the kubelet. A file belongs to this stack if it points into this
/// clone, or if it is a socket without a listener.
fn remove_files_outside(layout: &Layout) -> usize {
    let dev = layout.dev();
    let dev_text = dev.display().to_string();
    let mut removed = 0;
    for place in FIXED_PLACES {
        for path in list_entries(Path::new(place)) {
            let ours = fs::read_link(&path).is_ok_and(|target| target.starts_with(&dev))
                || is_dead_socket(&path)
                // A cached CNI result names the pod's network namespace, which is below .dev.
                || (path.is_file() && fs::read_to_string(&path).is_ok_and(|text| text.contains(&dev_text)));
            removed += usize::from(ours && fs::remove_file(&path).is_ok());
        }
        // Fails if files of other owners remain, which is intended.
        let _ = fs::remove_dir(place);
    }
    removed
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
