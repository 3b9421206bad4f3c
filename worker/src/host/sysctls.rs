//! Saves and restores the kernel settings that the kubelet changes regardless of configuration.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::host::files::{self, FileError};
use crate::layout::Layout;
use crate::netns;
use crate::output::progress;
use crate::process::stdin_program::call;

/// The settings that the kubelet changes (`setupKernelTunables`), with its values. The bridge
/// plugin also sets `net/ipv4/ip_forward`. That setting is not in the list: other programs that
/// forward turn it on as well, once, and would break if it were restored.
const CHANGED_BY_KUBELET: &[(&str, &str)] = &[
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];
const SYS: &str = "/proc/sys";
const FILE_MAX: u64 = 16 << 10;
/// Sysctl that makes packets between two ports of a bridge pass the packet filter.
pub(crate) const BRIDGE_FILTER: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// The settings from before the worker.
#[derive(Default, Serialize, Deserialize)]
struct SavedSettings {
    /// Boot ID. The next boot starts with other settings.
    boot: String,
    values: BTreeMap<String, String>,
}

/// Loads the kernel module that lets a Pod reach a Service whose endpoint is on the same bridge,
/// for example cluster DNS.
pub(crate) async fn load_bridge_filter() {
    if Path::new(BRIDGE_FILTER).exists() {
        return;
    }
    let loaded = call("modprobe", &["br_netfilter"], "").await;
    if !Path::new(BRIDGE_FILTER).exists() {
        let why = loaded.err().unwrap_or_default();
        progress(&format!(
            "br_netfilter is not loaded, so Pods cannot reach Services with endpoints on this node, such as cluster DNS: {why}"
        ));
    }
}

/// Saves each setting that does not have the kubelet's value yet.
pub(crate) fn save(layout: &Layout) -> Result<(), FileError> {
    save_to(Path::new(SYS), &layout.sysctls(), &netns::read_boot_id()?)
}

/// Restores the saved settings, except those that another program has changed since.
pub(crate) fn restore(layout: &Layout) -> Result<(), FileError> {
    restore_from(Path::new(SYS), &layout.sysctls(), &netns::read_boot_id()?)
}

fn save_to(sys: &Path, file: &Path, boot: &str) -> Result<(), FileError> {
    let mut saved = read(file, boot)?;
    for (name, ours) in CHANGED_BY_KUBELET {
        // A setting at our value is either original, or was saved at the first start.
        if let Some(value) = read_setting(sys, name).filter(|value| value != ours) {
            saved.values.insert((*name).to_owned(), value);
        }
    }
    let text = serde_json::to_string_pretty(&saved).expect("strings are JSON");
    files::write(file, format!("{text}\n"), files::PUBLIC).map(drop)
}

fn restore_from(sys: &Path, file: &Path, boot: &str) -> Result<(), FileError> {
    let saved = read(file, boot)?;
    for (name, ours) in CHANGED_BY_KUBELET {
        let Some(value) = saved.values.get(*name) else { continue };
        let number = value.parse::<i64>().is_ok();
        if number && read_setting(sys, name).as_deref() == Some(ours) {
            let path = sys.join(name);
            fs::write(&path, value).map_err(|error| FileError::new("restore", &path, error))?;
        }
    }
    Ok(())
}

fn read_setting(sys: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(sys.join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// Reads the saved settings. Settings of another boot, or from an incomplete file, do not count.
fn read(file: &Path, boot: &str) -> Result<SavedSettings, FileError> {
    let mut text = Vec::new();
    match fs::File::open(file).and_then(|file| file.take(FILE_MAX).read_to_end(&mut text)) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(FileError::new("read", file, error)),
        _ => {}
    }
    let saved = serde_json::from_slice(&text)
        .ok()
        .filter(|saved: &SavedSettings| saved.boot == boot);
    Ok(saved.unwrap_or_else(|| SavedSettings {
        boot: boot.to_owned(),
        ..SavedSettings::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_settings_are_restored() {
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
        set("net/ipv4/ip_forward", "0\n");
        save_to(&sys, &file, "b1").unwrap();
        for (name, value) in CHANGED_BY_KUBELET {
            set(name, &format!("{value}\n"));
        }
        set("net/ipv4/ip_forward", "1\n");
        // The worker is started again: the values from the first start still count.
        save_to(&sys, &file, "b1").unwrap();
        set("vm/overcommit_memory", "2\n");
        restore_from(&sys, &file, "b1").unwrap();
        for (rule, name, expected) in [
            ("it was changed", "kernel/panic", "0"),
            ("it was changed", "vm/panic_on_oom", "2"),
            ("it was so before", "kernel/panic_on_oops", "1"),
            ("another program has changed it since", "vm/overcommit_memory", "2"),
            ("it was not there before", "kernel/keys/root_maxkeys", "1000000"),
            ("others rely on it", "net/ipv4/ip_forward", "1"),
        ] {
            assert_eq!(read_setting(&sys, name).as_deref(), Some(expected), "{rule}: {name}");
        }
    }

    #[test]
    fn nothing_else_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sysctls.json");
        restore_from(dir.path(), &file, "b1").unwrap();
        fs::create_dir_all(dir.path().join("kernel")).unwrap();
        fs::write(dir.path().join("kernel/panic"), "10").unwrap();
        fs::write(dir.path().join("kernel/core_pattern"), "core").unwrap();
        fs::write(
            &file,
            r#"{"boot": "b1", "values": {"kernel/core_pattern": "|/bin/sh", "kernel/panic": "x"}}"#,
        )
        .unwrap();
        restore_from(dir.path(), &file, "b1").unwrap();
        assert_eq!(read_setting(dir.path(), "kernel/core_pattern").as_deref(), Some("core"));
        assert_eq!(read_setting(dir.path(), "kernel/panic").as_deref(), Some("10"));
    }

    #[test]
    fn settings_of_another_boot_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sysctls.json");
        fs::create_dir_all(dir.path().join("kernel")).unwrap();
        let set = |value: &str| fs::write(dir.path().join("kernel/panic"), value).unwrap();
        set("0");
        save_to(dir.path(), &file, "b1").unwrap();
        // An administrator has set the value permanently, and the machine has rebooted.
        set("10");
        restore_from(dir.path(), &file, "b2").unwrap();
        assert_eq!(read_setting(dir.path(), "kernel/panic").as_deref(), Some("10"));
        save_to(dir.path(), &file, "b2").unwrap();
        restore_from(dir.path(), &file, "b2").unwrap();
        assert_eq!(read_setting(dir.path(), "kernel/panic").as_deref(), Some("10"));
        set("0");
        save_to(dir.path(), &file, "b2").unwrap();
        set("10");
        restore_from(dir.path(), &file, "b2").unwrap();
        assert_eq!(
            read_setting(dir.path(), "kernel/panic").as_deref(),
            Some("0"),
            "control"
        );
    }
}
