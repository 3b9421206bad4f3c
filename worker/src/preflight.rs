//! Checks what a machine needs to be a worker: facts come in, one row per check goes out. Pure.
//!
//! ```text
//!  machine.rs ──Facts──▶ inspect ──▶ Row: check · found · to do ──▶ report.rs: table or JSON ──▶ user, script
//! ```
//!
//! A failed row means that the kubelet, or every Pod, would not start. A warning means that a
//! feature is missing or limited.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;
use yoke_api::names::is_label;

use crate::node_name::is_node_name;

mod kernel;
pub(crate) mod report;

/// Controllers that the kubelet needs to start.
const CONTROLLERS: &[&str] = &["cpu", "cpuset", "memory", "pids"];
/// Ports of the kubelet, with their purpose.
pub(crate) const PORTS: &[(u16, &str)] = &[(10250, "the kubelet's API"), (10248, "the kubelet's health")];
/// Programs of the machine that the worker's parts run, each with its purpose and its Debian
/// package.
pub(crate) const PROGRAMS: &[(&str, &str, &str)] = &[
    ("mount", "the kubelet mounts volumes with it", "mount"),
    ("umount", "the kubelet unmounts volumes with it", "mount"),
    ("ip", "Pods of other workers are routed with it", "iproute2"),
    (
        "setpriv",
        "the kubelet and containerd are started with it",
        "util-linux",
    ),
    ("unshare", "`run --rm` puts the worker in a box with it", "util-linux"),
    ("nsenter", "`run --rm` connects the box with it", "util-linux"),
];

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Minimum memory. The kubelet starts evictions at 100 MiB; containerd, the kubelet and one shim
/// per Pod need the rest.
const MEMORY_MIN: u64 = 512 * MIB;
const MEMORY_WANTED: u64 = 1536 * MIB;
/// Minimum disk space. The kubelet evicts Pods below 3 GiB (`config.rs`), and the programs need 1
/// GiB.
const DISK_MIN: u64 = 4 * GIB;
const DISK_WANTED: u64 = 10 * GIB;
/// Largest clock difference in seconds. A certificate is valid from five minutes before its
/// creation.
const SKEW_MAX: u64 = 240;
const SKEW_WANTED: u64 = 5;

/// How control groups are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cgroups {
    /// Version 2 alone, with these controllers.
    V2(BTreeSet<String>),
    /// Version 1, with these controllers.
    V1(BTreeSet<String>),
    /// Not mounted.
    None,
}

/// Whether a packet filter can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// The program is not installed.
    Missing,
    /// The program or the kernel reports an error.
    Refused(String),
    /// The program lists its rules.
    Works,
}

/// Free space of a volume, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) path: PathBuf,
    pub(crate) free: u64,
}

/// A problem, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) found: String,
    pub(crate) to_do: &'static str,
}

/// The facts about a machine. `None` means that a fact could not be read.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) root: bool,
    /// For each required capability, whether this process has it.
    pub(crate) capabilities: BTreeMap<&'static str, bool>,
    pub(crate) host_name: String,
    pub(crate) cgroups: Cgroups,
    /// Whether the user accepts cgroup v1.
    pub(crate) allow_cgroup_v1: bool,
    /// Major and minor version.
    pub(crate) kernel: Option<(u32, u32)>,
    pub(crate) nf_tables: bool,
    pub(crate) overlay: bool,
    pub(crate) ip_forward: Option<bool>,
    /// Whether bridged packets pass the packet filter; `None` if the kernel module is not loaded.
    pub(crate) bridge_filter: Option<bool>,
    pub(crate) nft: Filter,
    /// Whether TUN devices can be created.
    pub(crate) tun: bool,
    /// Whether the worker is to create the Pod network.
    pub(crate) pod_network: bool,
    /// WireGuard port, whether the user chose it, and whether another process uses it.
    pub(crate) wireguard: (u16, bool, bool),
    /// Active swap devices and files.
    pub(crate) swap: Vec<String>,
    /// For each of [`PORTS`], whether a process listens on it.
    pub(crate) ports: BTreeMap<u16, bool>,
    pub(crate) space: Option<Space>,
    /// Description of the bundle, or why it cannot be used.
    pub(crate) bundle: Result<String, Fault>,
    pub(crate) memory: Option<u64>,
    /// Path of each of [`PROGRAMS`].
    pub(crate) programs: BTreeMap<&'static str, Option<PathBuf>>,
    /// Whether systemd is the init system of the machine.
    pub(crate) systemd: bool,
    /// Purpose of the checks.
    pub(crate) purpose: Purpose,
    /// Whether an ephemeral worker's network can be created, or why not.
    pub(crate) uplink: Result<(), String>,
    /// Seconds that this clock is ahead of the API server's, or why that is unknown; `None` without
    /// a join token.
    pub(crate) skew: Option<Result<i64, String>>,
}

