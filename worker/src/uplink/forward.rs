//! Enables IP forwarding on the machine's devices. Responses to workers need it, because the kernel
//! checks the device on which a packet arrives.
//!
//! Each device has a setting of its own, and the setting `all` changes every device. At the end
//! forwarding is disabled again on devices where it was off. The exception: while `all` is on,
//! another program has enabled it, and does not check it again. The table of each run (`table.rs`)
//! records the devices before they are changed.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::runs::{list_opened, list_runs};
use super::table;
use crate::output::progress;
use crate::process::stdin_program::call;

const ALL: &str = "all";

fn file(device: &str) -> PathBuf {
    ["/proc/sys/net/ipv4/conf", device, "forwarding"].iter().collect()
}

fn is_on(device: &str) -> Option<bool> {
    let text = fs::read_to_string(file(device)).ok()?;
    Some(text.trim() == "1")
}

/// Returns the devices that forward, or soon will, for workers only. `known` are those from before.
pub(super) async fn plan_forwarding(devices: &BTreeSet<String>, known: &BTreeSet<String>) -> BTreeSet<String> {
    if is_on(ALL) == Some(true) {
        return BTreeSet::new();
    }
    let off = |device: &&String| table::is_device(device) && is_on(device) == Some(false);
    let mut opened: BTreeSet<_> = devices.iter().filter(off).chain(known).cloned().collect();
    // Read after the devices: every run records a device before it enables it.
    for run in list_runs().await {
        opened.extend(list_opened(&run).await);
    }
    opened
}

/// Enables forwarding on devices. A device that no longer exists is ignored.
pub(super) fn enable<'a>(devices: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    for device in devices {
        if is_on(device) == Some(false) {
            fs::write(file(device), "1").map_err(|error| format!("cannot enable forwarding on {device}: {error}"))?;
        }
    }
    Ok(())
}

/// Disables forwarding again, unless other runs exist. Their tables get the devices, and they
/// disable them in the end. A run that starts at the same time is either listed here, or enables
/// what it finds disabled.
pub(super) async fn disable(opened: &BTreeSet<String>) {
    if opened.is_empty() {
        return;
    }
    for _ in 0..2 {
        let others = list_runs().await;
        if !others.is_empty() {
            let elements: Vec<_> = opened.iter().map(|device| format!("\"{device}\"")).collect();
            for run in others {
                let (name, elements) = (run.table(), format!("{{ {} }}", elements.join(", ")));
                // A run that is ending at the same time does the same.
                let _ = call("nft", &["add", "element", "inet", &name, table::OPENED, &elements], "").await;
            }
            if let Err(why) = enable(opened) {
                progress(&why);
            }
            return;
        }
        if is_on(ALL) == Some(true) {
            return;
        }
        for device in opened.iter().filter(|device| is_on(device) == Some(true)) {
            if let Err(error) = fs::write(file(device), "0") {
                progress(&format!("cannot disable forwarding on {device} again: {error}"));
            }
        }
    }
}
