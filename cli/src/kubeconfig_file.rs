//! The user's own kubeconfig file. Adapter: finds, locks, reads and replaces it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Error;
use crate::merge::{Merged, merge};

const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// File mode: a kubeconfig contains keys.
const PRIVATE: u32 = 0o600;

/// Returns the file that kubectl would write: the first of `KUBECONFIG` that exists, else its last,
/// else `~/.kube/config`.
pub(crate) fn find() -> Result<PathBuf, Error> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<_> = std::env::split_paths(&listed)
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    if let Some(path) = listed.iter().find(|path| path.exists()).or(listed.last()) {
        return Ok(path.clone());
    }
    let home = std::env::home_dir()
        .filter(|home| !home.as_os_str().is_empty())
        .ok_or(Error::NoHome)?;
    Ok(home.join(".kube").join("config"))
}

/// Adds the current context of a kubeconfig to the file under a name. Holds the same lock as
/// kubectl and replaces the file atomically. A symbolic link to the file stays a link.
pub(crate) async fn add(path: &Path, added: &str, name: &str) -> Result<Merged, Error> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|source| file_error("make the folder of", path, source))?;
    }
    let _lock = Lock::take(path).await?;
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let existing = match std::fs::read_to_string(&target) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(source) => return Err(file_error("read", path, source)),
    };
    let merged = merge(&existing, added, name).map_err(|source| Error::Merge {
        path: path.to_owned(),
        source,
    })?;
    replace(&target, &merged.text).map_err(|source| file_error("write", path, source))?;
    Ok(merged)
}

fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mode = std::fs::metadata(path).map_or(PRIVATE, |metadata| metadata.permissions().mode() & 0o777);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(PRIVATE)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// kubectl's lock: the file `<file>.lock` beside it, see `lockFile` in client-go's
/// `tools/clientcmd/config.go`.
struct Lock(PathBuf);

impl Lock {
    async fn take(path: &Path) -> Result<Self, Error> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = PathBuf::from(name);
        for _ in 0..LOCK_ATTEMPTS {
            match File::create_new(&lock) {
                Ok(_) => return Ok(Self(lock)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => tokio::time::sleep(LOCK_PAUSE).await,
                Err(source) => return Err(file_error("lock", path, source)),
            }
        }
        Err(Error::Locked {
            path: path.to_owned(),
            lock,
        })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn file_error(verb: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File {
        verb,
        path: path.to_owned(),
        source,
    }
}