/// Purpose of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A worker in the machine's network, or information only.
    Any,
    /// A worker that systemd runs.
    Join,
    /// An ephemeral worker with a network of its own.
    Box,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    Warning,
    Failed,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) check: String,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    #[serde(rename = "toDo", skip_serializing_if = "Option::is_none")]
    pub(crate) to_do: Option<String>,
}

impl Row {
    fn ok(check: &str, found: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Ok,
            found: found.into(),
            to_do: None,
        }
    }

    fn bad(check: &str, verdict: Verdict, found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict,
            found: found.into(),
            to_do: Some(to_do.into()),
        }
    }

    fn failed(check: &str, found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self::bad(check, Verdict::Failed, found, to_do)
    }

    fn warning(check: &str, found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self::bad(check, Verdict::Warning, found, to_do)
    }
}

/// Reports whether the machine can be a worker: no check failed.
pub(crate) fn is_fit(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.verdict != Verdict::Failed)
}

/// Runs all checks, in the order in which problems are best fixed.
pub(crate) fn inspect(facts: &Facts) -> Vec<Row> {
    let mut rows = vec![inspect_user(facts)];
    rows.extend(facts.root.then(|| inspect_capabilities(facts)));
    rows.push(inspect_name(&facts.host_name));
    rows.push(inspect_cgroups(facts));
    rows.push(kernel::inspect_kernel(facts));
    rows.push(kernel::inspect_overlay(facts.overlay));
    // A sandbox has sysctls and ports of its own.
    let in_box = facts.purpose == Purpose::Box;
    rows.extend((!in_box).then(|| kernel::inspect_forward(facts.ip_forward)));
    rows.push(kernel::inspect_bridge(facts.bridge_filter));
    rows.push(kernel::inspect_filter(&facts.nft));
    rows.extend(facts.pod_network.then(|| kernel::inspect_tun(facts.tun)));
    rows.extend(facts.root.then(|| kernel::inspect_uplink(&facts.uplink, in_box)));
    rows.push(inspect_swap(&facts.swap));
    let ports = PORTS.iter().filter(|_| !in_box);
    rows.extend(ports.map(|(port, use_)| inspect_port(facts, *port, use_)));
    let (port, asked_for, taken) = facts.wireguard;
    // An ephemeral worker chooses a free port, unless the user names one.
    rows.extend((facts.pod_network && (asked_for || !in_box)).then(|| inspect_wireguard(port, taken)));
    rows.push(inspect_bundle(&facts.bundle));
    rows.push(inspect_space(facts.space.as_ref()));
    rows.push(inspect_memory(facts.memory));
    let programs = PROGRAMS.iter();
    rows.extend(programs.map(|(name, use_, package)| inspect_program(facts, name, use_, package)));
    rows.push(inspect_systemd(facts));
    rows.extend(facts.skew.as_ref().map(inspect_clock));
    rows
}

fn inspect_user(facts: &Facts) -> Row {
    if facts.root {
        Row::ok("user", "root")
    } else {
        Row::failed("user", "not root", "run it with sudo, or as root")
    }
}

fn inspect_capabilities(facts: &Facts) -> Row {
    let lacking = |name: &&str| !facts.capabilities.get(name).copied().unwrap_or(false);
    let needed: Vec<_> = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"].into_iter().filter(lacking).collect();
    if !needed.is_empty() {
        let to_do = "run it on the machine itself, or in a privileged container";
        return Row::failed("capabilities", format!("without {}", needed.join(", ")), to_do);
    }
    if lacking(&"CAP_SYS_RESOURCE") {
        let found = "without CAP_SYS_RESOURCE";
        let to_do = "nothing must be done; who is killed first when memory runs out is the kernel's choice";
        return Row::warning("capabilities", found, to_do);
    }
    Row::ok("capabilities", "enough")
}

fn inspect_name(name: &str) -> Row {
    if is_node_name(&name.to_ascii_lowercase()) {
        Row::ok("name", name.to_ascii_lowercase())
    } else {
        let to_do = "give the machine a name of letters, digits and `-`, or the worker one with --name";
        Row::failed("name", format!("{name:?} cannot be a Node's name"), to_do)
    }
}

fn inspect_cgroups(facts: &Facts) -> Row {
    const CHECK: &str = "control groups";
    let (version, controllers) = match &facts.cgroups {
        Cgroups::None => {
            return Row::failed(CHECK, "not mounted", "mount cgroup2 at /sys/fs/cgroup");
        }
        Cgroups::V2(controllers) => ("version 2", controllers),
        Cgroups::V1(controllers) => ("version 1", controllers),
    };
    let missing: Vec<_> = CONTROLLERS
        .iter()
        .filter(|name| !controllers.contains(**name))
        .copied()
        .collect();
    if !missing.is_empty() {
        let found = format!("{version} without {}", missing.join(", "));
        let to_do = "enable the controllers: remove what disables them from the kernel's command line, such as \
                     cgroup_disable=memory, or add cgroup_enable=memory";
        return Row::failed(CHECK, found, to_do);
    }
    match (&facts.cgroups, facts.allow_cgroup_v1) {
        (Cgroups::V1(_), false) => Row::failed(
            CHECK,
            "version 1",
            "boot with systemd.unified_cgroup_hierarchy=1, or say --allow-cgroup-v1 as long as the kubelet can do without",
        ),
        (Cgroups::V1(_), true) => Row::warning(
            CHECK,
            "version 1",
            "go over to version 2: Kubernetes gives version 1 up",
        ),
        _ => Row::ok(CHECK, version),
    }
}

