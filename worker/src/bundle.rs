//! A bundle: a folder with the programs of a worker and a file `SHA256SUMS`, in the format of
//! `sha256sum`, that lists them all.
//!
//! ```text
//!  SHA256SUMS  kubelet  kubelet-v*  containerd  containerd-shim-runc-v2  ctr  runc  bridge  host-local  loopback  portmap  images/*.tar
//!      │ parse (pure)                                                                                          │
//!      └─▶ every file is copied into the worker's folder, and appears there only if its digest matches the list
//! ```
//! A bundle may have kubelets of several versions, named by version: `kubelet-v1.35.5`. Only one is
//! installed, as `kubelet`.
//! is installed, as `kubelet`.
//!
//! Statically linked programs run on any machine; the maker of the bundle ensures that. Images are
//! for machines without access to a registry.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};
use yoke_api::KubernetesVersion;

use crate::layout::Layout;
use crate::root;

pub(crate) mod kubelet_version;

/// The file that lists all others.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// Programs that every bundle must have.
pub(crate) const PROGRAMS: &[&str] = &[
    "kubelet",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "bridge",
    "host-local",
    "loopback",
    "portmap",
];
const IMAGES: &str = "images/";
const KUBELET: &str = "kubelet";
/// Prefix of a kubelet that is named by its version.
const KUBELETS: &str = "kubelet-";

const SUMS_MAX: u64 = 64 << 10;
const FILES_MAX: usize = 200;
const PIECE: usize = 1 << 16;

/// The reason why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file cannot be read or written.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// The operation that failed.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The folder has no bundle.
    #[error("there is no bundle in {}: {SUMS} is missing", .0.display())]
    Absent(PathBuf),
    /// A line of the list is not in the format of `sha256sum`.
    #[error("line {0} of {SUMS} is not a SHA-256 digest followed by a file name")]
    Line(usize),
    /// The list has more lines than any bundle has files.
    #[error("{SUMS} has more than {FILES_MAX} lines")]
    Long,
    /// The list has a file twice.
    #[error("{SUMS} lists {0} twice")]
    Twice(String),
    /// The list lacks a program.
    #[error("{SUMS} does not list {0}")]
    Missing(&'static str),
    /// The digest of a file does not match the list.
    #[error("the digest of {0} differs from the one in {SUMS}")]
    Digest(String),
    /// Another user may change a file.
    #[error("{} must be a regular file that only root or the current user can write", .0.display())]
    Writable(PathBuf),
    /// The version of the kubelet cannot be read.
    #[error("cannot parse the version that the bundle's kubelet prints: {0:?}")]
    Version(String),
    /// Kubernetes does not support this combination of kubelet and API server.
    #[error(
        "kubelet {kubelet} does not support API server {api}: the kubelet must not be newer, nor more than three minor versions older"
    )]
    Skew {
        /// Version of the kubelet.
        kubelet: KubernetesVersion,
        /// Version of the API server.
        api: KubernetesVersion,
    },
}

impl BundleError {
    /// Returns advice for the user.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Absent(_) => {
                "name the bundle's folder with --bundle, or copy a bundle here: `make images` in Yoke's repository builds one \
                 for Debian 12 in .dev/bundle, and the yoke-worker image contains one (README, Workers)"
            }
            Self::Skew { .. } => "get a bundle for the version of the API server",
            Self::Writable(_) => {
                "if you trust the content of the bundle, run `chown -R root:` and `chmod -R go-w` on its folder"
            }
            _ => "download the bundle again; `sha256sum -c SHA256SUMS` in its folder lists the corrupt files",
        }
    }
}

pub(crate) type Sums = BTreeMap<String, [u8; 32]>;

/// Parses the list. Every name must stay in the folder, and no program may be missing.
fn parse_sums(text: &str) -> Result<Sums, BundleError> {
    let mut sums = Sums::new();
    for (index, line) in text.lines().enumerate() {
        if index >= FILES_MAX {
            return Err(BundleError::Long);
        }
        let (name, digest) = parse_line(line).ok_or(BundleError::Line(index + 1))?;
        if sums.insert(name.to_owned(), digest).is_some() {
            return Err(BundleError::Twice(name.to_owned()));
        }
    }
    match PROGRAMS.iter().find(|name| !sums.contains_key(**name)) {
        Some(name) => Err(BundleError::Missing(name)),
        None => Ok(sums),
    }
}

/// Parses `<digest>  <name>`; a binary file has ` *` between them.
fn parse_line(line: &str) -> Option<(&str, [u8; 32])> {
    let (digest, name) = line.split_once(' ')?;
    let name = name.strip_prefix([' ', '*'])?;
    let name = name.strip_prefix("./").unwrap_or(name);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let file = name.strip_prefix(IMAGES).unwrap_or(name);
    let good = !file.is_empty() && !file.starts_with('.') && file.bytes().all(plain);
    let digest = data_encoding::HEXLOWER_PERMISSIVE.decode(digest.as_bytes()).ok()?;
    good.then_some((name, digest.try_into().ok()?))
}

