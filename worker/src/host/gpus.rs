//! Finds the GPUs of a machine. An ephemeral worker hides them from its Pods unless the user passes
//! `--gpus all`.
//!
//! ```text
//!  /dev, CDI specifications ──▶ find ─┬─ --gpus all:  device plugins find them; having none is an error
//!                                     └─ --gpus none: the sandbox mounts empty files over them (sandbox.rs)
//! ```
//!
//! The vendor's device plugin decides which Pod gets which GPU. Its Pod finds the kubelet's socket
//! at the standard path.
//!
//! This keeps Pods from using GPUs by accident. It is no security boundary: root on the machine,
//! such as a privileged Pod, can create a device file again. Denying the devices to the control
//! group of all Pods would be one. With version 1, however, no privileged container starts below
//! such a group.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Deserialize;

/// Default folders of CDI specifications.
const SPECIFICATIONS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// End of the kind of every vendor's CDI devices for GPUs.
const CLASS: &str = "/gpu";
/// Upper bounds: bytes of a specification, and number of specifications.
const SPECIFICATION_MAX: u64 = 1 << 20;
const SPECIFICATIONS_MAX: usize = 64;

/// GPUs of the machine that Pods may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Gpus {
    /// All of them; a device plugin assigns them to Pods
    All,
    /// None of those that exist when the worker starts
    #[default]
    None,
}

/// The GPUs of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Files and folders that give access to them.
    pub(crate) paths: BTreeSet<PathBuf>,
    /// Whether one of them can compute or render. A display output alone does not count.
    pub(crate) any: bool,
}

/// The fields of a CDI specification that matter:
/// <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.
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

/// Finds the GPUs of this machine.
pub(crate) fn find() -> Found {
    find_in(Path::new("/dev"), &SPECIFICATIONS.map(Path::new))
}

fn find_in(devices: &Path, specifications: &[&Path]) -> Found {
    let mut found = Found::default();
    for name in list(devices) {
        // Devices of NVIDIA, of the kernel's DRM drivers, of AMD for computing, and of WSL.
        if name.starts_with("nvidia") || ["dri", "kfd", "dxg"].contains(&name.as_str()) {
            found.any |= name != "dri" && !is_control_device(&name);
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
                // A listed folder covers the files in it.
                if !node.ancestors().any(|path| found.paths.contains(path)) {
                    found.paths.insert(node);
                }
            }
        }
    }
    found
}

/// Reports whether this is a control file of a driver, which exists without any device, too.
fn is_control_device(name: &str) -> bool {
    let number = name.strip_prefix("nvidia");
    number.is_some_and(|number| !number.starts_with(|c: char| c.is_ascii_digit()))
}

fn is_specification(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["json", "yaml"].contains(&extension))
}

/// Lists a folder, sorted, so that the result is deterministic.
fn list(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Reads a specification. A file that cannot be parsed is ignored, as a container runtime does.
fn read(file: &Path) -> Option<Specification> {
    let mut text = String::new();
    File::open(file)
        .ok()?
        .take(SPECIFICATION_MAX)
        .read_to_string(&mut text)
        .ok()?;
    // JSON is a subset of YAML.
    serde_saphyr::from_str(&text).ok()
}

/// Returns the device files of the GPUs in a specification, as paths on the machine.
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
