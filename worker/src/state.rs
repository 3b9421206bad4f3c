//! The state of a worker, persisted in `worker.json`. It contains no secrets.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use yoke_api::join_token::Taint;
use yoke_api::join_token::line::{is_distant, is_server};
use yoke_api::join_token::node::{check_labels, check_taints};
use yoke_api::names::{is_domain, is_label};

use crate::arguments::{BUNDLE, LONGEST, WIREGUARD_PORT};
use crate::error::Error;
use crate::host::files::{self, FileError};
use crate::id::Id;
use crate::layout::Layout;
use crate::limits::Limits;
use crate::netns::Netns;
use crate::node_name::is_node_name;
use crate::uplink::link::Uplink;

/// Upper bound in bytes, larger than any state.
const STATE_MAX: u64 = 64 << 10;

/// The persisted state of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Worker {
    /// Name of its Node.
    pub(crate) name: String,
    /// Name and port of the API server.
    pub(crate) server: String,
    /// Address of the API server, if the token names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<IpAddr>,
    pub(crate) cluster_dns: IpAddr,
    pub(crate) cluster_domain: String,
    /// The Node's address, unless the kubelet detects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node_ip: Option<IpAddr>,
    /// Address at which other workers reach this one, if it differs from the Node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) public_address: Option<IpAddr>,
    /// UDP port at which other workers reach this one.
    #[serde(default = "default_port")]
    pub(crate) wireguard_port: u16,
    /// Whether the worker creates the Pod network. Otherwise a CNI plugin does.
    #[serde(default = "default_pod_network")]
    pub(crate) pod_network: bool,
    /// Labels with which the kubelet registers its Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) node_labels: BTreeMap<String, String>,
    /// Taints with which the kubelet registers its Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) taints: Vec<Taint>,
    /// Limits for CPU and memory.
    #[serde(default, skip_serializing_if = "Limits::are_none")]
    pub(crate) limits: Limits,
    /// Whether Pods of an ephemeral worker may use the machine's GPUs. Pods of other workers always
    /// may.
    #[serde(default)]
    pub(crate) gpus: bool,
    /// Names the worker's resources on the machine.
    pub(crate) id: Id,
    /// UID of its Node, once known. Another machine may get a Node of the same name later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node_uid: Option<String>,
    /// The link of an ephemeral worker's own network to the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uplink: Option<Uplink>,
    /// Network namespace and boot of the worker's last start.
    #[serde(rename = "place", default, skip_serializing_if = "Option::is_none")]
    pub(crate) netns: Option<Netns>,
    /// Whether everything is removed when the worker exits.
    pub(crate) ephemeral: bool,
    /// How long Pods may take to terminate when the worker exits.
    pub(crate) drain: Duration,
    /// Bundle folder, the source of kubelets of other versions.
    #[serde(default = "default_bundle")]
    pub(crate) bundle: PathBuf,
}

impl Worker {
    /// Reads the state, or returns `None` if there is none.
    pub(crate) fn read(layout: &Layout) -> Result<Option<Self>, Error> {
        let path = layout.state();
        let mut text = Vec::new();
        let read = fs::File::open(&path).and_then(|file| file.take(STATE_MAX).read_to_end(&mut text));
        match read {
            Ok(_) => Self::parse(&text).map(Some).map_err(|error| Error::State(path, error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FileError::new("read", &path, error).into()),
        }
    }

    /// Parses the state, and validates every value: the state names control groups that are killed,
    /// and its values go into files of other programs. Pure.
    fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let worker: Self = serde_json::from_slice(text)?;
        for (part, good) in [
            ("name", is_node_name(&worker.name)),
            ("server", is_server(&worker.server)),
            ("address", worker.address.is_none_or(is_distant)),
            ("UID", worker.node_uid.as_deref().is_none_or(is_label)),
            ("domain", is_domain(&worker.cluster_domain)),
            ("drain timeout", worker.drain <= LONGEST),
            ("port", worker.wireguard_port != 0),
            ("bundle", worker.bundle.is_absolute()),
            ("labels", check_labels(&worker.node_labels).is_ok()),
            ("taints", check_taints(&worker.taints).is_ok()),
            ("limits", worker.limits.are_usable()),
        ] {
            if !good {
                return Err(serde_json::Error::custom(format!("invalid value for {part}")));
            }
        }
        Ok(worker)
    }

    /// Reports whether Pods may use the machine's GPUs.
    pub(crate) fn has_gpus(&self) -> bool {
        self.gpus || !self.ephemeral
    }

    /// Fails if this process is in another network namespace than the worker's resources.
    pub(crate) fn check_netns(&self, layout: &Layout) -> Result<(), Error> {
        let Some(netns) = &self.netns else { return Ok(()) };
        match netns.find_file(&Netns::current()?) {
            Some(net) => Err(Error::OtherNetns {
                root: layout.root().to_owned(),
                net,
            }),
            None => Ok(()),
        }
    }

    /// Persists the state.
    pub(crate) fn write(&self, layout: &Layout) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("strings and numbers are JSON");
        files::write(&layout.state(), format!("{text}\n"), files::PUBLIC)?;
        Ok(())
    }
}

fn default_bundle() -> PathBuf {
    BUNDLE.into()
}

