//! The stack's part of its control groups.
//!
//! `/yoke-<id>/host` holds the supervisor and the processes that it starts. `/yoke-<id>/pods` is
//! the root of the kubelet's groups. An added node has both in `/yoke-<id>/node-<number>`.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail};
use yoke_supervisor::cgroups::{Cgroups, PODS};

/// Name, below the clone's group, of the group for the supervisor and its services.
pub const HOST: &str = "host";

/// Default CPU shares of a group per processor (cgroup v1).
const SHARES: usize = 1024;

/// Creates missing groups, and prepares them for processes.
pub fn create(cgroups: &Cgroups) -> Result<()> {
    for group in ["", HOST, PODS] {
        cgroups.create(group)?;
    }
    cgroups.enable_controllers("");
    for group in cgroups.paths(PODS).filter(|_| !cgroups.is_v2()) {
        set_cpu_shares(&group)
            .with_context(|| format!("setting the CPU shares of the control group {}", group.display()))?;
    }
    Ok(())
}

/// Moves this process into the host group of the clone or node called `name`.
pub fn join_host(name: &str) -> Result<()> {
    Ok(Cgroups::discover(name)?.join(HOST)?)
}

/// Removes the groups, which must be empty. Fails if some remain after all retries.
pub async fn remove(cgroups: &Cgroups) -> Result<()> {
    let left = cgroups.remove().await;
    if !left.is_empty() {
        bail!("cannot remove the control groups {left:?}: their `cgroup.procs` list the remaining processes");
    }
    Ok(())
}

/// Gives the pods' group the CPU shares that a kubelet gives its root group under cgroup v1: the
/// default times the number of processors. The kubelet sets them only below its root group, which
/// is this group here.
fn set_cpu_shares(group: &Path) -> io::Result<()> {
    let shares = group.join("cpu.shares");
    if !shares.exists() {
        return Ok(());
    }
    fs::write(shares, (SHARES * thread::available_parallelism()?.get()).to_string())
}

#[cfg(test)]
mod tests {
    use yoke_supervisor::cgroups::Hierarchy;

    use super::*;

    #[test]
    fn the_pods_group_gets_the_shares_of_all_processors() {
        let dir = tempfile::tempdir().unwrap();
        let hierarchy = |controller: &str| Hierarchy {
            mount: dir.path().join(controller),
            v2: false,
        };
        let cgroups = Cgroups::new("yoke-x", vec![hierarchy("cpu"), hierarchy("pids")]);
        let shares = dir.path().join("cpu/yoke-x/pods/cpu.shares");
        fs::create_dir_all(shares.parent().unwrap()).unwrap();
        fs::write(&shares, "1024").unwrap();
        create(&cgroups).unwrap();
        let processors = thread::available_parallelism().unwrap().get();
        assert_eq!(fs::read_to_string(shares).unwrap(), (1024 * processors).to_string());
        assert!(dir.path().join("pids/yoke-x/host").exists());
        assert!(!dir.path().join("pids/yoke-x/pods/cpu.shares").exists());
    }
}
