//! The systemd unit that keeps a worker running. Pure.
//!
//! The worker's control groups are at the top of the hierarchy, not below the unit's group, as with
//! `run`. There are two reasons:
//! - Pods outlive the unit's processes.
//! - With groups below it, the unit's group accepts no new process: in version 2 only groups
//!   without children have processes. `DelegateSubgroup=` would help, but is newer than Debian 12.

use std::path::{Path, PathBuf};

use crate::arguments::ROOT;
use crate::id::Id;
use crate::layout::Layout;

/// Folder of the administrator's units.
const FOLDER: &str = "/etc/systemd/system";
/// First line of each unit file. It marks files that this program may change and remove.
const MARK: &str = "# Made by `yoke-worker join`, removed by `yoke-worker leave`. `systemctl edit` keeps changes of yours beside it.\n";

/// The systemd unit of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    name: String,
    program: PathBuf,
    root: PathBuf,
}

impl Unit {
    pub(crate) fn new(layout: &Layout, id: &Id) -> Self {
        let name = if layout.root() == Path::new(ROOT) {
            "yoke-worker.service".to_owned()
        } else {
            format!("yoke-worker-{id}.service")
        };
        Self {
            name,
            program: layout.own_program(),
            root: layout.root().to_owned(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// Reports whether a file is this unit, written by this or another version of the program.
    pub(crate) fn is(&self, text: &str) -> bool {
        text.starts_with(MARK) && text.lines().any(|line| line == self.command())
    }

    /// The `ExecStart` line. A worker's folder has a path without characters that systemd would
    /// expand.
    fn command(&self) -> String {
        let (program, root) = (self.program.display(), self.root.display());
        format!("ExecStart={program} run --root {root}")
    }

    /// Builds the content of the unit file.
    pub(crate) fn build(&self) -> String {
        format!(
            "\
{MARK}
[Unit]
Description=Worker of a Kubernetes cluster that Yoke hosts
Wants=network-online.target
After=network-online.target
RequiresMountsFor={root}

[Service]
# The worker reports ready after it has started the kubelet. Each step before that has a timeout of its own.
Type=notify
TimeoutStartSec=infinity
{command}
Restart=always
RestartSec=5
# Pods keep running while the worker restarts.
KillMode=process
# While the unit runs, systemd also leaves all controllers enabled for the worker's groups.
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
",
            root = self.root.display(),
            command = self.command(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn unit(root: &str) -> Unit {
        let layout = Layout::new(Path::new(root)).unwrap();
        Unit::new(&layout, &"00c0ffee".to_owned().try_into().unwrap())
    }

    #[test]
    fn a_unit_is_as_written_down() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/yoke-worker.service");
        let text = unit(ROOT).build();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expected, "{}; UPDATE=1 rewrites it", path.display());
    }

    #[test]
    fn every_folder_has_a_unit() {
        assert_eq!(unit(ROOT).path(), Path::new("/etc/systemd/system/yoke-worker.service"));
        assert_eq!(unit("/srv/w").name(), "yoke-worker-00c0ffee.service");
        let own = unit("/srv/w").build();
        assert!(unit("/srv/w").is(&own));
        assert!(
            unit("/srv/w").is(&own.replace("RestartSec=5", "RestartSec=9")),
            "of another version"
        );
        assert!(!unit("/srv/v").is(&own), "of another worker");
        assert!(!unit("/srv/w").is(own.strip_prefix(MARK).unwrap()), "somebody else's");
    }

    /// systemd, which is on every machine that such a unit is for, reads it without a word.
    #[test]
    fn systemd_understands_a_unit() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("bin/yoke-worker");
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::fs::copy("/bin/true", &program).unwrap();
        let unit = unit(dir.path().to_str().unwrap());
        let verify = |text: &str| {
            let path = dir.path().join(unit.name());
            std::fs::write(&path, text).unwrap();
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no"]).arg(path);
            let output = command.output().expect("systemd-analyze is of the package systemd");
            let said = String::from_utf8(output.stderr).unwrap();
            // Lines about units of the machine that this one is ordered by.
            let own = said.lines().filter(|line| line.contains(unit.name()));
            (output.status.success(), own.map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(verify(&unit.build()), (true, Vec::new()));
        let (_, said) = verify(&unit.build().replace("KillMode=process", "KillMode=proces"));
        assert_eq!(said.len(), 1, "control: {said:?}");
    }
}
