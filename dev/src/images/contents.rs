//! Contents of an image: collects a binary's files and builds the image from them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use yoke_supervisor::programs::find_program;

use super::oci::{self, ImageFile};
use crate::command::Command;

/// kube-proxy, for workers of tenants.
pub(crate) const KUBE_PROXY: &str = "kube-proxy";
/// The worker's program. Workers download it from the SSH server.
pub(crate) const WORKER_BINARY: &str = "yoke-worker";
/// Folder of the binary in every image except [`ROOT_BINARY`].
const BIN: &str = "usr/local/bin";
/// Binary at the root of its image, because people call it by its path.
const ROOT_BINARY: &str = "echo";
/// The binary whose image also contains `yoke-worker`, and the folder that the chart configures for
/// it.
const DISTRIBUTOR: &str = "yoke-ssh-ui";
const DISTRIBUTED_FOLDER: &str = "usr/share/yoke/workers";

/// Programs of this computer that a binary calls: binary, program.
const CALLED_PROGRAMS: &[(&str, &str)] = &[
    (KUBE_PROXY, "nft"),
    (WORKER_BINARY, "ip"),
    (WORKER_BINARY, "mount"),
    (WORKER_BINARY, "nft"),
    (WORKER_BINARY, "nsenter"),
    (WORKER_BINARY, "setpriv"),
    (WORKER_BINARY, "umount"),
    (WORKER_BINARY, "unshare"),
];

/// Further binaries of this workspace in an image: image's binary, further binary.
const FURTHER_BINARIES: &[(&str, &str)] = &[("kine-nats", "yoke-launch")];

/// Contents of an image: programs by name (the entry point first), the shared libraries of all
/// programs, other files by path, and texts by path.
pub(super) struct Contents {
    programs: Vec<(String, PathBuf)>,
    pub(super) libraries: BTreeSet<PathBuf>,
    pub(super) others: Vec<(String, PathBuf)>,
    pub(super) texts: &'static [(&'static str, &'static str)],
    /// Path of the image's volume.
    pub(super) volume: Option<&'static str>,
}

impl Contents {
    pub(super) async fn find(program: &str, path: PathBuf) -> Result<Self> {
        let given = (program == DISTRIBUTOR).then(|| {
            (
                format!("{DISTRIBUTED_FOLDER}/{WORKER_BINARY}-{}", architecture()),
                path.with_file_name(WORKER_BINARY),
            )
        });
        let mut programs = vec![(program.to_owned(), path.clone())];
        for (_, with) in FURTHER_BINARIES.iter().filter(|(by, _)| *by == program) {
            programs.push(((*with).to_owned(), path.with_file_name(with)));
        }
        for (_, run) in CALLED_PROGRAMS.iter().filter(|(by, _)| *by == program) {
            let path = find_program(run).with_context(|| format!("{run} is not installed"))?;
            programs.push(((*run).to_owned(), path));
        }
        let mut libraries = BTreeSet::new();
        for (_, path) in &programs {
            libraries.extend(shared_libraries(path).await?);
        }
        Ok(Self {
            programs,
            libraries,
            others: given.into_iter().collect(),
            texts: &[],
            volume: None,
        })
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let named = self.programs.iter().chain(&self.others);
        named.map(|(_, path)| path).chain(&self.libraries)
    }

    fn read(&self) -> Result<Vec<ImageFile>> {
        let place = |name: &String| match name.as_str() {
            ROOT_BINARY => name.clone(),
            _ => format!("{BIN}/{name}"),
        };
        let programs = self.programs.iter().map(|(name, path)| (place(name), path));
        let in_place = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_owned();
        let libraries = self.libraries.iter().map(|path| (in_place(path), path));
        let read = |(path, file): (String, &PathBuf)| {
            let content = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            Ok(ImageFile { path, content })
        };
        let others = self.others.iter().map(|(place, path)| (place.clone(), path));
        let texts = self.texts.iter().map(|(path, text)| {
            Ok(ImageFile {
                path: (*path).to_owned(),
                content: text.as_bytes().to_vec(),
            })
        });
        programs.chain(libraries).chain(others).map(read).chain(texts).collect()
    }
}

/// Builds the image of a binary, called `program` in it.
pub(super) async fn build(program: &str, contents: &Contents) -> Result<oci::Image> {
    let files = contents.read()?;
    let (entrypoint, volume) = (program.to_owned(), contents.volume);
    tokio::task::spawn_blocking(move || oci::Image::build(&files, &entrypoint, volume))
        .await
        .context("building an image")?
        .with_context(|| format!("building the image of {program}"))
}

/// Architecture of this computer, in Debian's spelling.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Shared libraries of a binary, by the paths at which it looks for them. A static binary has none.
pub(super) async fn shared_libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let script = r#"LC_ALL=C ldd "$0" 2>&1 || true"#;
    let text = Command::new("sh").args(["-c", script]).arg(binary).output().await?;
    parse_ldd(&text).with_context(|| format!("finding the shared libraries of {}", binary.display()))
}

fn parse_ldd(text: &str) -> Result<Vec<PathBuf>> {
    if text.contains("not a dynamic executable") || text.contains("statically linked") {
        return Ok(Vec::new());
    }
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        let target = line.split_once(" => ").map_or(line, |(_, target)| target);
        if target.starts_with("not found") {
            anyhow::bail!("{line}");
        }
        // Kernel-provided libraries, such as linux-vdso.so.1, have no path.
        if target.starts_with('/') {
            let path = target.split_once(" (").map_or(target, |(path, _)| path);
            libraries.push(PathBuf::from(path));
        }
    }
    libraries.sort();
    Ok(libraries)
}

/// Hash that changes when one of the files changes.
pub(crate) fn stamp<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Result<String> {
    let mut hash = Sha256::new();
    for file in files {
        let meta = fs::metadata(file).with_context(|| format!("reading the metadata of {}", file.display()))?;
        hash.update(format!("{} {} {:?}\n", file.display(), meta.len(), meta.modified()?));
    }
    Ok(HEXLOWER.encode(&hash.finalize()[..8]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_the_paths_at_which_the_binary_looks_for_them() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse_ldd(text).unwrap(), expected);
        assert!(parse_ldd("\tnot a dynamic executable\n").unwrap().is_empty());
        assert!(parse_ldd("\tlibx.so => not found\n").is_err());
    }
}
