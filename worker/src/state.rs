//! What a worker is, as it is remembered in `worker.json`: nothing of it is secret.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::files::{self, FileError};
use crate::layout::Layout;

/// What a worker is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Worker {
    /// Name of its Node.
    pub(crate) name: String,
    /// Name and port of the API.
    pub(crate) server: String,
    pub(crate) cluster_dns: IpAddr,
    pub(crate) cluster_domain: String,
    /// The address that it is known by, if it is not to find it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node_ip: Option<IpAddr>,
    /// Its control group, from the root of each hierarchy, without a slash before it.
    pub(crate) cgroup: String,
    /// Whether nothing of it is to be left when it ends.
    pub(crate) ephemeral: bool,
    /// How long Pods may take to go when it ends.
    pub(crate) drain: Duration,
}

impl Worker {
    /// Reads what was remembered; nothing if nothing was.
    pub(crate) fn read(layout: &Layout) -> Result<Option<Self>, Error> {
        let path = layout.state();
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| Error::State(path, error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FileError::new("read", &path, error).into()),
        }
    }

    /// Remembers it.
    pub(crate) fn write(&self, layout: &Layout) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("strings and numbers are JSON");
        files::write(&layout.state(), &format!("{text}\n"), files::PUBLIC)?;
        Ok(())
    }
}

/// The right to do something with the worker's folder, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: fs::File,
}

impl Lock {
    /// Takes it, if nobody has it.
    pub(crate) fn take(layout: &Layout) -> Result<Self, Error> {
        let path = layout.lock();
        let failed = |error| FileError::new("lock", &path, error);
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file }),
            Err(fs::TryLockError::WouldBlock) => Err(Error::Busy(layout.root().to_owned())),
            Err(fs::TryLockError::Error(error)) => Err(failed(error).into()),
        }
    }

    /// For a process that is started: nobody else has the right before that one has ended, too.
    pub(crate) fn share(&self) -> std::io::Result<Stdio> {
        self.file.try_clone().map(Stdio::from)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_worker_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        assert_eq!(Worker::read(&layout).unwrap(), None);
        let worker = Worker {
            name: "box-1".into(),
            server: "demo.yoke.example:443".into(),
            cluster_dns: "10.96.0.10".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
            node_ip: Some("10.0.0.2".parse().unwrap()),
            cgroup: "yoke-worker".into(),
            ephemeral: true,
            drain: Duration::from_secs(90),
        };
        worker.write(&layout).unwrap();
        assert_eq!(Worker::read(&layout).unwrap(), Some(worker));
        fs::write(layout.state(), "{}").unwrap();
        assert!(matches!(Worker::read(&layout), Err(Error::State(path, _)) if path == layout.state()));
    }

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        let lock = Lock::take(&layout).unwrap();
        assert!(matches!(Lock::take(&layout), Err(Error::Busy(_))));
        drop(lock);
        Lock::take(&layout).unwrap();
        let nowhere = Layout::new(Path::new("/nowhere/w")).unwrap();
        assert!(matches!(Lock::take(&nowhere), Err(Error::File(_))));
    }
}
