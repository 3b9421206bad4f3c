//! Checks what a machine needs to be a worker: facts come in, one row per check goes out. Pure.
//!
//! ```text
//!  host/facts.rs ──Facts──▶ inspect ──▶ Row: check · found · to do ──▶ report.rs: table or JSON ──▶ user, script
//! ```
//!
//! A failed row means that the kubelet, or every Pod, would not start. A warning means that a
//! feature is missing or limited.

use crate::node_name::is_node_name;

pub(crate) mod facts;
mod kernel;
pub(crate) mod report;
pub(crate) mod row;

use facts::{Cgroups, Facts, Fault, PORTS, PROGRAMS, Purpose, Space};
use row::Row;

/// Controllers that the kubelet needs to start.
const CONTROLLERS: &[&str] = &["cpu", "cpuset", "memory", "pids"];

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

/// Runs all checks, in the order in which problems are best fixed.
pub(crate) fn inspect(facts: &Facts) -> Vec<Row> {
    let mut rows = vec![inspect_user(facts)];
    rows.extend(facts.root.then(|| inspect_capabilities(facts)));
    rows.push(inspect_name(&facts.host_name));
    rows.push(inspect_cgroups(facts));
    rows.push(kernel::inspect_kernel(facts));
    rows.push(kernel::inspect_overlay(facts.overlay));
    // A sandbox has sysctls and ports of its own.
    let in_sandbox = facts.purpose == Purpose::Sandbox;
    rows.extend((!in_sandbox).then(|| kernel::inspect_forward(facts.ip_forward)));
    rows.push(kernel::inspect_bridge(facts.bridge_filter));
    rows.push(kernel::inspect_filter(&facts.nft));
    rows.extend(facts.pod_network.then(|| kernel::inspect_tun(facts.tun)));
    rows.extend(facts.root.then(|| kernel::inspect_uplink(&facts.uplink, in_sandbox)));
    rows.push(inspect_swap(&facts.swap));
    let ports = PORTS.iter().filter(|_| !in_sandbox);
    rows.extend(ports.map(|(port, use_)| inspect_port(facts, *port, use_)));
    let (port, asked_for, taken) = facts.wireguard;
    // An ephemeral worker chooses a free port, unless the user names one.
    rows.extend((facts.pod_network && (asked_for || !in_sandbox)).then(|| inspect_wireguard(port, taken)));
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
        Row::failed("user", "not root", "run the command as root, for example with sudo")
    }
}

fn inspect_capabilities(facts: &Facts) -> Row {
    let lacking = |name: &&str| !facts.capabilities.get(name).copied().unwrap_or(false);
    let needed: Vec<_> = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"].into_iter().filter(lacking).collect();
    if !needed.is_empty() {
        let to_do = "run the command on the machine itself, or in a privileged container";
        return Row::failed("capabilities", format!("missing {}", needed.join(", ")), to_do);
    }
    if lacking(&"CAP_SYS_RESOURCE") {
        let found = "missing CAP_SYS_RESOURCE";
        let to_do =
            "no action required; when memory runs out, the kernel does not prefer Pods over the worker's programs";
        return Row::warning("capabilities", found, to_do);
    }
    Row::ok("capabilities", "sufficient")
}

fn inspect_name(name: &str) -> Row {
    if is_node_name(&name.to_ascii_lowercase()) {
        Row::ok("name", name.to_ascii_lowercase())
    } else {
        let to_do = "set a host name of letters, digits and `-`, or pass --name";
        Row::failed("name", format!("{name:?} is not a valid Node name"), to_do)
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
        let to_do = "enable the controllers: remove options such as cgroup_disable=memory from the kernel command line, or add \
                     cgroup_enable=memory";
        return Row::failed(CHECK, found, to_do);
    }
    match (&facts.cgroups, facts.allow_cgroup_v1) {
        (Cgroups::V1(_), false) => Row::failed(
            CHECK,
            "version 1",
            "boot with systemd.unified_cgroup_hierarchy=1, or pass --allow-cgroup-v1 while the kubelet still supports version 1",
        ),
        (Cgroups::V1(_), true) => Row::warning(
            CHECK,
            "version 1",
            "switch to version 2: Kubernetes is removing support for version 1",
        ),
        _ => Row::ok(CHECK, version),
    }
}

fn inspect_swap(swap: &[String]) -> Row {
    if swap.is_empty() {
        Row::ok("swap", "none")
    } else {
        let to_do =
            "Pods do not use swap; to keep their secrets off the disk, run swapoff -a and remove swap from /etc/fstab";
        Row::warning("swap", swap.join(", "), to_do)
    }
}

fn inspect_port(facts: &Facts, port: u16, use_: &str) -> Row {
    let check = format!("port {port}");
    if facts.ports.get(&port).copied().unwrap_or(false) {
        let to_do = format!(
            "stop the process that listens there (`ss -ltnp sport = :{port}`), perhaps another kubelet: the port is for {use_}"
        );
        Row::failed(&check, "taken", to_do)
    } else {
        Row::ok(&check, "free")
    }
}

fn inspect_wireguard(port: u16, taken: bool) -> Row {
    let check = format!("port {port}/udp");
    if taken {
        let to_do = format!(
            "stop the process that listens there (`ss -lnup sport = :{port}`), or choose another port with \
             --wireguard-port: tunnels to other workers use it"
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
        return Row::warning(
            CHECK,
            "cannot be read",
            "check that the folder of --root can be created",
        );
    };
    let found = format!("{} free at {}", to_size(space.free), space.path.display());
    let to_do = "free disk space, or choose another volume with --root: the kubelet evicts Pods below 3 GiB";
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
            let to_do = format!("use a machine with at least {}", to_size(MEMORY_WANTED));
            Row::failed(CHECK, to_size(memory), to_do)
        }
        Some(memory) if memory < MEMORY_WANTED => Row::warning(CHECK, to_size(memory), "only small Pods will fit"),
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
        "not the init system",
        "`yoke-worker join` needs systemd; start `yoke-worker run` with the init system of this machine",
    );
    match (facts.systemd, facts.purpose == Purpose::Join) {
        (true, _) => Row::ok("systemd", "is the init system"),
        (false, true) => Row::failed("systemd", found, to_do),
        (false, false) => Row::warning("systemd", found, to_do),
    }
}

fn inspect_clock(skew: &Result<i64, String>) -> Row {
    const CHECK: &str = "clock";
    let seconds = match skew {
        Ok(seconds) => *seconds,
        Err(why) => {
            let to_do = "check that the machine reaches the API server in the join token, and that the token is complete and recent";
            return Row::failed(CHECK, format!("cannot read the time of the API server: {why}"), to_do);
        }
    };
    let side = if seconds < 0 { "behind" } else { "ahead of" };
    let found = format!("{} s {side} the API server", seconds.unsigned_abs());
    let to_do = "synchronize the clock, for example with systemd-timesyncd or chrony: certificates may look not yet valid or expired";
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
