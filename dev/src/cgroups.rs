//! Creates, empties and removes the control groups of one clone.
//!
//! `/yoke-<id>/host` holds the supervisor and the processes that it starts. `/yoke-<id>/pods` is
//! the root of the kubelet's groups. An added node has both in `/yoke-<id>/node-<number>`. The
//! groups exist in every cgroup v1 hierarchy, or in the single v2 hierarchy.
//!
//! Every process in these groups was started by this stack, even if its parent has changed. So
//! `down` finds what a killed supervisor or containerd left behind, and never searches by process
//! name.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

/// Name, below the clone's group, of the group for the supervisor and its services.
pub const HOST: &str = "host";
/// Name, below the clone's group, of the group for all pods.
pub const PODS: &str = "pods";

/// Killed processes and emptied groups take a moment to disappear: retry this often.
const ROUNDS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);
/// Default CPU shares of a group per processor (cgroup v1).
const SHARES: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    v2: bool,
}

/// The control groups of one clone, or of one added node.
#[derive(Debug, Clone)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    name: String,
}

impl Cgroups {
    /// Finds the mounted cgroup hierarchies. `name` is the clone's top group.
    pub fn discover(name: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?;
        let hierarchies = parse_hierarchies(&mounts);
        if hierarchies.is_empty() {
            bail!("no cgroup hierarchy is mounted");
        }
        Ok(Self {
            hierarchies,
            name: name.to_owned(),
        })
    }

    /// Whether the computer has only the cgroup v2 hierarchy.
    pub fn is_v2(&self) -> bool {
        self.hierarchies.iter().all(|hierarchy| hierarchy.v2)
    }

    /// The value of the kubelet's `cgroupRoot`.
    pub fn pods_root(&self) -> String {
        format!("/{}/{PODS}", self.name)
    }

    /// Creates both groups where they are missing.
    pub fn create(&self) -> Result<()> {
        for hierarchy in self.writable() {
            for group in ["", HOST, PODS] {
                let path = self.path(hierarchy, group);
                match fs::create_dir(&path) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error).with_context(|| format!("creating the control group {}", path.display()));
                    }
                    _ => {}
                }
                if hierarchy.v2 {
                    delegate(&hierarchy.mount, &path, group);
                } else {
                    inherit_cpuset(&path).with_context(|| format!("preparing the control group {}", path.display()))?;
                    set_cpu_shares(&path, group)
                        .with_context(|| format!("setting the CPU shares of the control group {}", path.display()))?;
                }
            }
        }
        Ok(())
    }

    /// Moves a process into the host group of every hierarchy.
    pub fn join_host(&self, pid: u32) -> Result<()> {
        for hierarchy in self.writable() {
            let procs = self.path(hierarchy, HOST).join("cgroup.procs");
            fs::write(&procs, pid.to_string())
                .with_context(|| format!("moving this process to the control group of {}", procs.display()))?;
        }
        Ok(())
    }

    /// Kills every process in the clone's groups and returns how many there were.
    pub async fn kill_all(&self) -> usize {
        let mut seen = HashSet::new();
        for _ in 0..ROUNDS {
            let pids = self.members();
            if pids.is_empty() {
                break;
            }
            for pid in &pids {
                // The process may have exited since it was read.
                let _ = rustix::process::kill_process(*pid, Signal::KILL);
            }
            seen.extend(pids);
            tokio::time::sleep(PAUSE).await;
        }
        seen.len()
    }

    /// Removes the groups, which must be empty. Fails if some remain after all retries.
    pub async fn remove(&self) -> Result<()> {
        let mut left = Vec::new();
        for _ in 0..ROUNDS {
            left = self
                .groups()
                .into_iter()
                .filter(|group| fs::remove_dir(group).is_err())
                .collect();
            if left.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("cannot remove the control groups {left:?}: their `cgroup.procs` list the remaining processes")
    }

    fn members(&self) -> HashSet<Pid> {
        let own = rustix::process::getpid();
        self.groups()
            .iter()
            .filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok())
            .flat_map(|procs| procs.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>())
            .filter_map(Pid::from_raw)
            .filter(|pid| *pid != own)
            .collect()
    }

    /// Every group of the clone in every hierarchy, deepest first.
    fn groups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for hierarchy in &self.hierarchies {
            collect(&hierarchy.mount.join(&self.name), &mut found);
        }
        found
    }

    fn path(&self, hierarchy: &Hierarchy, group: &str) -> PathBuf {
        hierarchy.mount.join(&self.name).join(group)
    }

    /// The hierarchies that the stack uses. If v1 is present, v2 only serves systemd and is left
    /// alone.
    fn writable(&self) -> impl Iterator<Item = &Hierarchy> {
        let v2 = self.is_v2();
        self.hierarchies.iter().filter(move |hierarchy| hierarchy.v2 == v2)
    }
}

fn parse_hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = mountinfo
        .lines()
        .filter_map(|line| {
            let (fields, kind) = line.split_once(" - ")?;
            let mount = PathBuf::from(fields.split(' ').nth(4)?);
            match kind.split(' ').next()? {
                "cgroup" => Some(Hierarchy { mount, v2: false }),
                "cgroup2" => Some(Hierarchy { mount, v2: true }),
                _ => None,
            }
        })
        .filter(|hierarchy| hierarchy.mount.starts_with("/sys/fs/cgroup"))
        .collect();
    found.sort_by(|one, two| one.mount.cmp(&two.mount));
    found.dedup();
    found
}

fn collect(group: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), found);
        }
    }
    found.push(group.to_owned());
}

/// A v1 cpuset group starts empty and accepts no process until its processors and memory nodes are
/// set.
fn inherit_cpuset(group: &Path) -> io::Result<()> {
    let Some(parent) = group.parent() else { return Ok(()) };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = group.join(file);
        if own.exists() && fs::read_to_string(&own)?.trim().is_empty() {
            fs::write(&own, fs::read_to_string(parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

/// Gives the pods' group the CPU shares that a kubelet gives its root group under cgroup v1: the
/// default times the number of processors. The kubelet sets them only below its root group, which
/// is this group here.
fn set_cpu_shares(group: &Path, name: &str) -> io::Result<()> {
    let shares = group.join("cpu.shares");
    if name != PODS || !shares.exists() {
        return Ok(());
    }
    fs::write(shares, (SHARES * thread::available_parallelism()?.get()).to_string())
}

/// Delegates the v2 controllers to the pods' group. Failures are ignored: another owner may hold a
/// controller, and the kubelet reports the ones that it needs.
fn delegate(mount: &Path, group: &Path, name: &str) {
    if name == HOST {
        return;
    }
    let parent = group.parent().unwrap_or(mount);
    let Ok(controllers) = fs::read_to_string(parent.join("cgroup.controllers")) else {
        return;
    };
    for controller in controllers.split_whitespace() {
        let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
30 27 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
38 30 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const V2: &str = "26 25 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_mounted_hierarchies_decide_the_version() {
        let table = [("v1 with a companion", V1, 2, false), ("v2 alone", V2, 1, true)];
        for (rule, mounts, count, v2) in table {
            let cgroups = Cgroups {
                hierarchies: parse_hierarchies(mounts),
                name: "yoke-x".into(),
            };
            assert_eq!(cgroups.hierarchies.len(), count, "{rule}");
            assert_eq!(cgroups.is_v2(), v2, "{rule}");
            assert_eq!(cgroups.writable().count(), 1, "{rule}");
        }
    }
}