fn inspect_swap(swap: &[String]) -> Row {
    if swap.is_empty() {
        Row::ok("swap", "none")
    } else {
        let to_do =
            "swapoff -a, and remove it from /etc/fstab, if secrets of Pods must not get on a disk; Pods get none of it";
        Row::warning("swap", swap.join(", "), to_do)
    }
}

fn inspect_port(facts: &Facts, port: u16, use_: &str) -> Row {
    let check = format!("port {port}");
    if facts.ports.get(&port).copied().unwrap_or(false) {
        let to_do =
            format!("end who listens there (`ss -ltnp sport = :{port}`), perhaps another kubelet: it is for {use_}");
        Row::failed(&check, "taken", to_do)
    } else {
        Row::ok(&check, "free")
    }
}

fn inspect_wireguard(port: u16, taken: bool) -> Row {
    let check = format!("port {port}/udp");
    if taken {
        let to_do = format!(
            "end who listens there (`ss -lnup sport = :{port}`), or choose another one with --wireguard-port: Pods of \
             other workers are reached by it"
        );
        Row::failed(&check, "taken", to_do)
    } else {
        Row::ok(&check, "free")
    }
}

fn inspect_bundle(bundle: &Result<String, Fault>) -> Row {
    const CHECK: &str = "bundle";
    match bundle {
        Ok(found) => Row::ok(CHECK, found.clone()),
        Err(fault) => Row::failed(CHECK, fault.found.clone(), fault.to_do),
    }
}

fn inspect_space(space: Option<&Space>) -> Row {
    const CHECK: &str = "disk";
    let Some(space) = space else {
        return Row::warning(CHECK, "cannot be read", "see that the folder of --root can be made");
    };
    let found = format!("{} free at {}", to_size(space.free), space.path.display());
    let to_do = "free some space, or choose another volume with --root: the kubelet evicts Pods below 3 GiB";
    match space.free {
        free if free < DISK_MIN => Row::failed(CHECK, found, to_do),
        free if free < DISK_WANTED => Row::warning(CHECK, found, to_do),
        _ => Row::ok(CHECK, found),
    }
}

fn inspect_memory(memory: Option<u64>) -> Row {
    const CHECK: &str = "memory";
    match memory {
        None => Row::warning(CHECK, "cannot be read", "mount /proc"),
        Some(memory) if memory < MEMORY_MIN => {
            let to_do = format!("use a machine with {} or more", to_size(MEMORY_WANTED));
            Row::failed(CHECK, to_size(memory), to_do)
        }
        Some(memory) if memory < MEMORY_WANTED => {
            Row::warning(CHECK, to_size(memory), "expect room for small Pods only")
        }
        Some(memory) => Row::ok(CHECK, to_size(memory)),
    }
}

fn inspect_program(facts: &Facts, name: &'static str, use_: &str, package: &str) -> Row {
    match facts.programs.get(name).and_then(Option::as_ref) {
        Some(path) => Row::ok(name, path.display().to_string()),
        None => Row::failed(name, "not on PATH", format!("install the package {package}: {use_}")),
    }
}

fn inspect_systemd(facts: &Facts) -> Row {
    let (found, to_do) = (
        "it is not process 1",
        "use `yoke-worker run`, by what starts programs here: `join` writes a unit of systemd",
    );
    match (facts.systemd, facts.purpose == Purpose::Join) {
        (true, _) => Row::ok("systemd", "runs this machine"),
        (false, true) => Row::failed("systemd", found, to_do),
        (false, false) => Row::warning("systemd", found, to_do),
    }
}

fn inspect_clock(skew: &Result<i64, String>) -> Row {
    const CHECK: &str = "clock";
    let seconds = match skew {
        Ok(seconds) => *seconds,
        Err(why) => {
            let to_do =
                "see that the machine reaches the API in the token, and that the token is whole and not too old";
            return Row::failed(CHECK, format!("the API did not tell its time: {why}"), to_do);
        }
    };
    let side = if seconds < 0 { "behind" } else { "ahead of" };
    let found = format!("{} s {side} the API's", seconds.unsigned_abs());
    let to_do = "synchronise it, for instance with systemd-timesyncd or chrony: certificates are not valid yet, or not any more";
    match seconds.unsigned_abs() {
        far if far > SKEW_MAX => Row::failed(CHECK, found, to_do),
        far if far > SKEW_WANTED => Row::warning(CHECK, found, to_do),
        _ => Row::ok(CHECK, found),
    }
}

fn to_size(bytes: u64) -> String {
    if bytes >= GIB {
        format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB)
    } else {
        format!("{} MiB", bytes / MIB)
    }
}

#[cfg(test)]
mod tests;
