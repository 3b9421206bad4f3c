//! Control groups of one owner, for example of a worker: created, joined, emptied and removed.
//!
//! `<name>/pods` is the root of the kubelet's groups. The owner adds a group beside it for itself
//! and its services. The groups exist in every hierarchy of cgroup version 1, or in the only
//! hierarchy of version 2.
//!
//! The owner started every process in the groups, whatever the parent of that process is now. So
//! the owner kills the members of its groups, and never searches processes by name.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};

/// Name, below the owner's group, of the group for all Pods.
pub const PODS: &str = "pods";
/// Group for the other processes of a container in which the owner runs.
const INIT: &str = "init";

/// Rounds of waiting for killed processes to disappear, or for groups to become empty.
const ROUNDS: u32 = 100;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Upper bound of that wait.
pub const KILL_LIMIT: Duration = POLL_INTERVAL.saturating_mul(ROUNDS);

/// An operation on control groups failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// This process cannot see any control groups.
    #[error("no control groups are mounted at /sys/fs/cgroup")]
    NotMounted,
    /// An operation on a file or folder failed.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// The operation, as a verb.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl CgroupError {
    fn new(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File {
            doing,
            path: path.to_owned(),
            source,
        }
    }
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Whether it is the hierarchy of version 2.
    pub v2: bool,
}

/// The control groups of one owner.
#[derive(Debug, Clone)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    name: String,
}

impl Cgroups {
    /// Returns the groups called `name` in all mounted hierarchies. `name` is relative to the root
    /// of a hierarchy.
    pub fn discover(name: &str) -> Result<Self, CgroupError> {
        let file = Path::new("/proc/self/mountinfo");
        let mounts = fs::read_to_string(file).map_err(|error| CgroupError::new("read", file, error))?;
        let hierarchies = parse_hierarchies(&mounts);
        // A mount namespace may hide the hierarchies while the processes in them still run.
        if hierarchies.is_empty() {
            return Err(CgroupError::NotMounted);
        }
        Ok(Self::new(name, hierarchies))
    }

    /// Returns the groups called `name` in these hierarchies.
    pub fn new(name: &str, hierarchies: Vec<Hierarchy>) -> Self {
        Self {
            hierarchies,
            name: name.to_owned(),
        }
    }

    /// Reports whether version 2 is mounted alone. Beside version 1, it has no controllers.
    pub fn is_v2(&self) -> bool {
        self.hierarchies.iter().all(|hierarchy| hierarchy.v2)
    }

    /// Returns the kubelet's `cgroupRoot`.
    pub fn pods_root(&self) -> String {
        format!("/{}/{PODS}", self.name)
    }

    /// Returns the folders of a group below the owner's group, one in each hierarchy that has
    /// controllers. An empty `part` stands for the owner's group itself.
    pub fn paths(&self, part: &str) -> impl Iterator<Item = PathBuf> {
        self.controlling().map(move |hierarchy| self.path(hierarchy, part))
    }

    /// Creates a group if it is missing. The caller creates the groups above it first.
    pub fn create(&self, part: &str) -> Result<(), CgroupError> {
        for group in self.paths(part) {
            fs::create_dir_all(&group).map_err(|error| CgroupError::new("create", &group, error))?;
            if !self.is_v2() {
                inherit_cpuset(&group).map_err(|error| CgroupError::new("prepare", &group, error))?;
            }
        }
        Ok(())
    }

    /// Moves this process into a group.
    pub fn join(&self, part: &str) -> Result<(), CgroupError> {
        for group in self.paths(part) {
            let procs = group.join("cgroup.procs");
            // The kernel reads 0 as the process that writes it.
            fs::write(&procs, "0").map_err(|error| CgroupError::new("join", &procs, error))?;
        }
        Ok(())
    }

    /// Enables all controllers for the children of a group, and for the groups above it. Version 1
    /// needs no such step.
    ///
    /// A group with processes of its own cannot enable controllers, so a process in the owner's
    /// group joins another group first. Failures are ignored: another owner may hold a controller,
    /// and the kubelet reports a missing one.
    pub fn enable_controllers(&self, part: &str) {
        for hierarchy in self.controlling().filter(|hierarchy| hierarchy.v2) {
            let group = self.path(hierarchy, part);
            let above: Vec<_> = group
                .ancestors()
                .take_while(|group| group.starts_with(&hierarchy.mount))
                .collect();
            above.into_iter().rev().for_each(enable_controllers);
        }
    }

    /// Kills every process in the groups except this one. Returns the number of processes.
    pub async fn kill_all(&self) -> usize {
        self.kill("").await
    }

    /// Kills every process of Pods. Returns the number of processes.
    pub async fn kill_pods(&self) -> usize {
        self.kill(PODS).await
    }

