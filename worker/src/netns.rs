//! Identifies the network namespace and the boot in which a worker has created its resources.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::files::FileError;
use crate::host::mounts::parse_mounts;

const NETNS_FILE: &str = "/proc/self/ns/net";

/// A network namespace, valid for one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Netns {
    boot: String,
    /// Device and inode. The kernel may reuse them after the namespace is deleted.
    network: (u64, u64),
}

impl Netns {
    /// Returns the place of this process.
    pub(crate) fn current() -> Result<Self, FileError> {
        let path = Path::new(NETNS_FILE);
        Ok(Self {
            boot: read_boot_id()?,
            network: identify(path).map_err(|error| FileError::new("inspect", path, error))?,
        })
    }

    /// Reports whether a file leads to another network namespace than this one.
    pub(crate) fn differs_from(&self, file: &Path) -> bool {
        identify(file).is_ok_and(|found| found != self.network)
    }

    /// Returns a file that leads to the namespace, unless that is `current` or deleted.
    pub(crate) fn find_file(&self, current: &Self) -> Option<PathBuf> {
        if self.boot != current.boot || self.network == current.network {
            return None;
        }
        let mut files = list_named_namespaces().into_iter().chain(list_process_namespaces());
        files.find(|file| identify(file).is_ok_and(|found| found == self.network))
    }
}

/// Reads the boot ID, which differs for each boot of the kernel.
pub(crate) fn read_boot_id() -> Result<String, FileError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let boot = fs::read_to_string(path).map_err(|error| FileError::new("read", path, error))?;
    Ok(boot.trim().to_owned())
}

fn identify(file: &Path) -> std::io::Result<(u64, u64)> {
    fs::metadata(file).map(|meta| (meta.dev(), meta.ino()))
}

/// Lists namespaces with a name, as created by `ip netns add`. Reads no other mount, because its
/// file server may hang.
fn list_named_namespaces() -> Vec<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = mounts.split(|byte| *byte == b'\n');
    let bound = lines.filter(|line| line.windows(8).any(|part| part == b" - nsfs "));
    bound.flat_map(|line| parse_mounts(line, Path::new("/"))).collect()
}

fn list_process_namespaces() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    processes.map(|process| process.path().join("ns/net"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_namespace_is_found_while_it_exists() {
        let current = Netns::current().unwrap();
        assert_eq!(current.find_file(&current), None);
        let elsewhere = Netns {
            network: (0, 0),
            ..current.clone()
        };
        assert_eq!(elsewhere.find_file(&current), None, "the namespace is deleted");
        let file = current.find_file(&elsewhere).unwrap();
        assert_eq!(identify(&file).unwrap(), current.network, "{}", file.display());
        let earlier = Netns {
            boot: "earlier".into(),
            ..elsewhere
        };
        assert_eq!(current.find_file(&earlier), None, "another boot");
    }
}
