//! Checks the folder of `--root` on the disk. A user who could change or replace the folder would
//! gain root through it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::host::files::FileError;
use crate::id::Id;
use crate::layout::{Layout, LayoutError};

/// Mode bits that let the group or other users write.
const OTHERS_WRITE: u32 = 0o022;
/// In a folder with this bit a user can rename or remove own entries only.
const STICKY: u32 = 0o1000;

/// The folder of `--root` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The path is not usable.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The folder cannot be inspected.
    #[error(transparent)]
    File(#[from] FileError),
    /// The path is not a folder.
    #[error("{} is not a folder", .0.display())]
    NoFolder(PathBuf),
    /// The folder, or a folder above it, belongs to another user.
    #[error("{} belongs to another user", .0.display())]
    Owner(PathBuf),
    /// The folder has moved since the first check.
    #[error("{} was moved or replaced by a link", .0.display())]
    Moved(PathBuf),
    /// Other users may write to the folder, or to a folder above it.
    #[error("other users can write to {}", .0.display())]
    Writable(PathBuf),
}

/// Returns the layout of a folder, which need not exist yet. Its path is free of symbolic links,
/// because cleanup compares it with the paths of mounts.
pub(crate) fn open(path: &Path) -> Result<Layout, RootError> {
    // Validate the path as given first, so that an error names the path that the user wrote.
    Layout::new(path)?;
    let there = path.ancestors().find(|path| path.symlink_metadata().is_ok());
    let there = there.unwrap_or(Path::new("/"));
    let rest = path.strip_prefix(there).expect("an ancestor is a prefix");
    let mut real = fs::canonicalize(there).map_err(|error| FileError::new("find", there, error))?;
    let found = real.clone();
    if rest != Path::new("") {
        real.push(rest);
    }
    for folder in found.ancestors() {
        check(folder, folder == real)?;
    }
    Ok(Layout::new(&real)?)
}

/// Returns the real path of a folder that no other user may change.
pub(crate) fn find_owned(path: &Path) -> Result<PathBuf, RootError> {
    let real = fs::canonicalize(path).map_err(|error| FileError::new("find", path, error))?;
    for folder in real.ancestors() {
        check(folder, folder == real)?;
    }
    Ok(real)
}

/// Checks, after the folder was created, that its path still leads to it and that no other user
/// owns it.
pub(crate) fn verify(layout: &Layout) -> Result<(), RootError> {
    if open(layout.root())? == *layout {
        Ok(())
    } else {
        Err(RootError::Moved(layout.root().to_owned()))
    }
}

fn check(folder: &Path, own: bool) -> Result<(), RootError> {
    let meta = fs::metadata(folder).map_err(|error| FileError::new("inspect", folder, error))?;
    if !meta.is_dir() {
        return Err(RootError::NoFolder(folder.to_owned()));
    }
    if !has_owner(&meta) {
        return Err(RootError::Owner(folder.to_owned()));
    }
    let sticky = !own && meta.mode() & STICKY != 0;
    if meta.mode() & OTHERS_WRITE != 0 && !sticky {
        return Err(RootError::Writable(folder.to_owned()));
    }
    Ok(())
}

fn has_owner(meta: &fs::Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&meta.uid())
}

/// Reports whether no other user may write to the file.
pub(crate) fn is_owned(meta: &fs::Metadata) -> bool {
    has_owner(meta) && meta.mode() & OTHERS_WRITE == 0
}

/// Returns the id of the worker in an existing folder.
pub(crate) fn identify(layout: &Layout) -> Result<Id, FileError> {
    let meta = fs::metadata(layout.root()).map_err(|error| FileError::new("inspect", layout.root(), error))?;
    Ok(Id::new(layout.root(), meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_folder_is_known_by_its_real_path() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(real.join("a/w")).unwrap();
        symlink(real.join("a"), real.join("link")).unwrap();
        for (path, expected) in [
            ("a/w", "a/w"),
            ("link/w", "a/w"),
            ("link/new/w", "a/new/w"),
            ("link", "a"),
        ] {
            assert_eq!(open(&real.join(path)).unwrap().root(), real.join(expected), "{path}");
        }
        symlink(real.join("nowhere"), real.join("broken")).unwrap();
        assert!(matches!(open(&real.join("broken/w")), Err(RootError::File(_))));
        fs::write(real.join("file"), "").unwrap();
        assert!(matches!(open(&real.join("file")), Err(RootError::NoFolder(_))));
        assert!(matches!(open(Path::new("relative")), Err(RootError::Layout(_))));
    }

    #[test]
    fn a_folder_that_others_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(real.join("a/w")).unwrap();
        for (folder, mode, good) in [
            ("a/w", 0o755, true),
            ("a/w", 0o775, false),
            ("a/w", 0o1777, false),
            ("a", 0o1777, true),
            ("a", 0o757, false),
        ] {
            fs::set_permissions(real.join(folder), fs::Permissions::from_mode(mode)).unwrap();
            let opened = open(&real.join("a/w"));
            assert_eq!(opened.is_ok(), good, "{folder} {mode:o}: {opened:?}");
            if let Err(error) = opened {
                assert!(matches!(error, RootError::Writable(path) if path == real.join(folder)));
            }
            fs::set_permissions(real.join(folder), fs::Permissions::from_mode(0o755)).unwrap();
        }
        if rustix::process::geteuid().is_root() {
            chown(real.join("a"), Some(1234), None).unwrap();
            assert!(matches!(open(&real.join("a/w")), Err(RootError::Owner(path)) if path == real.join("a")));
        }
    }
}