fn default_pod_network() -> bool {
    true
}

fn default_port() -> u16 {
    WIREGUARD_PORT
}

/// Exclusive lock of the worker's folder, released when dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: fs::File,
}

impl Lock {
    /// Takes the lock, or fails if another process has it.
    pub(crate) fn take(layout: &Layout) -> Result<Self, Error> {
        let path = layout.lock();
        let failed = |error| FileError::new("lock", &path, error);
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            // Any user who may open the file could hold the lock.
            .mode(files::SECRET)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            // The previous holder may have removed the folder since the file was opened. Then the
            // lock would be on a deleted file.
            Ok(()) if !is_at(&file, &path) => Err(Error::Busy(layout.root().to_owned())),
            Ok(()) => Ok(Self { file }),
            Err(fs::TryLockError::WouldBlock) => Err(Error::Busy(layout.root().to_owned())),
            Err(fs::TryLockError::Error(error)) => Err(failed(error).into()),
        }
    }

    /// Shares the lock with a child process: the lock is released only after the child exits, too.
    pub(crate) fn share(&self) -> std::io::Result<Stdio> {
        self.file.try_clone().map(Stdio::from)
    }
}

/// Reports whether a path still leads to an open file.
pub(crate) fn is_at(file: &fs::File, path: &Path) -> bool {
    let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let held = file.metadata().map(number);
    held.is_ok_and(|held| fs::metadata(path).map(number).is_ok_and(|found| found == held))
}

#[cfg(test)]
impl Worker {
    /// A worker that has not joined a cluster yet.
    pub(crate) fn example() -> Self {
        Self {
            name: "box-1".into(),
            server: "demo.yoke.example:443".into(),
            address: None,
            cluster_dns: "10.96.0.10".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
            node_ip: None,
            public_address: None,
            wireguard_port: WIREGUARD_PORT,
            pod_network: true,
            node_labels: BTreeMap::new(),
            taints: Vec::new(),
            limits: Limits::default(),
            gpus: false,
            id: "00c0ffee".to_owned().try_into().unwrap(),
            node_uid: None,
            uplink: None,
            netns: None,
            ephemeral: true,
            drain: Duration::from_secs(90),
            bundle: BUNDLE.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uplink::link::Run;

    #[test]
    fn a_worker_is_persisted() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        assert_eq!(Worker::read(&layout).unwrap(), None);
        let worker = Worker {
            address: Some("203.0.113.7".parse().unwrap()),
            node_ip: Some("10.0.0.2".parse().unwrap()),
            node_uid: Some("c0f3cb44-0d5e-4f2f-8f6c-6a1f3a1d2b3c".into()),
            node_labels: BTreeMap::from([("a".into(), "b".into())]),
            taints: vec!["c=d:NoExecute".parse().unwrap()],
            limits: Limits {
                cpus: Some(1500),
                memory: Some(1 << 30),
            },
            uplink: Some(Uplink::unassigned(Run::new(7))),
            netns: Some(Netns::current().unwrap()),
            pod_network: false,
            ..Worker::example()
        };
        worker.write(&layout).unwrap();
        assert_eq!(Worker::read(&layout).unwrap(), Some(worker.clone()));
        let mut older = serde_json::to_value(&worker).unwrap();
        older.as_object_mut().unwrap().remove("podNetwork");
        assert!(Worker::parse(older.to_string().as_bytes()).unwrap().pod_network);
        let whole = serde_json::to_value(&worker).unwrap();
        for (field, value) in [
            ("id", "../../system".into()),
            ("id", "".into()),
            ("name", "A B".into()),
            ("server", "demo.yoke.example".into()),
            ("address", "127.0.0.1".into()),
            ("clusterDomain", "a\nb".into()),
            ("clusterDns", "x".into()),
            ("nodeUid", "a b".into()),
            ("wireguardPort", 0.into()),
            ("bundle", "usr/lib".into()),
            ("limits", serde_json::json!({"memory": 1})),
            ("drain", serde_json::json!({"secs": u64::MAX, "nanos": 0})),
            ("nodeLabels", serde_json::json!({"a": "b,c=d"})),
            (
                "uplink",
                serde_json::json!({"run": "../x", "gateway": "198.18.0.1", "address": "198.18.0.2"}),
            ),
            ("taints", serde_json::json!([{"key": "a b", "effect": "NoSchedule"}])),
        ] {
            let mut other = whole.clone();
            other[field] = value;
            fs::write(layout.state(), other.to_string()).unwrap();
            let read = Worker::read(&layout);
            assert!(
                matches!(read, Err(Error::State(path, _)) if path == layout.state()),
                "{other}"
            );
        }
    }

    #[test]
    fn the_lock_is_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        let lock = Lock::take(&layout).unwrap();
        assert_eq!(fs::metadata(layout.lock()).unwrap().mode() & 0o777, files::SECRET);
        assert!(matches!(Lock::take(&layout), Err(Error::Busy(_))));
        drop(lock);
        Lock::take(&layout).unwrap();
        let nowhere = Layout::new(Path::new("/nowhere/w")).unwrap();
        assert!(matches!(Lock::take(&nowhere), Err(Error::File(_))));
    }
}
