//! Counts the resources that a stack holds on this computer, in NATS and in the host's API. A count
//! that has grown after many equal rounds is a leak.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::process::Command;

use crate::command::run;
use crate::process::{anonymous_memory, list_pids};
use crate::stack::Stack;

const LIMIT: Duration = Duration::from_secs(10);
/// Processes that serve all clusters, or that keep running while one sleeps. Leaks in these
/// processes add up.
const SERVERS: [&str; 13] = [
    "yoke-operator",
    "yoke-ingress-xds",
    "yoke-ssh-ui",
    "cert-manager-controller",
    "envoy",
    "nats-server",
    "kine-nats",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "yoke-worker",
    "kubelet",
    "containerd",
];
/// Kinds of objects in the host's API that exist for each Cluster, even if they are recreated at
/// times. Events are left out because they expire.
const KINDS: &str = "namespaces,secrets,configmaps,services,endpointslices,serviceaccounts,statefulsets,pods,\
                     poddisruptionbudgets,networkpolicies,certificates,certificaterequests,clusters,jointokens";
/// Allowed growth of a server's memory, in bytes. Servers release memory late and in parts.
const MEMORY: u64 = 16 << 20;
/// Prefix and allowance for Yoke's own processes, which have no garbage collector and are much
/// smaller. kine-nats has caches, and there are several.
const OWN: &str = "memory of yoke-";
const OWN_MEMORY: u64 = 4 << 20;
/// Number of further files that a server may hold open. Connections come with requests and close
/// after some idle time. HTTP/1.1 has as many as there were concurrent requests. Probes of the
/// kubelet and the load balancer are connections too.
const FILES: u64 = 8;
/// Envoy holds two connections for each one that it forwards, so it may hold twice as many.
const PASSED_ON: &str = "files of envoy";
/// Allowed growth in NATS: one connection for a follower of the log and one for a request, with
/// some subscriptions each.
const CONNECTIONS: u64 = 2;
const SUBSCRIPTIONS: u64 = 8;

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub struct Footprint(BTreeMap<String, u64>);

impl Footprint {
    /// Counts the resources of the stack, and the processes in further control groups, such as
    /// those of workers.
    pub async fn take(stack: &Stack, others: &[String]) -> Result<Self> {
        let mut groups = vec![stack.var("YOKE_NETNS")?.to_owned()];
        groups.extend_from_slice(others);
        let mut counts = Self::default();
        counts.add_processes(&groups)?;
        let groups = groups.iter().map(|group| count_groups(group)).sum();
        counts.0.insert("control groups".to_owned(), groups);
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading the mounts")?;
        let dev = stack.dir.display().to_string();
        let mounts = mounts.lines().filter(|line| line.contains(&dev)).count() as u64;
        counts.0.insert("mounts".to_owned(), mounts);
        counts.add_nats(stack).await?;
        let objects = ["get", KINDS, "--all-namespaces", "--output=name"];
        for object in stack.host_kubectl(&objects).await?.ok()?.lines() {
            let kind = object.split('/').next().unwrap_or_default();
            counts.count(format!("objects {kind}"), 1);
        }
        Ok(counts)
    }

    /// Lists the counts that have grown until `later` by more than the allowance.
    pub fn grown(&self, later: &Self) -> Vec<String> {
        let grown = later.0.iter().filter(|(name, after)| {
            let before = self.0.get(*name).copied().unwrap_or_default();
            **after > before + allowance(name, before)
        });
        grown
            .map(|(name, after)| format!("{name}: {} before, {after} after", self.0.get(name).unwrap_or(&0)))
            .collect()
    }

    /// Whether the same programs run and listen. A starting program opens its ports some time after
    /// its process starts.
    pub fn runs_as(&self, other: &Self) -> bool {
        let running = |counts: &Self| {
            let mut counts = counts.0.clone();
            counts.retain(|name, _| name == "ports" || name.starts_with("processes "));
            counts
        };
        running(self) == running(other)
    }

