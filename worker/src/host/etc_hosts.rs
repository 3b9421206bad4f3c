//! Resolves the API server's name on a machine without a DNS record of it, to the address in the
//! join token.
//!
//! ```text
//!  this program      connects to that address, and verifies the certificate of the name
//!  a sandbox         has a hosts file of its own, mounted over the machine's
//!  other workers     add a line to the machine's hosts file: `ADDRESS NAME # yoke-worker ID`
//! ```
//!
//! The kubelet has to resolve the name itself: it does not copy `tls-server-name` from its
//! bootstrap kubeconfig into the kubeconfig that it writes.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use kube::Config;

use crate::host::files::{self, FileError};
use crate::id::Id;
use crate::state::Worker;

pub(crate) const HOSTS: &str = "/etc/hosts";
/// Lock for writing the hosts file.
const LOCK: &str = "/run/yoke-worker-hosts.lock";

/// Upper bound in bytes. The file may be large, because some users block unwanted hosts in it.
const HOSTS_MAX: u64 = 64 << 20;
/// Attempts to take the lock.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Makes a client connect to the address, if there is one, and verify the certificate of the name.
pub(crate) fn set_server_address(config: &mut Config, server: &str, address: Option<IpAddr>) {
    let Some((name, port)) = server.rsplit_once(':') else {
        return;
    };
    let socket = port.parse().ok().zip(address);
    if let Some(socket) = socket.map(|(port, address)| SocketAddr::new(address, port)) {
        config.cluster_url = format!("https://{socket}")
            .parse()
            .expect("an address and a port are a URL");
        config.tls_server_name = Some(name.to_owned());
    }
}

/// Returns the machine's hosts file plus the worker's line.
pub(crate) fn read_with(worker: &Worker) -> Result<Vec<u8>, FileError> {
    let hosts = read(Path::new(HOSTS))?;
    Ok(build(&hosts, &worker.id, entry(worker).as_deref()))
}

/// Adds or updates the worker's line.
pub(crate) fn write_entry(worker: &Worker) -> Result<(), FileError> {
    change(Path::new(HOSTS), &worker.id, entry(worker).as_deref())
}

/// Removes the worker's line.
pub(crate) fn remove_entry(id: &Id) -> Result<(), FileError> {
    change(Path::new(HOSTS), id, None)
}

fn entry(worker: &Worker) -> Option<String> {
    let (name, _) = worker.server.rsplit_once(':')?;
    worker.address.map(|address| format!("{address} {name}"))
}

/// Builds a hosts file with this entry as the only one of the worker. Pure.
fn build(hosts: &[u8], id: &Id, entry: Option<&str>) -> Vec<u8> {
    let mark = format!("# yoke-worker {id}");
    let lines = hosts.split_inclusive(|byte| *byte == b'\n');
    let others = lines.filter(|line| !line.trim_ascii_end().ends_with(mark.as_bytes()));
    let mut text = others.collect::<Vec<_>>().concat();
    if let Some(entry) = entry {
        if !text.is_empty() && !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        text.extend_from_slice(format!("{entry} {mark}\n").as_bytes());
    }
    text
}

fn change(path: &Path, id: &Id, entry: Option<&str>) -> Result<(), FileError> {
    let found = read(path)?;
    if build(&found, id, entry) == found {
        return Ok(());
    }
    // A symbolic link stays: the change goes into its target.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let _held = take_lock()?;
    let text = build(&read(&path)?, id, entry);
    let mode = fs::metadata(&path).map_or(files::PUBLIC, |found| found.permissions().mode() & 0o7777);
    match files::write(&path, &text, mode) {
        // The file is a mount point, as in a container, so it cannot be replaced by a rename.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            fs::write(&path, &text).map_err(|error| FileError::new("write", &path, error))
        }
        written => written.map(drop),
    }
}

/// Takes the lock against other workers of the machine. Only root can open the file, so no other
/// user can hold the lock.
fn take_lock() -> Result<File, FileError> {
    let failed = |error| FileError::new("lock", Path::new(LOCK), error);
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(files::SECRET);
    let file = file.open(LOCK).map_err(failed)?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => std::thread::park_timeout(PAUSE),
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(failed(ErrorKind::WouldBlock.into()))
}

/// Reads bytes, because comments need not be UTF-8.
fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |error| FileError::new("read", path, error);
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(failed)?,
    };
    let mut text = Vec::new();
    file.take(HOSTS_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    // Writing back a truncated file would lose the rest.
    if text.len() as u64 > HOSTS_MAX {
        return Err(failed(ErrorKind::FileTooLarge.into()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Id {
        text.to_owned().try_into().unwrap()
    }

    #[test]
    fn a_worker_has_one_line() {
        let id = id("00c0ffee");
        let own = "203.0.113.7 a.yoke.test # yoke-worker 00c0ffee\n";
        let other = "203.0.113.9 a.yoke.test # yoke-worker 00c0ffed\n";
        for (rule, before, entry, after) in [
            ("none yet", "::1 b\n".to_owned(), true, format!("::1 b\n{own}")),
            ("no newline", "::1 b".to_owned(), true, format!("::1 b\n{own}")),
            ("an empty file", String::new(), true, own.to_owned()),
            ("as it is", format!("::1 b\n{own}"), true, format!("::1 b\n{own}")),
            (
                "another address",
                format!("::1 b\n{}", own.replace(".7", ".8")),
                true,
                format!("::1 b\n{own}"),
            ),
            (
                "edited",
                format!("{} \r\n::1 b\n", own.trim()),
                true,
                format!("::1 b\n{own}"),
            ),
            ("of another worker", other.to_owned(), true, format!("{other}{own}")),
            (
                "twice, then none",
                format!("{own}::1 b\n{own}"),
                false,
                "::1 b\n".to_owned(),
            ),
            ("nothing to remove", other.to_owned(), false, other.to_owned()),
        ] {
            let entry = entry.then_some("203.0.113.7 a.yoke.test");
            let built = build(before.as_bytes(), &id, entry);
            assert_eq!(String::from_utf8(built).unwrap(), after, "{rule}");
        }
    }

    #[test]
    fn a_file_is_changed_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("hosts"));
        fs::write(&real, b"::1 b # \xe9\n").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o604)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let id = id("00c0ffee");
        change(&link, &id, Some("2001:db8::7 a.yoke.test")).unwrap();
        let expected = b"::1 b # \xe9\n2001:db8::7 a.yoke.test # yoke-worker 00c0ffee\n";
        assert_eq!(fs::read(&real).unwrap(), expected);
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o7777, 0o604);
        change(&link, &id, None).unwrap();
        assert_eq!(fs::read(&real).unwrap(), b"::1 b # \xe9\n");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        change(&dir.path().join("none"), &id, None).unwrap();
        assert!(!dir.path().join("none").exists());
    }

    #[test]
    fn the_address_is_dialed_for_the_name() {
        for (address, expected) in [
            (None, "https://a.yoke.test:6443/"),
            (Some("203.0.113.7"), "https://203.0.113.7:6443/"),
            (Some("2001:db8::7"), "https://[2001:db8::7]:6443/"),
        ] {
            let mut config = Config::new("https://a.yoke.test:6443".parse().unwrap());
            let address = address.map(|address| address.parse().unwrap());
            set_server_address(&mut config, "a.yoke.test:6443", address);
            assert_eq!(config.cluster_url.to_string(), expected);
            let name = address.map(|_| "a.yoke.test");
            assert_eq!(config.tls_server_name.as_deref(), name);
        }
    }
}
