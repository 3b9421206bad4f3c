//! Settings of the kernel that parts of the worker change whatever they are told, and what they were before.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use crate::files::{self, FileError};
use crate::layout::Layout;

/// The kubelet's (`setupKernelTunables`), and the bridge plugin's, with the values that they set.
const CHANGED: &[(&str, &str)] = &[
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("net/ipv4/ip_forward", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];
const SYS: &str = "/proc/sys";
const FILE_MAX: u64 = 16 << 10;

/// Keeps what is not yet as the worker's parts will have it.
pub(crate) fn remember(layout: &Layout) -> Result<(), FileError> {
    remember_of(Path::new(SYS), &layout.sysctls())
}

/// Puts back what was kept, unless somebody else has changed it since.
pub(crate) fn restore(layout: &Layout) -> Result<(), FileError> {
    restore_of(Path::new(SYS), &layout.sysctls())
}

fn remember_of(sys: &Path, file: &Path) -> Result<(), FileError> {
    let mut kept = read(file)?;
    for (name, ours) in CHANGED {
        // One that is so already was so before the worker, or was kept when it began.
        if let Some(value) = ask(sys, name).filter(|value| value != ours) {
            kept.insert((*name).to_owned(), value);
        }
    }
    let text = serde_json::to_string_pretty(&kept).expect("strings are JSON");
    files::write(file, &format!("{text}\n"), files::PUBLIC).map(drop)
}

fn restore_of(sys: &Path, file: &Path) -> Result<(), FileError> {
    let kept = read(file)?;
    for (name, ours) in CHANGED {
        let Some(value) = kept.get(*name) else { continue };
        let number = value.parse::<i64>().is_ok();
        if number && ask(sys, name).as_deref() == Some(ours) {
            let path = sys.join(name);
            fs::write(&path, value).map_err(|error| FileError::new("restore", &path, error))?;
        }
    }
    Ok(())
}

fn ask(sys: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(sys.join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// One that is torn has nothing.
fn read(file: &Path) -> Result<BTreeMap<String, String>, FileError> {
    let mut text = Vec::new();
    match fs::File::open(file).and_then(|file| file.take(FILE_MAX).read_to_end(&mut text)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::new("read", file, error)),
        _ => Ok(serde_json::from_slice(&text).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let (sys, file) = (dir.path().join("sys"), dir.path().join("sysctls.json"));
        let set = |name: &str, value: &str| {
            let path = sys.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        };
        set("kernel/panic", "0\n");
        set("kernel/panic_on_oops", "1\n");
        set("vm/overcommit_memory", "0\n");
        set("vm/panic_on_oom", "2\n");
        remember_of(&sys, &file).unwrap();
        for (name, value) in CHANGED {
            set(name, &format!("{value}\n"));
        }
        // It goes on: what the first start found still counts.
        remember_of(&sys, &file).unwrap();
        set("vm/overcommit_memory", "2\n");
        restore_of(&sys, &file).unwrap();
        for (rule, name, expected) in [
            ("it was changed", "kernel/panic", "0"),
            ("it was changed", "vm/panic_on_oom", "2"),
            ("it was so before", "kernel/panic_on_oops", "1"),
            ("somebody else changed it since", "vm/overcommit_memory", "2"),
            ("it was not there before", "net/ipv4/ip_forward", "1"),
        ] {
            assert_eq!(ask(&sys, name).as_deref(), Some(expected), "{rule}: {name}");
        }
    }

    #[test]
    fn nothing_else_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sysctls.json");
        restore_of(dir.path(), &file).unwrap();
        fs::create_dir_all(dir.path().join("kernel")).unwrap();
        fs::write(dir.path().join("kernel/panic"), "10").unwrap();
        fs::write(dir.path().join("kernel/core_pattern"), "core").unwrap();
        fs::write(&file, r#"{"kernel/core_pattern": "|/bin/sh", "kernel/panic": "x"}"#).unwrap();
        restore_of(dir.path(), &file).unwrap();
        assert_eq!(ask(dir.path(), "kernel/core_pattern").as_deref(), Some("core"));
        assert_eq!(ask(dir.path(), "kernel/panic").as_deref(), Some("10"));
    }
}
