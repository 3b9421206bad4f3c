//! The worker's part of its control groups: `<name>/node` has the worker and the programs that it
//! starts, `<name>/pods` is the kubelet's root. Limits apply to both.

use std::io;

use yoke_supervisor::cgroups::{CgroupError, Cgroups, PODS, write_existing};

use crate::host::files::FileError;
use crate::limits::Limits;

const NODE: &str = "node";
/// Period of CPU quotas in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;
/// Files with limits, in version 2 and in version 1.
const QUOTA: (&str, &str) = ("cpu.max", "cpu.cfs_quota_us");
const MEMORY: (&str, &str) = ("memory.max", "memory.limit_in_bytes");

/// Creates missing groups, and moves this process into the node's group.
pub(crate) fn enter(cgroups: &Cgroups) -> Result<(), CgroupError> {
    for group in ["", NODE, PODS] {
        cgroups.create(group)?;
    }
    cgroups.join(NODE)?;
    // Only now: a group with processes of its own cannot enable controllers for its children.
    cgroups.enable_controllers(PODS);
    Ok(())
}

/// Limits the worker and its Pods together, and the memory of Pods a little lower, so that the
/// kernel kills Pods before the worker. Removes limits of an earlier start that are no longer
/// configured.
pub(crate) fn set_limits(cgroups: &Cgroups, limits: &Limits) -> Result<(), FileError> {
    let quota = limits.cpus.map(|cpus| u64::from(cpus) * PERIOD / 1000);
    set_limit(cgroups, "", QUOTA, quota)?;
    set_limit(cgroups, "", MEMORY, limits.memory)?;
    set_limit(cgroups, PODS, MEMORY, limits.pods_memory())
}

/// Writes a limit in the hierarchy that has its controller, into the file of that version.
fn set_limit(cgroups: &Cgroups, part: &str, files: (&str, &str), limit: Option<u64>) -> Result<(), FileError> {
    let (name, none) = if cgroups.is_v2() {
        (files.0, "max")
    } else {
        (files.1, "-1")
    };
    let value = limit.map_or_else(|| none.to_owned(), |limit| limit.to_string());
    let mut missing = None;
    for group in cgroups.paths(part) {
        let file = group.join(name);
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

#[cfg(test)]
mod tests {
    use std::fs;

    use yoke_supervisor::cgroups::Hierarchy;

    use super::*;

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
            let cgroups = Cgroups::new("w", mounts.map(|mount| Hierarchy { mount, v2 }).collect());
            assert!(set_limits(&cgroups, &limits).is_err(), "without a controller");
            set_limits(&cgroups, &Limits::default()).unwrap();
            for (file, _) in expected {
                let file = dir.path().join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "").unwrap();
            }
            for (limits, bounded) in [(limits, true), (Limits::default(), false)] {
                set_limits(&cgroups, &limits).unwrap();
                for (file, limit) in expected {
                    let value = fs::read_to_string(dir.path().join(file)).unwrap();
                    assert_eq!(value, if bounded { limit } else { none }, "{file}");
                }
            }
        }
    }
}
