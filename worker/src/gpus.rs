//! The GPUs of a machine: a worker in a box has none of them, unless it is asked for.
//!
//! ```text
//!  /dev, CDI specifications ──▶ find ─┬─ --gpus all:  device plugins find it, and Pods have what they ask for; none is an error
//!                                     └─ --gpus none: the box sees empty files in the place of it (boxed.rs)
//! ```
//!
//! Which Pod has which of them is up to the vendor's device plugin, whose Pod finds the kubelet's socket where it is everywhere.
//!
//! This keeps Pods from GPUs that nobody meant to give away. It is no fence: who is root on the machine, as a privileged Pod is,
//! can make a device's file again. A device that is denied to the control group of all Pods would be one, but with version 1 no
//! privileged container starts beneath such a group.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Deserialize;

/// Where CDI specifications are, unless a runtime is told otherwise.
const SPECIFICATIONS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// The class of CDI devices that every vendor of GPUs has.
const CLASS: &str = "/gpu";
/// Bytes of a specification, and how many are read.
const SPECIFICATION_MAX: u64 = 1 << 20;
const SPECIFICATIONS_MAX: usize = 64;

/// Which GPUs of the machine Pods may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Gpus {
    /// All of them: a device plugin says which Pod has which
    All,
    /// None of those that are there when the worker begins
    #[default]
    None,
}

/// What there is of GPUs on a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Files and folders by which they are reached.
    pub(crate) paths: BTreeSet<PathBuf>,
    /// Whether one can compute or draw: a screen alone is none.
    pub(crate) any: bool,
}

/// A CDI specification, as far as it matters: <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Specification {
    kind: String,
    devices: Vec<Device>,
    container_edits: Edits,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Device {
    container_edits: Edits,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Edits {
    device_nodes: Vec<DeviceNode>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeviceNode {
    path: PathBuf,
    host_path: Option<PathBuf>,
}

/// Those of this machine.
pub(crate) fn find() -> Found {
    find_in(Path::new("/dev"), &SPECIFICATIONS.map(Path::new))
}

fn find_in(devices: &Path, specifications: &[&Path]) -> Found {
    let mut found = Found::default();
    for name in list(devices) {
        // NVIDIA's, those of the kernel's own drivers, AMD's for computing, and that of WSL.
        if name.starts_with("nvidia") || ["dri", "kfd", "dxg"].contains(&name.as_str()) {
            found.any |= name != "dri" && !is_of_all(&name);
            found.paths.insert(devices.join(name));
        }
    }
    found.any |= list(&devices.join("dri"))
        .iter()
        .any(|name| name.starts_with("renderD"));
    for folder in specifications {
        let names = list(folder).into_iter().filter(|name| is_specification(name));
        for name in names.take(SPECIFICATIONS_MAX) {
            let nodes = read(&folder.join(name)).map(to_nodes).unwrap_or_default();
            for node in nodes.into_iter().filter(|path| path.exists() && !path.is_dir()) {
                found.any = true;
                // What is in a folder goes with it.
                if !node.ancestors().any(|path| found.paths.contains(path)) {
                    found.paths.insert(node);
                }
            }
        }
    }
    found
}

/// A file of a driver, which is there without any device, too.
fn is_of_all(name: &str) -> bool {
    let number = name.strip_prefix("nvidia");
    number.is_some_and(|number| !number.starts_with(|c: char| c.is_ascii_digit()))
}

fn is_specification(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["json", "yaml"].contains(&extension))
}

/// Sorted, so that the same folder gives the same.
fn list(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// One that cannot be read is nothing to a runtime either.
fn read(file: &Path) -> Option<Specification> {
    let mut text = String::new();
    File::open(file)
        .ok()?
        .take(SPECIFICATION_MAX)
        .read_to_string(&mut text)
        .ok()?;
    // JSON is YAML.
    serde_saphyr::from_str(&text).ok()
}

/// The machine's files of the GPUs in a specification.
fn to_nodes(specification: Specification) -> Vec<PathBuf> {
    if !specification.kind.ends_with(CLASS) {
        return Vec::new();
    }
    let of_each = specification.devices.into_iter().map(|device| device.container_edits);
    let edits = of_each.chain([specification.container_edits]);
    let nodes = edits.flat_map(|edits| edits.device_nodes);
    let paths = nodes.map(|node| node.host_path.unwrap_or(node.path));
    paths.filter(|path| path.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_with(devices: &[&str], specifications: &[(&str, &str)]) -> (Vec<String>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let (dev, cdi) = (dir.path().join("dev"), dir.path().join("cdi"));
        fs::create_dir_all(&cdi).unwrap();
        for device in devices {
            let file = dev.join(device);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        for (name, text) in specifications {
            let text = text.replace("/dev", dev.to_str().unwrap());
            fs::write(cdi.join(name), text).unwrap();
        }
        let found = find_in(&dev, &[&cdi, Path::new("/nonexistent")]);
        let names = found.paths.iter().map(|path| path.strip_prefix(&dev).unwrap());
        (names.map(|path| path.display().to_string()).collect(), found.any)
    }

    #[test]
    fn gpus_are_found_by_their_files_and_by_specifications() {
        let yaml = "cdiVersion: 0.6.0\nkind: a.b/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/x0\n";
        let json =
            r#"{"kind": "a.b/gpu", "containerEdits": {"deviceNodes": [{"path": "/y", "hostPath": "/dev/ctl"}]}}"#;
        let nested = r#"{"kind": "a.b/gpu", "containerEdits": {"deviceNodes": [{"path": "/dev/dri/card0"}]}}"#;
        let folder = r#"{"kind": "a.b/gpu", "containerEdits": {"deviceNodes": [{"path": "/dev"}]}}"#;
        let other = r#"{"kind": "a.b/nic", "containerEdits": {"deviceNodes": [{"path": "/dev/ctl"}]}}"#;
        for (rule, devices, specifications, paths, any) in [
            ("nothing", &["null"][..], &[][..], &[][..], false),
            (
                "NVIDIA's",
                &["nvidia0", "nvidiactl", "nvidia-uvm"],
                &[],
                &["nvidia-uvm", "nvidia0", "nvidiactl"],
                true,
            ),
            ("its driver alone", &["nvidiactl"], &[], &["nvidiactl"], false),
            ("one that draws", &["dri/card0", "dri/renderD128"], &[], &["dri"], true),
            ("a screen", &["dri/card0"], &[], &["dri"], false),
            ("AMD's", &["kfd"], &[], &["kfd"], true),
            ("a vendor's", &["x0"], &[("a.yaml", yaml)], &["x0"], true),
            ("for all devices", &["ctl"], &[("a.json", json)], &["ctl"], true),
            (
                "in a folder that is one",
                &["dri/card0"],
                &[("a.json", nested)],
                &["dri"],
                true,
            ),
            ("a folder", &["null"], &[("a.json", folder)], &[], false),
            ("no GPU", &["ctl"], &[("a.json", other)], &[], false),
            ("one that is not there", &["null"], &[("a.yaml", yaml)], &[], false),
            ("damaged", &["x0"], &[("a.yaml", "kind: [")], &[], false),
            ("no specification", &["x0"], &[("a.yaml.old", yaml)], &[], false),
        ] {
            let (found, has) = find_with(devices, specifications);
            assert_eq!(
                (found.iter().map(String::as_str).collect::<Vec<_>>(), has),
                (paths.to_vec(), any),
                "{rule}"
            );
        }
    }
}
