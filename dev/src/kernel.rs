//! Raises kernel limits that are too low for the stack.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Number of inotify instances per user. Each kubelet, containerd, Envoy and control plane needs
/// some. Thirty running control planes need more than the kernel's default of 128, and processes
/// that start then fail.
const WATCHERS: &str = "/proc/sys/fs/inotify/max_user_instances";
const WATCHERS_NEEDED: u64 = 1024;

/// Raises the limits where permitted. Returns a note about the change, a warning, or an empty text.
pub fn prepare() -> Result<String> {
    raise(Path::new(WATCHERS), WATCHERS_NEEDED)
}

fn raise(file: &Path, needed: u64) -> Result<String> {
    let reading = || format!("reading {}", file.display());
    let text = fs::read_to_string(file).with_context(reading)?;
    let given: u64 = text.trim().parse().with_context(reading)?;
    if given >= needed {
        return Ok(String::new());
    }
    let name = "fs.inotify.max_user_instances";
    Ok(match fs::write(file, needed.to_string()) {
        Ok(()) => format!("raised {name} from {given} to {needed}, for many control planes"),
        Err(error) => format!(
            "WARNING: cannot raise {name} from {given} ({error}): with about thirty running control planes, kubelet, Envoy \
             or containerd fail to start; set it to {needed} on the host"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_raised() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("limit");
        for (given, said, expected) in [
            ("128\n", "from 128 to 1024", "1024"),
            ("1024\n", "", "1024\n"),
            ("8192\n", "", "8192\n"),
        ] {
            fs::write(&file, given).unwrap();
            let note = raise(&file, 1024).unwrap();
            assert!(
                note.contains(said) && said.is_empty() == note.is_empty(),
                "{given}: {note}"
            );
            assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        }
        assert!(raise(&directory.path().join("none"), 1024).is_err());
    }

    #[test]
    fn a_limit_that_cannot_be_raised_is_a_warning() {
        // Read-only, for root as well.
        let note = raise(Path::new("/proc/sys/kernel/ngroups_max"), u64::MAX).unwrap();
        assert!(note.starts_with("WARNING: "), "{note}");
    }
}
