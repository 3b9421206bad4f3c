//! The image of a worker: `yoke-worker`, the bundle that it makes a machine a worker by, and what both call of the machine.
//!
//! A container of it needs all privileges, and a volume for what the worker writes: the layers of its Pods cannot be put upon
//! those of a container.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Contents, build as build_image, oci, shared_libraries};

/// Its binary.
pub const PROGRAM: &str = "yoke-worker";
/// Its repository and binary.
pub(super) const IMAGE: (&str, &str) = ("docker.io/yoke/worker", PROGRAM);

/// Where `yoke-worker` looks for a bundle.
const BUNDLE: &str = "usr/lib/yoke-worker";
/// Names all that is in a bundle.
const SUMS: &str = "SHA256SUMS";
/// By which registries are known. A machine may have none.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Where `yoke-worker` keeps all that is the worker's.
const VOLUME: &str = "/var/lib/yoke-worker";

/// The kubelet looks there for users whose numbers Pods may have.
const USERS: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/:/sbin/nologin\n"),
    ("etc/group", "root:x:0:\n"),
];

/// Builds it of the binary and a bundle.
pub async fn build(binary: PathBuf, bundle: &Path) -> Result<oci::Image> {
    let mut contents = Contents::find(PROGRAM, binary).await?;
    (contents.volume, contents.texts) = (Some(VOLUME), USERS);
    let sums = fs::read_to_string(bundle.join(SUMS)).context("reading what is in a worker's bundle")?;
    for name in list_names(&sums).chain([SUMS]) {
        let path = bundle.join(name);
        if !name.contains(['/', '.']) {
            contents.libraries.extend(shared_libraries(&path).await?);
        }
        contents.others.push((format!("{BUNDLE}/{name}"), path));
    }
    if Path::new(AUTHORITIES).exists() {
        let place = AUTHORITIES.trim_start_matches('/').to_owned();
        contents.others.push((place, AUTHORITIES.into()));
    }
    build_image(PROGRAM, &contents).await
}

/// Files, as `sha256sum` writes them beside their digests.
fn list_names(sums: &str) -> impl Iterator<Item = &str> {
    let names = sums.lines().filter_map(|line| line.split_once("  "));
    names.map(|(_, name)| name.trim_start_matches("./"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_bundle_are_those_with_digests() {
        let sums = "00  kubelet\n11  ./images/pause.tar\n";
        assert_eq!(list_names(sums).collect::<Vec<_>>(), ["kubelet", "images/pause.tar"]);
    }
}