    /// Returns these counts with the memory of `later`. Memory that a server reads once and caches
    /// is no leak; a leak grows further.
    pub fn with_memory_of(mut self, later: &Self) -> Self {
        let is_memory = |name: &String| name.starts_with("memory ");
        self.0.retain(|name, _| !is_memory(name));
        let memory = later.0.iter().filter(|(name, _)| is_memory(name));
        self.0.extend(memory.map(|(name, bytes)| (name.clone(), *bytes)));
        self
    }

    /// Both footprints as a table.
    pub fn beside(&self, later: &Self) -> String {
        let names: BTreeSet<_> = self.0.keys().chain(later.0.keys()).collect();
        let at = |counts: &Self, name: &String| counts.0.get(name).copied().unwrap_or_default();
        let line = |name| format!("{name:<64} {:>10} {:>10}", at(self, name), at(later, name));
        let head = format!("{:<64} {:>10} {:>10}", "", "before", "after");
        [head]
            .into_iter()
            .chain(names.into_iter().map(line))
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn add_processes(&mut self, groups: &[String]) -> Result<()> {
        let (mut networks, mut ports, mut links) = (BTreeSet::new(), 0, 0);
        for pid in list_pids()? {
            // A process that has exited meanwhile holds nothing.
            let (Some(name), Some(place)) = (name_of(pid), place_of(pid, groups)) else {
                continue;
            };
            let what = format!("{name} {place}");
            self.count(format!("processes {what}"), 1);
            if SERVERS.contains(&name.as_str()) {
                self.count(format!("memory of {what}"), anonymous_memory(pid).unwrap_or_default());
                let files = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64);
                self.count(format!("files of {what}"), files);
            }
            if fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|network| networks.insert(network)) {
                ports += count_ports(pid);
                links += count_lines(&format!("/proc/{pid}/net/dev"));
            }
        }
        self.count("ports".to_owned(), ports);
        self.count("network links".to_owned(), links);
        self.count("network namespaces".to_owned(), networks.len() as u64);
        Ok(())
    }

    async fn add_nats(&mut self, stack: &Stack) -> Result<()> {
        for (path, names) in [
            ("jsz", ["streams", "consumers"]),
            ("varz", ["connections", "subscriptions"]),
        ] {
            let mut ask = Command::new("nsenter");
            ask.arg(format!("--net=/run/netns/{}", stack.var("YOKE_NETNS")?))
                .args(["--", "curl", "--silent", "--fail", "--max-time", "5"])
                .arg(format!("http://127.0.0.1:8222/{path}"));
            let said: Value =
                serde_json::from_str(&run(ask, LIMIT).await?.ok()?).context("parsing the monitoring data of NATS")?;
            for name in names {
                let count = said[name]
                    .as_u64()
                    .with_context(|| format!("NATS does not report its {name}"))?;
                self.count(format!("NATS {name}"), count);
            }
        }
        Ok(())
    }

    fn count(&mut self, name: String, count: u64) {
        *self.0.entry(name).or_default() += count;
    }
}

/// Maximum growth of a count that is no leak.
fn allowance(name: &str, before: u64) -> u64 {
    match name.split(' ').next() {
        Some("memory") if name.starts_with(OWN) => before / 8 + OWN_MEMORY,
        Some("memory") => before / 4 + MEMORY,
        Some("files") if name.starts_with(PASSED_ON) => FILES * 2,
        Some("files") => FILES,
        _ if name == "NATS connections" => CONNECTIONS,
        _ if name == "NATS subscriptions" => SUBSCRIPTIONS,
        _ => 0,
    }
}

/// Name of a process' program. The kernel's own process name is truncated.
fn name_of(pid: u32) -> Option<String> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = program.file_name()?.to_str()?;
    Some(name.trim_end_matches(" (deleted)").to_owned())
}

/// Describes which group a process is in. Processes of pods count separately from other processes
/// of the host or of a worker.
fn place_of(pid: u32, groups: &[String]) -> Option<String> {
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let parts = || own.lines().flat_map(|line| line.split('/'));
    let group = groups.iter().find(|group| parts().any(|part| part == *group))?;
    let pods = if parts().any(|part| part == "kubepods") {
        "pods of "
    } else {
        ""
    };
    Some(format!("in {pods}{group}"))
}

/// Number of groups with this name, including groups below them, in all hierarchies.
fn count_groups(name: &str) -> u64 {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    hierarchies
        .chain([PathBuf::from(root)])
        .map(|hierarchy| count_folders(&hierarchy.join(name)))
        .sum()
}

