//! Files and folders: writes secrets, links and copies binaries, lists folders.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Entries of a folder; empty if it does not exist.
pub(crate) fn list_entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

/// Whether a socket file exists without a listener. Its owner has exited, and no process can use it
/// again.
pub(crate) fn is_dead_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Writes a file that only its owner can read.
pub(crate) fn write_secret(path: &Path, content: &str) -> Result<()> {
    // Opening an existing file does not change its mode, so the old file is removed first.
    let _ = fs::remove_file(path);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("creating {}", path.display()))?;
    file.write_all(content.as_bytes())
        .with_context(|| format!("writing {}", path.display()))
}

/// Puts a file of the cache into `.dev/bin`: as a hard link, or as a copy on another file system.
pub(crate) fn link(from: &Path, to: &Path) -> Result<()> {
    if same_file(from, to) {
        return Ok(());
    }
    let _ = fs::remove_file(to);
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(_) => copy(from, to),
    }
    .with_context(|| format!("linking {} to {}", from.display(), to.display()))
}

/// Copies through a temporary name: a running program's file cannot be written, but it can be
/// replaced.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let partial = to.with_extension("partial");
    fs::copy(from, &partial)?;
    let modified = fs::metadata(from)?.modified()?;
    fs::File::options()
        .append(true)
        .open(&partial)?
        .set_modified(modified)?;
    fs::rename(&partial, to)
}

/// Whether two names lead to one file, or to copies made by [`copy`].
pub(crate) fn same_file(one: &Path, two: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(one), Ok(two)) = (fs::metadata(one), fs::metadata(two)) else {
        return false;
    };
    (one.dev() == two.dev() && one.ino() == two.ino())
        || (one.len() == two.len() && one.modified().ok() == two.modified().ok())
}

/// Sets the permissions of a program.
pub(crate) fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).context("making a binary executable")
}
