//! The facts about a machine that preflight checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Ports of the kubelet, with their purpose.
pub(crate) const PORTS: &[(u16, &str)] = &[(10250, "the kubelet's API"), (10248, "the kubelet's health endpoint")];
/// Programs of the machine that the worker's parts run, each with its purpose and its Debian
/// package.
pub(crate) const PROGRAMS: &[(&str, &str, &str)] = &[
    ("mount", "mounts volumes for the kubelet", "mount"),
    ("umount", "unmounts volumes for the kubelet", "mount"),
    ("ip", "configures routes to Pods of other workers", "iproute2"),
    ("setpriv", "starts the kubelet and containerd", "util-linux"),
    ("unshare", "creates the sandbox of `run --rm`", "util-linux"),
    (
        "nsenter",
        "configures the network of the sandbox of `run --rm`",
        "util-linux",
    ),
];

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
    Sandbox,
}
