//! Reads the facts that [`preflight`](mod@crate::preflight) checks from this machine.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use yoke_supervisor::cgroups::parse_hierarchies;
use yoke_supervisor::programs::{PATH, find_program};

use crate::arguments::{MachineOptions, WIREGUARD_PORT};
use crate::error_chain::format_chain;
use crate::host::files::FileError;
use crate::host::sysctls::BRIDGE_FILTER;
use crate::limits::{Capacity, Limits};
use crate::preflight::facts::{Cgroups, Facts, Fault, Filter, PORTS, PROGRAMS, Purpose, Space};
use crate::process::own_status::read_capabilities;
use crate::{bundle, systemd};

/// Required capabilities and their bits in `CapEff`, as in `linux/capability.h`.
const CAPABILITIES: &[(&str, u32)] = &[("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21), ("CAP_SYS_RESOURCE", 24)];
/// Device file for creating TUN devices. Opening it makes the kernel load the module.
const TUN: &str = "/dev/net/tun";
/// Timeout for listing packet filter rules. Tools answer at once or hang.
const FILTER_LIMIT: Duration = Duration::from_secs(10);
/// Upper bound for the error output of a program, in characters.
const OUTPUT_MAX: usize = 200;

/// Reads all facts except the clock skew. The worker's folder need not exist.
pub(crate) async fn observe(options: &MachineOptions) -> Facts {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let effective = read_capabilities();
    let release = read("/proc/sys/kernel/osrelease");
    let nft = observe_filter("nft", &["list", "tables"]).await;
    Facts {
        root: rustix::process::geteuid().is_root(),
        capabilities: CAPABILITIES
            .iter()
            .map(|(name, bit)| (*name, effective >> bit & 1 == 1))
            .collect(),
        host_name: host_name(),
        cgroups: observe_cgroups(&read("/proc/self/mountinfo"), &read("/proc/cgroups")),
        allow_cgroup_v1: options.allow_cgroup_v1,
        kernel: parse_release(&release),
        nf_tables: nft == Filter::Works || has_module(release.trim(), "nf_tables"),
        overlay: has_overlay(&read("/proc/filesystems")) || has_module(release.trim(), "overlay"),
        ip_forward: parse_flag("/proc/sys/net/ipv4/ip_forward"),
        bridge_filter: parse_flag(BRIDGE_FILTER),
        nft,
        tun: fs::OpenOptions::new().read(true).write(true).open(TUN).is_ok(),
        pod_network: true,
        wireguard: observe_wireguard(options.wireguard_port),
        swap: parse_swaps(&read("/proc/swaps")),
        ports: PORTS.iter().map(|(port, _)| (*port, is_taken(*port))).collect(),
        space: observe_space(&options.root),
        bundle: observe_bundle(&options.bundle),
        memory: parse_memory(&read("/proc/meminfo")),
        programs: PROGRAMS
            .iter()
            .map(|(name, _, _)| (*name, find_program(name)))
            .collect(),
        systemd: systemd::is_running(),
        purpose: Purpose::Any,
        uplink: Ok(()),
        skew: None,
    }
}

/// Returns the host name.
pub(crate) fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns version 2 only if it is mounted alone: beside version 1 it has no controllers.
fn observe_cgroups(mountinfo: &str, known: &str) -> Cgroups {
    let hierarchies = parse_hierarchies(mountinfo);
    if hierarchies.iter().any(|hierarchy| !hierarchy.v2) {
        return Cgroups::V1(parse_controllers(known));
    }
    match hierarchies.first() {
        Some(hierarchy) => {
            let controllers = fs::read_to_string(hierarchy.mount.join("cgroup.controllers")).unwrap_or_default();
            Cgroups::V2(controllers.split_whitespace().map(str::to_owned).collect())
        }
        None => Cgroups::None,
    }
}

/// Parses `/proc/cgroups`: name, hierarchy, number of groups, enabled flag. Hierarchy 0 means that
/// the controller is not mounted.
fn parse_controllers(known: &str) -> BTreeSet<String> {
    let fields = known.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| matches!(fields[..], [_, hierarchy, _, "1"] if hierarchy != "0"))
        .filter_map(|fields| fields.first().map(ToString::to_string))
        .collect()
}

/// Reports whether overlayfs is loaded or built in.
fn has_overlay(file_systems: &str) -> bool {
    file_systems.split_whitespace().any(|name| name == "overlay")
}

/// Reports whether a module is built in, or can be loaded on first use.
fn has_module(release: &str, name: &str) -> bool {
    let folder = Path::new("/lib/modules").join(release);
    let names = |list| fs::read_to_string(folder.join(list)).is_ok_and(|text| text.contains(&format!("/{name}.ko")));
    names("modules.dep") || names("modules.builtin")
}

/// Parses `6.1.0-18-amd64`.
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn parse_flag(file: &str) -> Option<bool> {
    fs::read_to_string(file).ok().map(|text| text.trim() == "1")
}

fn parse_swaps(swaps: &str) -> Vec<String> {
    let names = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn parse_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the capacity of the machine, read like the kubelet does from `root` (`/`). A worker
/// without limits does not need it: a container may hide these files.
pub(crate) fn read_capacity(root: &Path, limits: &Limits) -> Result<Option<Capacity>, FileError> {
    if limits.are_none() {
        return Ok(None);
    }
    let read = |file: &str, parse: &dyn Fn(&str) -> Option<u64>| {
        let file = root.join(file);
        let text = fs::read_to_string(&file).map_err(|error| FileError::new("read", &file, error))?;
        let unknown = || FileError::new("read", &file, ErrorKind::InvalidData.into());
        parse(&text).filter(|amount| *amount > 0).ok_or_else(unknown)
    };
    let count = |list: &str| Some(count_processors(list).into());
    let cpus = read("sys/devices/system/cpu/online", &count)?;
    Ok(Some(Capacity {
        cpus: u32::try_from(cpus).unwrap_or(u32::MAX).saturating_mul(1000),
        memory: read("proc/meminfo", &parse_memory)?,
    }))
}

/// Counts the CPUs in a list such as `0-3,8`.
fn count_processors(list: &str) -> u32 {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    let counts = list.trim().split(',').filter_map(count);
    counts.fold(0, u32::saturating_add)
}

async fn observe_filter(program: &str, arguments: &[&str]) -> Filter {
    let Some(path) = find_program(program) else {
        return Filter::Missing;
    };
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output_text = match tokio::time::timeout(FILTER_LIMIT, command.output()).await {
        Ok(Ok(output)) if output.status.success() => return Filter::Works,
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr)
            .trim()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no response within {FILTER_LIMIT:?}"),
    };
    Filter::Refused(format!(
        "{program}: {}",
        output_text.chars().take(OUTPUT_MAX).collect::<String>()
    ))
}

/// Returns the port, whether the user chose it, and whether another process uses it.
fn observe_wireguard(wanted: Option<u16>) -> (u16, bool, bool) {
    let port = wanted.unwrap_or(WIREGUARD_PORT);
    (port, wanted.is_some(), is_taken_by_udp(port))
}

fn is_taken(port: u16) -> bool {
    // Binding to all addresses fails if the port is in use on any of them.
    let bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

fn is_taken_by_udp(port: u16) -> bool {
    let bound = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

fn observe_bundle(folder: &Path) -> Result<String, Fault> {
    let describe = |count| format!("{count} files in {}", folder.display());
    bundle::check_files(folder).map(describe).map_err(|error| Fault {
        to_do: error.hint(),
        found: format_chain(&error),
    })
}

/// Returns the free space of the volume that has, or will have, the folder.
fn observe_space(folder: &Path) -> Option<Space> {
    let path = folder.ancestors().find(|path| path.is_dir())?;
    let found = rustix::fs::statvfs(path).ok()?;
    Some(Space {
        path: path.to_owned(),
        free: found.f_bavail.saturating_mul(found.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_counts_where_it_is_mounted() {
        const V1: &str = "\
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
38 30 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        const KNOWN: &str = "\
#subsys_name\thierarchy\tnum_cgroups\tenabled
cpu\t2\t3\t1
memory\t3\t3\t1
pids\t0\t3\t1
hugetlb\t4\t1\t0
";
        let expected = ["cpu", "memory"].map(str::to_owned).into();
        assert_eq!(observe_cgroups(V1, KNOWN), Cgroups::V1(expected));
        assert_eq!(
            observe_cgroups("1 1 0:1 / / rw - ext4 /dev/vda rw\n", KNOWN),
            Cgroups::None
        );
        let elsewhere = "26 25 0:23 / /mnt/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(observe_cgroups(elsewhere, KNOWN), Cgroups::None);
    }

    #[test]
    fn swap_and_memory_are_read() {
        let swaps = "Filename\t\t\tType\t\tSize\n/dev/vda2   partition\t1024\n/swap file\t1024\n";
        assert_eq!(parse_swaps(swaps), ["/dev/vda2", "/swap"]);
        assert_eq!(parse_swaps("Filename Type Size\n"), [""; 0]);
        assert_eq!(parse_memory("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(parse_memory("MemTotal: x kB\n"), None);
    }

    #[test]
    fn processors_are_counted() {
        for (list, count) in [("0-1\n", 2), ("0\n", 1), ("0-3,8,10-11\n", 7), ("", 0), ("3-0", 0)] {
            assert_eq!(count_processors(list), count, "{list:?}");
        }
    }

    #[test]
    fn only_limits_need_what_the_machine_has() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits {
            cpus: Some(500),
            memory: None,
        };
        let read = |limits: &Limits| read_capacity(dir.path(), limits);
        assert_eq!(read(&Limits::default()).unwrap(), None, "it may be hidden");
        read(&limits).unwrap_err();
        let cpu = dir.path().join("sys/devices/system/cpu");
        fs::create_dir_all(&cpu).unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        for (online, meminfo, expected) in [
            ("0-1\n", "MemTotal: 2048 kB\n", Some((2000, 2 << 20))),
            ("0-1\n", "MemTotal: x kB\n", None),
            ("\n", "MemTotal: 2048 kB\n", None),
        ] {
            fs::write(cpu.join("online"), online).unwrap();
            fs::write(dir.path().join("proc/meminfo"), meminfo).unwrap();
            let found = read(&limits).ok().flatten().map(|has| (has.cpus, has.memory));
            assert_eq!(found, expected, "{online:?}, {meminfo:?}");
        }
        let own = read_capacity(Path::new("/"), &limits).unwrap().unwrap();
        assert!(own.cpus >= 1000 && own.memory > 1 << 28, "{own:?}");
    }

    #[test]
    fn a_port_with_a_listener_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_taken(port));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(is_taken_by_udp(socket.local_addr().unwrap().port()));
    }

    #[test]
    fn a_kernel_has_a_version() {
        for (release, expected) in [
            ("6.1.0-18-amd64\n", Some((6, 1))),
            ("5.13", Some((5, 13))),
            ("5.14-rc1", Some((5, 14))),
            ("6", None),
            ("", None),
        ] {
            assert_eq!(parse_release(release), expected, "{release:?}");
        }
    }

    #[test]
    fn space_is_that_of_the_volume_where_the_folder_will_be() {
        let dir = tempfile::tempdir().unwrap();
        let space = observe_space(&dir.path().join("not/there/yet")).unwrap();
        assert_eq!(space.path, dir.path());
        assert!(space.free > 0);
    }
}
