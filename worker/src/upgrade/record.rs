//! The state of a kubelet upgrade, persisted in `upgrade.json`, and the kubelet's files that belong
//! to it.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use yoke_api::KubernetesVersion;

use crate::error::Error;
use crate::host::files::{self, FileError};
use crate::layout::Layout;
use crate::output::progress;

const RECORD_MAX: u64 = 16 << 10;
/// Extension of a record that cannot be parsed.
const CORRUPT_EXTENSION: &str = "json.damaged";
const KUBELET: &str = "kubelet";
/// The new kubelet, before it is installed.
pub(super) const NEXT: &str = "kubelet.next";
/// The previous kubelet, until the new one has proved to work.
pub(super) const PREVIOUS: &str = "kubelet.previous";

/// Stage of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// The previous kubelet runs.
    Draining,
    /// The new kubelet runs, and has to prove that it works.
    Replacing,
    /// The previous kubelet runs, and has to become Ready again.
    Reverting,
    /// The previous kubelet stays.
    Failed,
}

/// The state of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) from: KubernetesVersion,
    pub(super) to: KubernetesVersion,
    /// Whether the Node was already cordoned before the upgrade.
    pub(super) cordoned: bool,
    pub(super) stage: Stage,
    /// The reason why the upgrade failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

impl Record {
    /// Reads the record. A corrupt record is renamed: the installed kubelet is complete, and
    /// nothing else is known.
    pub(super) fn read(layout: &Layout) -> Result<Option<Self>, Error> {
        let path = layout.upgrade();
        let mut text = Vec::new();
        match fs::File::open(&path).and_then(|file| file.take(RECORD_MAX).read_to_end(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::new("read", &path, error).into()),
        }
        let error = match serde_json::from_slice(&text) {
            Ok(record) => return Ok(Some(record)),
            Err(error) => error,
        };
        let aside = path.with_extension(CORRUPT_EXTENSION);
        fs::rename(&path, &aside).map_err(|error| FileError::new("rename", &path, error))?;
        progress(&format!(
            "{} is corrupt and was renamed to {}; a Node that was cordoned for the upgrade stays cordoned: {error}",
            path.display(),
            aside.display()
        ));
        Ok(None)
    }

    /// Persists the record, synced to disk before the next action.
    pub(super) fn write(&self, layout: &Layout) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("strings are JSON");
        files::write(&layout.upgrade(), format!("{text}\n"), files::PUBLIC)?;
        sync(layout.root())?;
        Ok(())
    }
}

/// Arranges the kubelet's file to match the record.
pub(crate) fn arrange_kubelet(layout: &Layout) -> Result<(), Error> {
    match Record::read(layout)? {
        Some(record) => arrange(layout, record.stage),
        None => Ok(()),
    }
}

/// Arranges the kubelet's file to match a stage. Idempotent.
pub(super) fn arrange(layout: &Layout, stage: Stage) -> Result<(), Error> {
    match stage {
        Stage::Replacing => install_next(layout)?,
        Stage::Reverting => restore_previous(layout)?,
        Stage::Draining | Stage::Failed => {}
    }
    Ok(())
}

/// Removes the record and the kubelets that were copied for the upgrade.
pub(crate) fn remove_record(layout: &Layout) -> Result<(), Error> {
    files::remove(&layout.upgrade())?;
    sync(layout.root())?;
    for name in [NEXT, PREVIOUS] {
        files::remove(&layout.binary(name))?;
    }
    Ok(())
}

fn install_next(layout: &Layout) -> Result<(), FileError> {
    let [kubelet, next, previous] = [KUBELET, NEXT, PREVIOUS].map(|name| layout.binary(name));
    // The replacement is complete once `kubelet.next` is renamed.
    if next.exists() {
        files::remove(&previous)?;
        fs::hard_link(&kubelet, &previous).map_err(|error| FileError::new("link", &kubelet, error))?;
        sync(&layout.bin())?;
        fs::rename(&next, &kubelet).map_err(|error| FileError::new("write", &kubelet, error))?;
    } else if !previous.exists() {
        return Err(FileError::new("find", &next, ErrorKind::NotFound.into()));
    }
    sync(&layout.bin())
}

fn restore_previous(layout: &Layout) -> Result<(), FileError> {
    let [kubelet, previous] = [KUBELET, PREVIOUS].map(|name| layout.binary(name));
    match fs::rename(&previous, &kubelet) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::new("write", &kubelet, error)),
        _ => sync(&layout.bin()),
    }
}

