//! Where a worker is: what it makes is in one network namespace, and does not outlive the boot.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::clean::parse_mounts;
use crate::files::FileError;

const NETWORK: &str = "/proc/self/ns/net";

/// One network namespace of one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    boot: String,
    /// Device and inode. A namespace that is made later may get them once this one has gone.
    network: (u64, u64),
}

impl Place {
    /// That of this process.
    pub(crate) fn here() -> Result<Self, FileError> {
        let path = Path::new(NETWORK);
        Ok(Self {
            boot: read_boot()?,
            network: identify(path).map_err(|error| FileError::new("look at", path, error))?,
        })
    }

    /// Whether a file leads to another network than this one.
    pub(crate) fn is_left_by(&self, file: &Path) -> bool {
        identify(file).is_ok_and(|found| found != self.network)
    }

    /// A file that leads there, if it is not `here` and has not gone.
    pub(crate) fn find_from(&self, here: &Self) -> Option<PathBuf> {
        if self.boot != here.boot || self.network == here.network {
            return None;
        }
        let mut files = list_bound().into_iter().chain(list_of_processes());
        files.find(|file| identify(file).is_ok_and(|found| found == self.network))
    }
}

/// What tells one boot of the kernel from another.
pub(crate) fn read_boot() -> Result<String, FileError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let boot = fs::read_to_string(path).map_err(|error| FileError::new("read", path, error))?;
    Ok(boot.trim().to_owned())
}

fn identify(file: &Path) -> std::io::Result<(u64, u64)> {
    fs::metadata(file).map(|meta| (meta.dev(), meta.ino()))
}

/// Namespaces that have a name, as `ip netns add` gives it. No other mount is touched: its server may hang.
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
