//! Builds bundles: of empty files, or of the real programs of this machine with the images that a
//! test needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// Programs from `YOKE_BIN`.
const BUILT: &[&str] = &["kubelet", "ctr", "bridge", "host-local", "loopback", "portmap"];
/// Programs of Debian packages.
const INSTALLED: &[&str] = &["containerd", "containerd-shim-runc-v2", "runc"];
pub(crate) const ECHO: &str = "docker.io/yoke/echo:dev";
const PAUSE: &str = "registry.k8s.io/pause:3.10";

pub(crate) fn make_empty(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for name in BUILT.iter().chain(INSTALLED) {
        fs::write(folder.join(name), "").unwrap();
    }
    seal(folder);
}

/// Makes a bundle of links to the programs, and of images built from some of them.
pub(crate) fn make(folder: &Path) {
    let bin = bin();
    fs::create_dir_all(folder.join("images")).unwrap();
    let installed = |name: &str| {
        let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
        folders
            .into_iter()
            .map(|dir| dir.join(name))
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("no {name}"))
    };
    let built = BUILT.iter().map(|name| (*name, bin.join(name)));
    for (name, from) in built.chain(INSTALLED.iter().map(|name| (*name, installed(name)))) {
        std::os::unix::fs::symlink(from, folder.join(name)).unwrap();
    }
    for (image, program) in [(PAUSE, "pause"), (ECHO, "echo")] {
        make_image(&folder.join(format!("images/{program}.tar")), image, &bin.join(program));
    }
    seal(folder);
}

/// Adds an image with one program.
pub(crate) fn add_image(folder: &Path, image: &str, program: &str) {
    make_image(
        &folder.join(format!("images/{program}.tar")),
        image,
        &bin().join(program),
    );
    seal(folder);
}

/// Adds a kubelet that is named by its version.
pub(crate) fn add_kubelet(folder: &Path, version: &str, program: &[u8]) {
    fs::write(folder.join(format!("kubelet-{version}")), program).unwrap();
    seal(folder);
}

/// Returns a real kubelet that reports another version. It shows which kubelet runs, but not
/// whether two releases are compatible.
pub(crate) fn relabel_kubelet(from: &str, to: &str) -> Vec<u8> {
    let program = fs::read(bin().join("kubelet")).unwrap();
    let text = |version: &str| format!("\0{version}\0unknown\0").into_bytes();
    let (from, to) = (text(from), text(to));
    assert_eq!(from.len(), to.len());
    let found: Vec<_> = program
        .windows(from.len())
        .enumerate()
        .filter(|(_, part)| *part == from)
        .collect();
    let [(at, _)] = found[..] else {
        panic!("the kubelet says its version {} times", found.len())
    };
    let mut other = program.clone();
    other[at..at + to.len()].copy_from_slice(&to);
    other
}

/// Returns the folder of the tests' programs.
pub(crate) fn bin() -> PathBuf {
    std::env::var_os("YOKE_BIN")
        .expect("YOKE_BIN names the programs that `make tools` makes")
        .into()
}

/// Writes SHA256SUMS with the commands that a user would run.
pub(crate) fn seal(folder: &Path) {
    let script = "find . -name '[a-z]*' '(' -type f -o -type l ')' | sort | xargs sha256sum > SHA256SUMS";
    let sealed = Command::new("sh")
        .args(["-c", script])
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(sealed.success());
}

/// Writes an image archive in the format of `docker save`, with one program.
fn make_image(file: &Path, name: &str, program: &Path) {
    let mut layer = tar::Builder::new(Vec::new());
    let entry = program.file_name().unwrap();
    append(&mut layer, &entry.to_string_lossy(), &fs::read(program).unwrap());
    let layer = layer.into_inner().unwrap();
    let digest = format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(&layer)));
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": [format!("/{}", entry.to_string_lossy())], "Env": ["PATH=/"]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    let mut archive = tar::Builder::new(fs::File::create(file).unwrap());
    append(&mut archive, "layer.tar", &layer);
    append(&mut archive, "config.json", config.to_string().as_bytes());
    append(&mut archive, "manifest.json", manifest.to_string().as_bytes());
    archive.finish().unwrap();
}

fn append(archive: &mut tar::Builder<impl std::io::Write>, name: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len().try_into().unwrap());
    header.set_mode(0o755);
    archive.append_data(&mut header, name, content).unwrap();
}
