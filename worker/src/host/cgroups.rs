//! The worker's control groups: `<name>/node` has the worker and the programs that it starts,
//! `<name>/pods` is the kubelet's root.
//!
//! This worker started every process in them, whatever the parent of that process is now. Leaving
//! kills the members of these groups and never searches processes by name.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::error::Error;
use crate::host::files::FileError;
use crate::id::GROUPS;
use crate::limits::Limits;

const NODE: &str = "node";
const PODS: &str = "pods";
/// Group for the other processes of a container in which the worker runs.
const INIT: &str = "init";

/// Period of CPU quotas in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;
/// Files with limits, in version 2 and in version 1.
const QUOTA: (&str, &str) = ("cpu.max", "cpu.cfs_quota_us");
const MEMORY: (&str, &str) = ("memory.max", "memory.limit_in_bytes");
/// Rounds of waiting for killed processes to disappear, or for groups to become empty.
const ROUNDS: u32 = 100;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Upper bound of that wait.
pub(crate) const KILL_LIMIT: Duration = POLL_INTERVAL.saturating_mul(ROUNDS);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    v2: bool,
}

/// The control groups of one worker.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    name: String,
}

impl Cgroups {
    /// Returns the groups called `name` in all mounted hierarchies.
    pub(crate) fn discover(name: &str) -> Result<Self, Error> {
        let file = Path::new("/proc/self/mountinfo");
        let mounts = fs::read_to_string(file).map_err(|error| FileError::new("read", file, error))?;
        let hierarchies = parse_hierarchies(&mounts);
        // A mount namespace may hide the hierarchies while the processes in them still run.
        if hierarchies.is_empty() {
            return Err(Error::NoCgroups);
        }
        Ok(Self {
            hierarchies,
            name: name.to_owned(),
        })
    }

    /// Reports whether any hierarchy is version 1.
    pub(crate) fn is_v1(&self) -> bool {
        self.hierarchies.iter().any(|hierarchy| !hierarchy.v2)
    }

    /// Returns the kubelet's `cgroupRoot`.
    pub(crate) fn pods_root(&self) -> String {
        format!("/{}/{PODS}", self.name)
    }

    /// Creates missing groups, and moves this process into the node's group.
    pub(crate) fn enter(&self) -> Result<(), FileError> {
        for hierarchy in self.writable() {
            let base = hierarchy.mount.join(&self.name);
            for group in [base.clone(), base.join(NODE), base.join(PODS)] {
                fs::create_dir_all(&group).map_err(|error| FileError::new("create", &group, error))?;
                if !hierarchy.v2 {
                    inherit_cpuset(&group).map_err(|error| FileError::new("prepare", &group, error))?;
                }
            }
            let procs = base.join(NODE).join("cgroup.procs");
            // The kernel reads 0 as the process that writes it.
            fs::write(&procs, "0").map_err(|error| FileError::new("join", &procs, error))?;
            if hierarchy.v2 {
                // Only now: a group with processes of its own cannot enable controllers for its
                // children.
                let above: Vec<_> = base
                    .ancestors()
                    .take_while(|group| group.starts_with(&hierarchy.mount))
                    .collect();
                above.into_iter().rev().for_each(enable_controllers);
                enable_controllers(&base.join(PODS));
            }
        }
        Ok(())
    }

    /// Limits the worker and its Pods together, and the memory of Pods a little lower, so that the
    /// kernel kills Pods before the worker. Removes limits of an earlier start that are no longer
    /// configured.
    pub(crate) fn set_limits(&self, limits: &Limits) -> Result<(), FileError> {
        let quota = limits.cpus.map(|cpus| u64::from(cpus) * PERIOD / 1000);
        self.set_limit("", QUOTA, quota)?;
        self.set_limit("", MEMORY, limits.memory)?;
        self.set_limit(PODS, MEMORY, limits.pods_memory())
    }

