//! The image of a worker: `yoke-worker`, the bundle from which it installs a worker, and the
//! programs of this computer that both call.
//!
//! A container of this image needs all privileges. It also needs a volume for what the worker
//! writes, because overlayfs layers of Pods cannot be placed on the container's own overlayfs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::contents::{Contents, WORKER_BINARY, build as build_image, shared_libraries};
use super::oci;

/// Repository and binary of the image.
pub(super) const IMAGE: (&str, &str) = ("docker.io/yoke/worker", WORKER_BINARY);

/// Path at which `yoke-worker` looks for a bundle.
const BUNDLE: &str = "usr/lib/yoke-worker";
/// File that lists all files of a bundle.
const SUMS: &str = "SHA256SUMS";
/// CA certificates for registries. The computer may have none.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Folder where `yoke-worker` stores all state of the worker.
const VOLUME: &str = "/var/lib/yoke-worker";

/// The kubelet reads these files to map user IDs of Pods.
const USERS: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/:/sbin/nologin\n"),
    ("etc/group", "root:x:0:\n"),
];

/// Builds the image from the binary and a bundle.
pub async fn build(binary: PathBuf, bundle: &Path) -> Result<oci::Image> {
    let mut contents = Contents::find(WORKER_BINARY, binary).await?;
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
    build_image(WORKER_BINARY, &contents).await
}

/// File names in the output of `sha256sum`.
fn list_names(sums: &str) -> impl Iterator<Item = &str> {
    let names = sums.lines().filter_map(|line| line.split_once("  "));
    names.map(|(_, name)| name.trim_start_matches("./"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_bundle_are_the_ones_with_digests() {
        let sums = "00  kubelet\n11  ./images/pause.tar\n";
        assert_eq!(list_names(sums).collect::<Vec<_>>(), ["kubelet", "images/pause.tar"]);
    }
}