/// Checks the version skew that Kubernetes supports.
pub(crate) fn check_skew(kubelet: KubernetesVersion, api: KubernetesVersion) -> Result<(), BundleError> {
    if kubelet.may_join(api) {
        Ok(())
    } else {
        Err(BundleError::Skew { kubelet, api })
    }
}

/// Finds the kubelet that is named by this version, or else the one without a version in its name.
pub(crate) fn find_kubelet(sums: &Sums, version: KubernetesVersion) -> Option<(&str, &[u8; 32])> {
    let named = sums.get_key_value(&format!("{KUBELETS}{version}"));
    let found = named.or_else(|| sums.get_key_value(KUBELET));
    found.map(|(name, digest)| (name.as_str(), digest))
}

/// Copies the bundle into the worker's folder, with the kubelet for this version of the API server.
/// Intact files are not copied again.
pub(crate) fn install(bundle: &Path, layout: &Layout, api: KubernetesVersion) -> Result<(), BundleError> {
    let sums = read_sums(bundle)?;
    let kubelet = find_kubelet(&sums, api);
    for (name, digest) in sums.iter().map(|(name, digest)| (name.as_str(), digest)) {
        let (to, mode) = match name.strip_prefix(IMAGES) {
            Some(image) => (layout.images().join(image), 0o644),
            None if Some(name) == kubelet.map(|(name, _)| name) => (layout.binary(KUBELET), 0o755),
            None if name == KUBELET || name.starts_with(KUBELETS) => continue,
            None => (layout.binary(name), 0o755),
        };
        if !has_digest(&to, digest) {
            copy(&bundle.join(name), &to, mode, name, digest)?;
        }
    }
    Ok(())
}

/// Checks that the bundle has all listed files, and counts them. Their digests are checked when
/// they are copied.
pub(crate) fn check_files(bundle: &Path) -> Result<usize, BundleError> {
    let sums = read_sums(bundle)?;
    for name in sums.keys() {
        open(&bundle.join(name), OFlags::empty())?;
    }
    Ok(sums.len())
}

/// Reads the list of a bundle.
pub(crate) fn read_sums(bundle: &Path) -> Result<Sums, BundleError> {
    let path = bundle.join(SUMS);
    let file = open(&path, OFlags::NOFOLLOW).map_err(|error| match error {
        BundleError::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            BundleError::Absent(bundle.to_owned())
        }
        other => other,
    })?;
    let mut text = String::new();
    file.take(SUMS_MAX)
        .read_to_string(&mut text)
        .map_err(failed("read", &path))?;
    parse_sums(&text)
}

/// Opens a file that no other user may change.
fn open(path: &Path, flags: OFlags) -> Result<fs::File, BundleError> {
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = fs::File::from(opened.map_err(|error| failed("read", path)(error.into()))?);
    let meta = file.metadata().map_err(failed("inspect", path))?;
    if meta.is_file() && root::is_owned(&meta) {
        Ok(file)
    } else {
        Err(BundleError::Writable(path.to_owned()))
    }
}

fn has_digest(file: &Path, digest: &[u8; 32]) -> bool {
    fs::File::open(file)
        .and_then(|file| copy_hashed(file, &mut io::sink()))
        .is_ok_and(|found| found == *digest)
}

/// Copies a file, and hashes the bytes that it writes: the bundle may change meanwhile.
pub(crate) fn copy(from: &Path, to: &Path, mode: u32, name: &str, digest: &[u8; 32]) -> Result<(), BundleError> {
    let partial = to.with_file_name(format!(".{}.partial", to.file_name().unwrap_or_default().display()));
    let _ = fs::remove_file(&partial);
    // The source may be a symbolic link of the owner. Its content is checked by the digest.
    let source = open(from, OFlags::empty())?;
    let mut options = fs::OpenOptions::new();
    let mut target = options
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&partial)
        .map_err(failed("write", &partial))?;
    let copied = copy_hashed(source, &mut target).and_then(|found| target.sync_all().map(|()| found));
    drop(target);
    let checked = copied.map_err(failed("copy", from)).and_then(|found| {
        let same = found == *digest;
        same.then_some(()).ok_or_else(|| BundleError::Digest(name.to_owned()))
    });
    checked
        .and_then(|()| fs::rename(&partial, to).map_err(failed("write", to)))
        .inspect_err(|_| {
            // No program reads a partial file, and the next copy removes it as well.
            let _ = fs::remove_file(&partial);
        })
}

fn copy_hashed(mut from: impl Read, to: &mut impl Write) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        let count = from.read(&mut piece)?;
        if count == 0 {
            return Ok(hash.finalize().into());
        }
        hash.update(&piece[..count]);
        to.write_all(&piece[..count])?;
    }
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BundleError + 'a {
    move |source| BundleError::File {
        doing,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