    /// Writes a limit in the hierarchy that has its controller, into the file of that version.
    fn set_limit(&self, part: &str, files: (&str, &str), limit: Option<u64>) -> Result<(), FileError> {
        let mut missing = None;
        for hierarchy in self.writable() {
            let (name, none) = if hierarchy.v2 {
                (files.0, "max")
            } else {
                (files.1, "-1")
            };
            let value = limit.map_or_else(|| none.to_owned(), |limit| limit.to_string());
            let file = hierarchy.mount.join(&self.name).join(part).join(name);
            match write_existing(&file, &value) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing = Some((file, error)),
                Err(error) if limit.is_some() => return Err(FileError::new("set the limit in", &file, error)),
                _ => return Ok(()),
            }
        }
        match missing {
            Some((file, error)) if limit.is_some() => Err(FileError::new("set the limit in", &file, error)),
            _ => Ok(()),
        }
    }

    /// Kills every process in the groups except this one.
    pub(crate) async fn kill_all(&self) {
        self.kill("").await;
    }

    /// Kills every process of Pods.
    pub(crate) async fn kill_pods(&self) {
        self.kill(PODS).await;
    }

    async fn kill(&self, part: &str) {
        let own = rustix::process::getpid();
        for _ in 0..ROUNDS {
            let mut populated = false;
            for hierarchy in &self.hierarchies {
                let base = hierarchy.mount.join(&self.name).join(part);
                let members = list_members(&base);
                populated |= members.iter().any(|(_, pid)| *pid != own);
                let without_own = members.iter().all(|(_, pid)| *pid != own);
                // Since Linux 5.14 the kernel kills a group atomically, including processes that
                // fork meanwhile.
                if hierarchy.v2 && without_own && write_existing(&base.join("cgroup.kill"), "1").is_ok() {
                    continue;
                }
                for (group, pid) in members.iter().filter(|(_, pid)| *pid != own) {
                    kill_member(group, *pid);
                }
            }
            if !populated {
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Reports whether the machine has a group of another worker.
    pub(crate) fn has_others(&self) -> bool {
        let entries = self.hierarchies.iter().map(|hierarchy| fs::read_dir(&hierarchy.mount));
        let mut names = entries.flatten().flatten().flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with(GROUPS) && name != *self.name)
    }

    /// Removes the groups, which must be empty. Returns those that remain.
    pub(crate) async fn remove(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for _ in 0..ROUNDS {
            let groups = self.groups().into_iter();
            left = groups.filter(|group| fs::remove_dir(group).is_err()).collect();
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        left
    }

    /// Returns the first group that has processes.
    pub(crate) fn find_populated(&self) -> Option<PathBuf> {
        let populated = |group: &PathBuf| !read_members(group).is_empty();
        self.groups().into_iter().find(populated)
    }

    /// Returns every group of the worker in every hierarchy, deepest first.
    fn groups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for hierarchy in &self.hierarchies {
            collect_groups(&hierarchy.mount.join(&self.name), &mut found);
        }
        found
    }

    /// Returns the hierarchies to use. Beside version 1, version 2 serves only systemd and stays
    /// unchanged.
    fn writable(&self) -> impl Iterator<Item = &Hierarchy> {
        let v1 = self.is_v1();
        self.hierarchies.iter().filter(move |hierarchy| hierarchy.v2 != v1)
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

/// Moves the processes of a container out of its top group: with processes in it, the group cannot
/// enable controllers for its children. Only the real root group may do both, and that one has no
/// `cgroup.type`.
pub(crate) fn vacate_root_group() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let hierarchies = parse_hierarchies(&mounts).into_iter();
    hierarchies
        .filter(|hierarchy| hierarchy.v2)
        .for_each(|hierarchy| vacate(&hierarchy.mount));
}

/// Ignores failures, because the kubelet reports the controllers that it lacks.
fn vacate(top: &Path) {
    let controllers = fs::read_to_string(top.join("cgroup.controllers")).unwrap_or_default();
    if !top.join("cgroup.type").exists() || controllers.trim().is_empty() {
        return;
    }
    let init = top.join(INIT);
    for pid in read_members(top).into_iter().filter(|pid| *pid != 0) {
        let _ = fs::create_dir_all(&init);
        let _ = fs::write(init.join("cgroup.procs"), pid.to_string());
    }
}

/// Returns the PIDs of a group. 0 stands for a process of another PID namespace.
fn read_members(group: &Path) -> Vec<i32> {
    let list = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Returns the processes of a group and of all groups below it, each with its group.
fn list_members(base: &Path) -> Vec<(PathBuf, Pid)> {
    let mut groups = Vec::new();
    collect_groups(base, &mut groups);
    let members = |group: PathBuf| {
        let pids = read_members(&group).into_iter().filter_map(Pid::from_raw);
        pids.map(|pid| (group.clone(), pid)).collect::<Vec<_>>()
    };
    groups.into_iter().flat_map(members).collect()
}

/// Kills a process that is still in the group. The PID may have been reused since it was read, so
/// the process is opened first and looked up again.
fn kill_member(group: &Path, pid: Pid) {
    // A process that has exited needs no signal.
    let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if read_members(group).contains(&pid.as_raw_nonzero().get()) {
        let _ = rustix::process::pidfd_send_signal(&process, Signal::KILL);
    }
}

fn write_existing(file: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(file)?
        .write_all(text.as_bytes())
}

fn collect_groups(group: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_groups(&entry.path(), found);
        }
    }
    found.push(group.to_owned());
}

/// Copies CPUs and memory nodes from the parent. A version 1 cpuset group starts empty, and accepts
/// no process until both are set.
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

/// Enables all version 2 controllers for the children of a group. Ignores failures: the kubelet
/// knows which controllers it needs, and reports a missing one.
fn enable_controllers(group: &Path) {
    let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        let _ = fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_group_with_processes_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = Cgroups {
            hierarchies: vec![Hierarchy {
                mount: dir.path().to_owned(),
                v2: true,
            }],
            name: "w".into(),
        };
        assert_eq!(cgroups.find_populated(), None);
        let pod = dir.path().join("w/pods/a");
        fs::create_dir_all(&pod).unwrap();
        fs::write(pod.join("cgroup.procs"), "").unwrap();
        assert_eq!(cgroups.find_populated(), None);
        // A process in a PID namespace that this process cannot see.
        fs::write(pod.join("cgroup.procs"), "0\n").unwrap();
        assert_eq!(cgroups.find_populated(), Some(pod));
    }

    #[test]
    fn a_container_s_top_group_is_vacated() {
        for (rule, files, moved) in [
            ("a container's", &["cgroup.type", "cgroup.controllers"][..], true),
            ("the machine's", &["cgroup.controllers"], false),
            ("one beside version 1", &["cgroup.type"], false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for name in files {
                fs::write(dir.path().join(name), "memory pids\n").unwrap();
            }
            fs::write(dir.path().join("cgroup.procs"), "0\n7\n").unwrap();
            vacate(dir.path());
            let found = fs::read_to_string(dir.path().join("init/cgroup.procs")).ok();
            assert_eq!(found.as_deref(), moved.then_some("7"), "{rule}");
        }
    }

    #[tokio::test]
    async fn only_what_is_in_the_groups_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = |v2: bool| Cgroups {
            hierarchies: vec![Hierarchy {
                mount: dir.path().to_owned(),
                v2,
            }],
            name: "w".into(),
        };
        let base = dir.path().join("w");
        fs::create_dir_all(base.join("pods/a")).unwrap();
        fs::create_dir_all(base.join("node")).unwrap();
        let sleep = || std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let (mut member, mut other) = (sleep(), sleep());
        fs::write(base.join("pods/a/cgroup.procs"), format!("{}\n", member.id())).unwrap();
        // The process has left the group.
        kill_member(&base.join("node"), Pid::from_child(&other));
        fs::write(base.join("node/cgroup.procs"), format!("{}\n", other.id())).unwrap();
        let kill = cgroups(false);
        let ended = async {
            tokio::select! {
                () = kill.kill_pods() => panic!("this list stays as it is"),
                status = wait(&mut member) => status,
            }
        };
        assert_eq!(ended.await.signal(), Some(9));
        assert_eq!(other.try_wait().unwrap(), None);
        // On version 2 the test checks `cgroup.kill`.
        fs::write(base.join("pods/a/cgroup.procs"), "").unwrap();
        fs::write(base.join("cgroup.kill"), "").unwrap();
        fs::write(base.join("node/cgroup.procs"), "").unwrap();
        cgroups(true).kill_all().await;
        assert_eq!(fs::read_to_string(base.join("cgroup.kill")).unwrap(), "1");
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    async fn wait(child: &mut std::process::Child) -> std::process::ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap()
    }

    #[test]
    fn groups_of_other_workers_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = Cgroups {
            hierarchies: vec![Hierarchy {
                mount: dir.path().to_owned(),
                v2: false,
            }],
            name: "yoke-worker-00000001".into(),
        };
        assert!(!cgroups.has_others());
        for (name, expected) in [
            ("system", false),
            ("yoke-worker-00000001", false),
            ("yoke-worker-00000002", true),
        ] {
            fs::create_dir(dir.path().join(name)).unwrap();
            assert_eq!(cgroups.has_others(), expected, "{name}");
        }
    }

    #[test]
    fn a_limit_is_written_in_the_hierarchy_of_its_controller() {
        let limits = Limits {
            cpus: Some(1500),
            memory: Some(1 << 30),
        };
        for (v2, none, folders, expected) in [
            (
                true,
                "max",
                &[""][..],
                [
                    ("w/cpu.max", "150000"),
                    ("w/memory.max", "1073741824"),
                    ("w/pods/memory.max", "805306368"),
                ],
            ),
            (
                false,
                "-1",
                &["cpu", "memory"],
                [
                    ("cpu/w/cpu.cfs_quota_us", "150000"),
                    ("memory/w/memory.limit_in_bytes", "1073741824"),
                    ("memory/w/pods/memory.limit_in_bytes", "805306368"),
                ],
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mounts = folders.iter().map(|folder| dir.path().join(folder));
            let cgroups = Cgroups {
                hierarchies: mounts.map(|mount| Hierarchy { mount, v2 }).collect(),
                name: "w".into(),
            };
            assert!(cgroups.set_limits(&limits).is_err(), "without a controller");
            cgroups.set_limits(&Limits::default()).unwrap();
            for (file, _) in expected {
                let file = dir.path().join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "").unwrap();
            }
            for (limits, bounded) in [(limits, true), (Limits::default(), false)] {
                cgroups.set_limits(&limits).unwrap();
                for (file, limit) in expected {
                    let value = fs::read_to_string(dir.path().join(file)).unwrap();
                    assert_eq!(value, if bounded { limit } else { none }, "{file}");
                }
            }
        }
    }

    const V1: &str = "\
30 27 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
38 30 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const V2: &str = "26 25 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_mounted_hierarchies_decide_the_version() {
        for (rule, mounts, count, v1) in [("v1 with a companion", V1, 2, true), ("v2 alone", V2, 1, false)] {
            let cgroups = Cgroups {
                hierarchies: parse_hierarchies(mounts),
                name: "w".into(),
            };
            assert_eq!(cgroups.hierarchies.len(), count, "{rule}");
            assert_eq!(cgroups.is_v1(), v1, "{rule}");
            assert_eq!(cgroups.writable().count(), 1, "{rule}");
            assert_eq!(cgroups.pods_root(), "/w/pods");
        }
    }
}