/// Syncs a folder, so that renames survive a power failure.
pub(super) fn sync(folder: &Path) -> Result<(), FileError> {
    let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| FileError::new("write", folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dir: &Path) -> Layout {
        let layout = Layout::new(&dir.join("w")).unwrap();
        fs::create_dir_all(layout.bin()).unwrap();
        fs::write(layout.binary(KUBELET), "old").unwrap();
        fs::write(layout.binary(NEXT), "new").unwrap();
        layout
    }

    fn record(stage: Stage) -> Record {
        Record {
            from: "v1.35.4".parse().unwrap(),
            to: "v1.35.5".parse().unwrap(),
            cordoned: true,
            stage,
            why: Some("x".into()),
        }
    }

    fn kubelet(layout: &Layout) -> String {
        fs::read_to_string(layout.binary(KUBELET)).unwrap()
    }

    #[test]
    fn the_record_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(dir.path());
        assert_eq!(Record::read(&layout).unwrap(), None);
        record(Stage::Draining).write(&layout).unwrap();
        assert_eq!(Record::read(&layout).unwrap(), Some(record(Stage::Draining)));
        for damaged in [
            "",
            "{}",
            r#"{"from": "1", "to": "v1.35.5", "cordoned": false, "stage": "Draining"}"#,
        ] {
            fs::write(layout.upgrade(), damaged).unwrap();
            arrange_kubelet(&layout).unwrap();
            assert_eq!(kubelet(&layout), "old", "{damaged}");
            let aside = layout.root().join("upgrade.json.damaged");
            assert_eq!(fs::read_to_string(aside).unwrap(), damaged);
            assert_eq!(Record::read(&layout).unwrap(), None, "{damaged}");
        }
        remove_record(&layout).unwrap();
        remove_record(&layout).unwrap();
        assert_eq!(fs::read_dir(layout.bin()).unwrap().count(), 1);
    }

    /// Simulates a crash after each change of a file, followed by another call.
    #[test]
    fn an_upgrade_continues_after_a_crash() {
        type Change = fn(&Layout);
        let link: Change = |layout| fs::hard_link(layout.binary(KUBELET), layout.binary(PREVIOUS)).unwrap();
        let swap: Change = |layout| fs::rename(layout.binary(NEXT), layout.binary(KUBELET)).unwrap();
        let back: Change = |layout| fs::rename(layout.binary(PREVIOUS), layout.binary(KUBELET)).unwrap();
        for (rule, done, stage, expected) in [
            ("not begun", &[][..], Stage::Replacing, "new"),
            ("one to go back to is there", &[link], Stage::Replacing, "new"),
            ("the next one is there", &[link, swap], Stage::Replacing, "new"),
            ("it has to go back", &[link, swap], Stage::Reverting, "old"),
            (
                "the previous kubelet is installed",
                &[link, swap, back],
                Stage::Reverting,
                "old",
            ),
            ("it drains", &[], Stage::Draining, "old"),
            ("it has failed", &[link, swap, back], Stage::Failed, "old"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let layout = layout(dir.path());
            for change in done {
                change(&layout);
            }
            record(stage).write(&layout).unwrap();
            arrange_kubelet(&layout).unwrap();
            assert_eq!(kubelet(&layout), expected, "{rule}");
            arrange_kubelet(&layout).unwrap();
            assert_eq!(kubelet(&layout), expected, "{rule}, again");
            if stage == Stage::Replacing {
                record(Stage::Reverting).write(&layout).unwrap();
                arrange_kubelet(&layout).unwrap();
                assert_eq!(kubelet(&layout), "old", "{rule}, and back");
            }
        }
    }

    #[test]
    fn a_missing_kubelet_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(dir.path());
        fs::remove_file(layout.binary(NEXT)).unwrap();
        record(Stage::Replacing).write(&layout).unwrap();
        let refused = arrange_kubelet(&layout).unwrap_err();
        assert!(refused.to_string().contains(NEXT), "{refused}");
        assert_eq!(kubelet(&layout), "old");
    }

    #[test]
    fn the_kubelet_of_an_earlier_upgrade_is_not_restored() {
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(dir.path());
        fs::write(layout.binary(PREVIOUS), "older").unwrap();
        record(Stage::Replacing).write(&layout).unwrap();
        arrange_kubelet(&layout).unwrap();
        record(Stage::Reverting).write(&layout).unwrap();
        arrange_kubelet(&layout).unwrap();
        assert_eq!(kubelet(&layout), "old");
    }
}
