//! Names of a worker's resources on the machine, unique among the workers of one kernel. Pure.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Prefix of an id in the names of control groups.
pub(crate) const GROUPS: &str = "yoke-worker-";
/// Length of an id in bytes. The name of a network interface has at most 15 bytes, and `yoke`
/// precedes the id.
const BYTES: usize = 4;

/// Distinguishes the workers of one kernel. Workers in containers share control groups, and each
/// may have its folder at the same path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Id(String);

impl Id {
    /// Derives the id of the worker in the folder with this canonical path, device and inode.
    pub(crate) fn new(root: &Path, device: u64, inode: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(root.as_os_str().as_bytes());
        hash.update([0]);
        hash.update(device.to_be_bytes());
        hash.update(inode.to_be_bytes());
        Self(HEXLOWER.encode(&hash.finalize()[..BYTES]))
    }

    /// Returns the id with this numeric value.
    pub(crate) fn of_number(number: u32) -> Self {
        Self(HEXLOWER.encode(&number.to_be_bytes()))
    }

    /// Name of the control group, relative to the root of each hierarchy.
    pub(crate) fn cgroup(&self) -> String {
        format!("{GROUPS}{}", self.0)
    }

    /// Name of the bridge for the worker's Pods.
    pub(crate) fn bridge(&self) -> String {
        format!("yoke{}", self.0)
    }

    /// Name of the WireGuard device that connects to Pods of other workers.
    pub(crate) fn tunnel(&self) -> String {
        format!("ykwg{}", self.0)
    }

    /// Name of the CNI network, and of its nftables table.
    pub(crate) fn network(&self) -> String {
        format!("yoke-worker-{}", self.0)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not an id.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a worker id; expected 8 hexadecimal digits")]
pub(crate) struct IdError(String);

impl TryFrom<String> for Id {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 2 * BYTES && text.bytes().all(hex) {
            Ok(Self(text))
        } else {
            Err(IdError(text))
        }
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_has_its_own_names() {
        let one = Id::new(Path::new("/var/lib/yoke-worker"), 1, 2);
        assert_eq!(one, Id::new(Path::new("/var/lib/yoke-worker"), 1, 2));
        for (rule, other) in [
            ("another path", Id::new(Path::new("/srv/w"), 1, 2)),
            ("another device", Id::new(Path::new("/var/lib/yoke-worker"), 3, 2)),
            ("another inode", Id::new(Path::new("/var/lib/yoke-worker"), 1, 3)),
        ] {
            assert_ne!(one.cgroup(), other.cgroup(), "{rule}");
            assert_ne!(one.bridge(), other.bridge(), "{rule}");
            assert_ne!(one.tunnel(), other.tunnel(), "{rule}");
            assert_ne!(one.network(), other.network(), "{rule}");
        }
        for link in [one.bridge(), one.tunnel()] {
            assert!(link.len() <= 15, "{link}");
        }
    }

    #[test]
    fn what_is_remembered_is_no_path() {
        assert_eq!(Id::try_from("00c0ffee".to_owned()).unwrap().bridge(), "yoke00c0ffee");
        for text in ["", "../../x", "00C0FFEE", "00c0ffe", "00c0ffee0", "00c0ff/e"] {
            assert!(Id::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }
}
