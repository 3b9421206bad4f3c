//! Identifies the network namespace and the boot in which a worker has created its resources.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::files::FileError;
use crate::host::mounts::parse_mounts;

const NETWORK: &str = "/proc/self/ns/net";

/// A network namespace, valid for one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    boot: String,
    /// Device and inode. The kernel may reuse them after the namespace is deleted.
    network: (u64, u64),
}

impl Place {
    /// Returns the place of this process.
    pub(crate) fn here() -> Result<Self, FileError> {
        let path = Path::new(NETWORK);
        Ok(Self {
            boot: read_boot()?,
            network: identify(path).map_err(|error| FileError::new("look at", path, error))?,
        })
    }

    /// Reports whether a file leads to another network namespace than this one.
    pub(crate) fn is_left_by(&self, file: &Path) -> bool {
        identify(file).is_ok_and(|found| found != self.network)
    }

    /// Returns a file that leads to the namespace, unless that is `here` or deleted.
    pub(crate) fn find_from(&self, here: &Self) -> Option<PathBuf> {
        if self.boot != here.boot || self.network == here.network {
            return None;
        }
        let mut files = list_bound().into_iter().chain(list_of_processes());
        files.find(|file| identify(file).is_ok_and(|found| found == self.network))
    }
}

/// Reads the boot ID, which differs for each boot of the kernel.
pub(crate) fn read_boot() -> Result<String, FileError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let boot = fs::read_to_string(path).map_err(|error| FileError::new("read", path, error))?;
    Ok(boot.trim().to_owned())
}

fn identify(file: &Path) -> std::io::Result<(u64, u64)> {
    fs::metadata(file).map(|meta| (meta.dev(), meta.ino()))
}

/// Lists namespaces with a name, as created by `ip netns add`. Reads no other mount, because its
/// file server may hang.
fn list_bound() -> Vec<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = mounts.split(|byte| *byte == b'\n');
    let bound = lines.filter(|line| line.windows(8).any(|part| part == b" - nsfs "));
    bound.flat_map(|line| parse_mounts(line, Path::new("/"))).collect()
}

fn list_of_processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    processes.map(|process| process.path().join("ns/net"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_place_is_found_while_it_is_there() {
        let here = Place::here().unwrap();
        assert_eq!(here.find_from(&here), None);
        let elsewhere = Place {
            network: (0, 0),
            ..here.clone()
        };
        assert_eq!(elsewhere.find_from(&here), None, "it has gone");
        let file = here.find_from(&elsewhere).unwrap();
        assert_eq!(identify(&file).unwrap(), here.network, "{}", file.display());
        let earlier = Place {
            boot: "earlier".into(),
            ..elsewhere
        };
        assert_eq!(here.find_from(&earlier), None, "it went with the boot");
    }
}
