//! Writes files atomically, and only if their content or mode differs.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Mode of a file that contains credentials of the worker.
pub(crate) const SECRET: u32 = 0o600;
pub(crate) const PUBLIC: u32 = 0o644;
/// Mode of the worker's folders, which contain secrets.
const FOLDER: u32 = 0o700;

/// An operation on a file failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}", path.display())]
pub struct FileError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl FileError {
    pub(crate) fn new(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self {
            doing,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

/// Creates a folder that only its owner can read, and missing folders above it.
pub(crate) fn make_folder(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(FOLDER);
    builder
        .create(path)
        .map_err(|error| FileError::new("create", path, error))
}

/// Writes a file, and reports whether its content or mode has changed.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<bool, FileError> {
    let content = content.as_ref();
    let same_mode = fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o777 == mode);
    if same_mode && fs::read(path).is_ok_and(|found| found == content) {
        return Ok(false);
    }
    replace(path, content, mode).map_err(|error| FileError::new("write", path, error))?;
    Ok(true)
}

fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let partial = path.with_file_name(format!(".{}.partial", path.file_name().unwrap_or_default().display()));
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&partial)?;
    // The umask may have reduced the mode at creation.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&partial, path).inspect_err(|_| {
        // No program reads a partial file.
        let _ = fs::remove_file(&partial);
    })
}

/// Removes a file. A missing file is no error.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::new("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes the content of a folder, but not the folder, because a program may watch it. A missing
/// folder is no error.
pub(crate) fn clear(folder: &Path) -> Result<(), FileError> {
    let failed = |path: &Path, error| FileError::new("remove", path, error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| FileError::new("read", folder, error))?,
    };
    for entry in entries {
        let entry = entry.map_err(|error| FileError::new("read", folder, error))?;
        // The type of the entry itself: a symbolic link is removed, not its target.
        let removed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(entry.path()),
            Ok(_) => fs::remove_file(entry.path()),
            Err(error) => Err(error),
        };
        removed.map_err(|error| failed(&entry.path(), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_only_if_it_differs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(write(&path, "one", SECRET).unwrap());
        assert!(!write(&path, "one", SECRET).unwrap());
        assert!(write(&path, "one", PUBLIC).unwrap(), "another mode is another file");
        // Leftover of a killed process.
        fs::write(dir.path().join(".file.partial"), "half").unwrap();
        assert!(write(&path, "two", SECRET).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SECRET);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
    }

    #[test]
    fn a_folder_that_is_cleared_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, other) = (dir.path().join("a"), dir.path().join("other"));
        clear(&folder).unwrap();
        fs::create_dir_all(folder.join("b")).unwrap();
        fs::write(folder.join("b/file"), "").unwrap();
        fs::write(&other, "dear").unwrap();
        std::os::unix::fs::symlink(&other, folder.join("link")).unwrap();
        clear(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert!(other.exists());
    }

    #[test]
    fn a_folder_is_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        make_folder(&path).unwrap();
        make_folder(&path).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, FOLDER);
    }
}
