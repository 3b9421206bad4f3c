//! Which devices of the machine forward. Workers' answers come in by them: the kernel asks the device that a packet comes in by.
//!
//! Each device has a setting of its own, and one that is for all turns all of them on. So what was off before is put back unless
//! somebody else has turned on all: whoever forwards does that, and does not look again. What has been turned on is noted in the
//! table of each run (`table.rs`), before it is turned on.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::{list_opened, list_runs, table};
use crate::feed::call;
use crate::output::say;

const ALL: &str = "all";

fn file(device: &str) -> PathBuf {
    ["/proc/sys/net/ipv4/conf", device, "forwarding"].iter().collect()
}

fn is_on(device: &str) -> Option<bool> {
    let text = fs::read_to_string(file(device)).ok()?;
    Some(text.trim() == "1")
}

/// Devices that forward, or are about to, for workers alone: with those of which that is `known`.
pub(super) async fn plan(devices: &BTreeSet<String>, known: &BTreeSet<String>) -> BTreeSet<String> {
    if is_on(ALL) == Some(true) {
        return BTreeSet::new();
    }
    let off = |device: &&String| table::is_device(device) && is_on(device) == Some(false);
    let mut opened: BTreeSet<_> = devices.iter().filter(off).chain(known).cloned().collect();
    // Afterwards: whoever has turned one on has noted it before.
    for run in list_runs().await {
        opened.extend(list_opened(&run).await);
    }
    opened
}

/// Has devices forward. One that has gone does not matter.
pub(super) fn open<'a>(devices: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    for device in devices {
        if is_on(device) == Some(false) {
            fs::write(file(device), "1").map_err(|error| format!("cannot have {device} forward: {error}"))?;
        }
    }
    Ok(())
}

/// Puts back what was off, unless there are other runs: they have it from now on, and put it back in the end. One that begins
/// right now either is seen here, or turns on what it finds off.
pub(super) async fn close(opened: &BTreeSet<String>) {
    if opened.is_empty() {
        return;
    }
    for _ in 0..2 {
        let others = list_runs().await;
        if !others.is_empty() {
            let elements: Vec<_> = opened.iter().map(|device| format!("\"{device}\"")).collect();
            for run in others {
                let (name, elements) = (run.table(), format!("{{ {} }}", elements.join(", ")));
                // One that ends right now does the same.
                let _ = call("nft", &["add", "element", "inet", &name, table::OPENED, &elements], "").await;
            }
            if let Err(why) = open(opened) {
                say(&why);
            }
            return;
        }
        if is_on(ALL) == Some(true) {
            return;
        }
        for device in opened.iter().filter(|device| is_on(device) == Some(true)) {
            if let Err(error) = fs::write(file(device), "0") {
                say(&format!("cannot have {device} forward no more, as before: {error}"));
            }
        }
    }
}