fn count_folders(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let folders = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    1 + folders.map(|folder| count_folders(&folder.path())).sum::<u64>()
}

/// Number of TCP ports that listen in a process' network namespace, and of unconnected UDP ports.
fn count_ports(pid: u32) -> u64 {
    const LISTENING: &str = "0A";
    const UNCONNECTED: &str = "07";
    let count = |file: &str, wanted: &str| {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        let states = table.lines().filter_map(|line| line.split_whitespace().nth(3));
        states.filter(|state| *state == wanted).count() as u64
    };
    let tcp = count("tcp", LISTENING) + count("tcp6", LISTENING);
    tcp + count("udp", UNCONNECTED) + count("udp6", UNCONNECTED)
}

fn count_lines(file: &str) -> u64 {
    fs::read_to_string(file).map_or(0, |text| text.lines().count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footprint(counts: &[(&str, u64)]) -> Footprint {
        Footprint(
            counts
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
        )
    }

    #[test]
    fn one_process_more_is_a_leak_and_a_little_memory_is_none() {
        let before = footprint(&[
            ("processes a", 2),
            ("memory of a", 40 << 20),
            ("memory of yoke-a", 24 << 20),
            ("NATS streams", 3),
            ("files of a", 10),
            ("files of envoy in a", 60),
        ]);
        let table = [
            ("the same", footprint(&[("processes a", 2), ("NATS streams", 3)]), 0),
            ("fewer", footprint(&[("processes a", 1), ("NATS streams", 2)]), 0),
            ("a little memory", footprint(&[("memory of a", 60 << 20)]), 0),
            ("much memory", footprint(&[("memory of a", 80 << 20)]), 1),
            ("a little of Yoke's", footprint(&[("memory of yoke-a", 31 << 20)]), 0),
            ("much of Yoke's", footprint(&[("memory of yoke-a", 32 << 20)]), 1),
            (
                "some files",
                footprint(&[("files of a", 18), ("files of envoy in a", 76)]),
                0,
            ),
            (
                "many files",
                footprint(&[("files of a", 19), ("files of envoy in a", 77)]),
                2,
            ),
            ("one of each", footprint(&[("processes a", 3), ("NATS streams", 4)]), 2),
            ("of another name", footprint(&[("processes b", 1)]), 1),
        ];
        for (rule, after, leaks) in table {
            assert_eq!(before.grown(&after).len(), leaks, "{rule}");
        }
    }

    #[test]
    fn a_program_that_does_not_listen_yet_has_not_started() {
        let started = footprint(&[("processes a", 2), ("ports", 7), ("memory of a", 1)]);
        for (rule, other, expected) in [
            (
                "another memory",
                footprint(&[("processes a", 2), ("ports", 7), ("memory of a", 2)]),
                true,
            ),
            ("a port less", footprint(&[("processes a", 2), ("ports", 6)]), false),
            ("a process less", footprint(&[("processes a", 1), ("ports", 7)]), false),
        ] {
            assert_eq!(started.runs_as(&other), expected, "{rule}");
        }
    }

    #[test]
    fn memory_that_is_allocated_until_halfway_is_no_leak() {
        let before = footprint(&[("processes a", 2), ("memory of a", 40 << 20)]);
        let halfway = footprint(&[("processes a", 3), ("memory of a", 100 << 20)]);
        let before = before.with_memory_of(&halfway);
        for (rule, after, leaks) in [
            (
                "it stays",
                footprint(&[("processes a", 2), ("memory of a", 120 << 20)]),
                0,
            ),
            ("it grows on", footprint(&[("memory of a", 160 << 20)]), 1),
            ("all else counts from the beginning", halfway, 1),
        ] {
            assert_eq!(before.grown(&after).len(), leaks, "{rule}");
        }
    }

    #[test]
    fn the_own_process_has_a_name_and_is_in_no_group_of_a_stack() {
        let own = std::process::id();
        assert!(name_of(own).unwrap().starts_with("yoke_e2e"), "{:?}", name_of(own));
        assert_eq!(place_of(own, &["yoke-00000000".to_owned()]), None);
    }
}