    async fn kill(&self, part: &str) -> usize {
        let own = rustix::process::getpid();
        let mut killed = HashSet::new();
        for _ in 0..ROUNDS {
            let mut populated = false;
            for hierarchy in &self.hierarchies {
                let base = self.path(hierarchy, part);
                let members = list_members(&base);
                let others = || members.iter().filter(|(_, pid)| *pid != own);
                populated |= others().count() > 0;
                killed.extend(others().map(|(_, pid)| *pid));
                let without_own = others().count() == members.len();
                // Since Linux 5.14 the kernel kills a group atomically, including processes that
                // fork meanwhile.
                if hierarchy.v2 && without_own && write_existing(&base.join("cgroup.kill"), "1").is_ok() {
                    continue;
                }
                for (group, pid) in others() {
                    kill_member(group, *pid);
                }
            }
            if !populated {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        killed.len()
    }

    /// Removes the groups, which must be empty. Returns those that remain.
    pub async fn remove(&self) -> Vec<PathBuf> {
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

    /// Reports whether the machine has a group of another owner whose name begins with `prefix`.
    pub fn has_others(&self, prefix: &str) -> bool {
        let entries = self.hierarchies.iter().map(|hierarchy| fs::read_dir(&hierarchy.mount));
        let mut names = entries.flatten().flatten().flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with(prefix) && name != *self.name)
    }

    /// Returns the first group that has processes.
    pub fn find_populated(&self) -> Option<PathBuf> {
        let populated = |group: &PathBuf| !read_members(group).is_empty();
        self.groups().into_iter().find(populated)
    }

    /// Returns every group of the owner in every hierarchy, deepest first.
    fn groups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for hierarchy in &self.hierarchies {
            collect_groups(&self.path(hierarchy, ""), &mut found);
        }
        found
    }

    fn path(&self, hierarchy: &Hierarchy, part: &str) -> PathBuf {
        let base = hierarchy.mount.join(&self.name);
        if part.is_empty() { base } else { base.join(part) }
    }

    /// Returns the hierarchies that have controllers. Beside version 1, version 2 serves only
    /// systemd and stays unchanged.
    fn controlling(&self) -> impl Iterator<Item = &Hierarchy> {
        let v2 = self.is_v2();
        self.hierarchies.iter().filter(move |hierarchy| hierarchy.v2 == v2)
    }
}

/// Parses the hierarchies below `/sys/fs/cgroup` out of `/proc/<pid>/mountinfo`.
pub fn parse_hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
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
pub fn vacate_root_group() {
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

/// Writes a file of a control group, and fails if the kernel does not have the file.
pub fn write_existing(file: &Path, text: &str) -> io::Result<()> {
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

/// Copies CPUs and memory nodes from the parent. A cpuset group of version 1 starts empty, and
/// accepts no process until both are set.
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

fn enable_controllers(group: &Path) {
    let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        let _ = fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use yoke_test_support::eventually;

    use super::*;

    fn groups_in(mount: &Path, v2: bool, name: &str) -> Cgroups {
        let mount = mount.to_owned();
        Cgroups::new(name, vec![Hierarchy { mount, v2 }])
    }

    #[test]
    fn a_group_with_processes_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = groups_in(dir.path(), true, "w");
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
        let cgroups = |v2: bool| groups_in(dir.path(), v2, "w");
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
                _ = kill.kill_pods() => panic!("this list stays as it is"),
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
        let limit = Duration::from_secs(20);
        let exited = eventually("the member to exit", limit, async || child.try_wait(), Option::is_some).await;
        exited.unwrap().unwrap()
    }

    #[test]
    fn groups_of_other_owners_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = groups_in(dir.path(), false, "yoke-worker-00000001");
        assert!(!cgroups.has_others("yoke-worker-"));
        for (name, expected) in [
            ("system", false),
            ("yoke-worker-00000001", false),
            ("yoke-worker-00000002", true),
        ] {
            fs::create_dir(dir.path().join(name)).unwrap();
            assert_eq!(cgroups.has_others("yoke-worker-"), expected, "{name}");
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
        for (rule, mounts, count, v2) in [("v1 with a companion", V1, 2, false), ("v2 alone", V2, 1, true)] {
            let cgroups = Cgroups::new("w", parse_hierarchies(mounts));
            assert_eq!(cgroups.hierarchies.len(), count, "{rule}");
            assert_eq!(cgroups.is_v2(), v2, "{rule}");
            assert_eq!(cgroups.paths(PODS).count(), 1, "{rule}");
            assert_eq!(cgroups.pods_root(), "/w/pods");
        }
    }

    #[test]
    fn controllers_are_enabled_in_a_group_and_in_all_above_it() {
        let dir = tempfile::tempdir().unwrap();
        for v2 in [false, true] {
            let cgroups = groups_in(dir.path(), v2, "stack/node-1");
            cgroups.create(PODS).unwrap();
            for group in ["", "stack", "stack/node-1", "stack/node-1/pods"] {
                fs::write(dir.path().join(group).join("cgroup.controllers"), "cpu\n").unwrap();
            }
            cgroups.enable_controllers("");
            for (group, expected) in [
                ("", v2),
                ("stack", v2),
                ("stack/node-1", v2),
                ("stack/node-1/pods", false),
            ] {
                let file = dir.path().join(group).join("cgroup.subtree_control");
                let enabled = fs::read_to_string(file).ok();
                assert_eq!(
                    enabled.as_deref(),
                    expected.then_some("+cpu"),
                    "{group}, version 2: {v2}"
                );
            }
        }
    }

    #[test]
    fn a_cpuset_group_of_version_1_starts_with_the_parents_set() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = groups_in(dir.path(), false, "w");
        fs::create_dir(dir.path().join("w")).unwrap();
        for (file, text) in [
            ("cpuset.cpus", "0-1\n"),
            ("cpuset.mems", "0\n"),
            ("w/cpuset.cpus", "\n"),
            ("w/cpuset.mems", "1\n"),
        ] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        cgroups.create("").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("w/cpuset.cpus")).unwrap(), "0-1");
        assert_eq!(fs::read_to_string(dir.path().join("w/cpuset.mems")).unwrap(), "1\n");
    }
}
