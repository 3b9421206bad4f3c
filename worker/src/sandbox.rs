//! Runs an ephemeral worker in a sandbox: mount, PID and network namespaces of its own, so that
//! nothing of it outlives it.
//!
//! ```text
//!  run --rm ── unshare ── init (process 1: reaps orphans) ── node: the worker's main process
//!     │                    ▲                                    ▲
//!     ├── uplink.rs        │                                    │
//!     └── a pipe: one byte when the network is up ── closed to stop the worker, also by the kernel if `run` is killed
//!  then: cleanup.rs
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::future::pending;
use std::io::{ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::mount::MountPropagationFlags;
use rustix::process::WaitOptions;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, Command};

use crate::arguments::ROOT;
use crate::error::Error;
use crate::host::etc_hosts::{self, HOSTS};
use crate::host::files::{self, FileError};
use crate::host::gpus;
use crate::host::resolv_conf::RESOLV_CONF;
use crate::layout::Layout;
use crate::netns::Netns;
use crate::node_lifecycle;
use crate::output::progress;
use crate::process::signals::Signals;
use crate::state::{Lock, Worker, is_at};
use crate::uplink::UplinkReconciler;

/// Folders of the machine that containerd, the kubelet or CNI write to regardless of configuration.
const SHARED_FOLDERS: &[&str] = &[
    "/run/containerd",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/containers",
];
/// Timeout for a worker to exit, in addition to the drain timeout.
const END_LIMIT: Duration = node_lifecycle::FINISH_LIMIT.saturating_add(Duration::from_secs(30));
/// Timeout for `unshare` to create the network namespace, which it does at once or never.
const NETWORK_LIMIT: Duration = Duration::from_secs(10);
const NETWORK_PAUSE: Duration = Duration::from_millis(5);
/// Attempts to lock a shared folder that other sandboxes may remove meanwhile.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Runs the worker in a sandbox until a signal, the end of `ttl`, or the worker's own exit.
pub(crate) async fn run(
    layout: &Layout,
    worker: &mut Worker,
    ttl: Option<Duration>,
    lock: &Lock,
    signals: &mut Signals,
) -> Result<(), Error> {
    let own = std::env::current_exe().map_err(Error::Start)?;
    let mut inner = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--net",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
        ])
        .arg(own)
        .args(["init", "--root"])
        .arg(layout.root())
        .stdin(Stdio::piped())
        // The worker writes nothing to standard output. The descriptor keeps the lock for the
        // sandbox if this process is killed.
        .stdout(lock.share().map_err(Error::Start)?)
        // Ctrl-C of a terminal reaches this process only, which then stops the worker.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(Error::Start)?;
    let mut pipe = inner.stdin.take();
    let network_ready = async {
        let net = find_network(&mut inner).await?;
        let reconciler = UplinkReconciler::create(layout, worker, net).await?;
        let go = pipe.as_mut().expect("it is piped").write_all(b"\n").await;
        go.map_err(Error::Start)?;
        Ok(reconciler)
    };
    let mut reconciler = match network_ready.await {
        Ok(reconciler) => reconciler,
        Err(error) => {
            let _ = inner.kill().await;
            return Err(error);
        }
    };
    let drain = worker.drain;
    tokio::select! {
        ended = wait(inner, pipe, ttl, drain, signals) => ended,
        never = reconciler.run() => match never {},
    }
}

/// Returns the network namespace file of a process, once that process has a namespace of its own.
async fn find_network(inner: &mut Child) -> Result<PathBuf, Error> {
    let here = Netns::current()?;
    let file = PathBuf::from(format!("/proc/{}/ns/net", inner.id().unwrap_or_default()));
    let created = async {
        while !here.differs_from(&file) {
            if let Some(ended) = inner.try_wait().map_err(Error::Start)? {
                return Err(Error::Ended(ended));
            }
            tokio::time::sleep(NETWORK_PAUSE).await;
        }
        Ok(file)
    };
    let late = |_| Error::Uplink(format!("no network namespace after {NETWORK_LIMIT:?}"));
    tokio::time::timeout(NETWORK_LIMIT, created).await.map_err(late)?
}

async fn wait(
    mut inner: Child,
    pipe: Option<ChildStdin>,
    ttl: Option<Duration>,
    drain: Duration,
    signals: &mut Signals,
) -> Result<(), Error> {
    let early = tokio::select! {
        ended = inner.wait() => Some(ended),
        () = signals.next() => None,
        () = wait_ttl(ttl) => None,
    };
    let ended = match early {
        Some(ended) => ended,
        None => {
            progress("stopping the worker; press Ctrl-C again to kill it");
            drop(pipe);
            tokio::select! {
                ended = inner.wait() => ended,
                () = signals.next() => inner.kill().await.and(inner.wait().await),
                () = tokio::time::sleep(drain + END_LIMIT) => inner.kill().await.and(inner.wait().await),
            }
        }
    };
    let ended = ended.map_err(Error::Start)?;
    if ended.success() {
        Ok(())
    } else {
        Err(Error::Ended(ended))
    }
}

async fn wait_ttl(ttl: Option<Duration>) {
    match ttl {
        Some(ttl) => tokio::time::sleep(ttl).await,
        None => pending().await,
    }
}

/// Waits until the network of the sandbox is up. Fails if the parent gave up.
pub(crate) fn wait_network() -> Result<(), Error> {
    std::io::stdin().read_exact(&mut [0; 1]).map_err(Error::Start)
}

/// Runs as process 1 of the sandbox: starts the worker and reaps every child, since orphans have no
/// other parent.
pub(crate) fn init(root: &Path) -> Result<ExitCode, Error> {
    let own = std::env::current_exe().map_err(Error::Start)?;
    let worker = std::process::Command::new(own)
        .args(["node", "--root"])
        .arg(root)
        .spawn()
        .map_err(Error::Start)?;
    loop {
        // The worker is a child of this process, so `wait` has a child to wait for until the worker
        // exits.
        let (pid, status) = match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(Error::Start(error.into())),
        };
        if u32::try_from(pid.as_raw_nonzero().get()) == Ok(worker.id()) {
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
        }
    }
}

/// Mounts replacements over files and folders of the machine, in this sandbox only:
/// - folders of the worker over those in `SHARED_FOLDERS`;
/// - a hosts file with the API server's address, and a resolver configuration;
/// - empty files over GPUs that the worker must not use.
///
/// The caller must hold the returned files while the sandbox exists.
pub(crate) fn mount_replacements(layout: &Layout, worker: &Worker) -> Result<Vec<File>, Error> {
    let mut held = Vec::new();
    for usual in SHARED_FOLDERS {
        let own = layout.replacement(usual);
        files::make_folder(&own)?;
        held.push(lock_folder(Path::new(usual), &marker(layout, usual))?);
        mount(&own, usual)?;
    }
    if worker.address.is_some() {
        let own = layout.replacement(HOSTS);
        files::make_folder(own.parent().unwrap_or(&own))?;
        files::write(&own, etc_hosts::read_with(worker)?, files::PUBLIC)?;
        mount(&own, HOSTS)?;
    }
    // Without this file on the machine, only the kubelet reads the replacement, through its
    // configuration.
    if worker.uplink.is_some() && Path::new(RESOLV_CONF).exists() {
        mount(&layout.replacement(RESOLV_CONF), RESOLV_CONF)?;
    }
    if !worker.has_gpus() {
        hide(layout, &gpus::find().paths)?;
    }
    if !worker.pod_network {
        held.extend(allow_cni_plugin(layout)?);
    }
    Ok(held)
}

/// Lets a Pod install a CNI plugin as on any other node. The worker's folder is mounted at the
/// default path, which the Pod expects, and the mounts that the Pod creates propagate to the whole
/// sandbox.
fn allow_cni_plugin(layout: &Layout) -> Result<Option<File>, Error> {
    let mut held = None;
    if !layout.root().starts_with(ROOT) {
        held = Some(lock_folder(Path::new(ROOT), &marker(layout, ROOT))?);
        mount(layout.root(), ROOT)?;
    }
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    let all = Path::new("/");
    rustix::mount::mount_change(all, shared).map_err(|error| FileError::new("share mounts of", all, error.into()))?;
    Ok(held)
}

/// Mounts an empty file, or an empty folder, over each path.
fn hide(layout: &Layout, paths: &BTreeSet<PathBuf>) -> Result<(), FileError> {
    let (file, folder) = (
        layout.replacements().join("no-gpu"),
        layout.replacements().join("no-gpus"),
    );
    files::make_folder(&folder)?;
    files::write(&file, "", files::PUBLIC)?;
    for path in paths {
        mount(if path.is_dir() { &folder } else { &file }, path)?;
    }
    Ok(())
}

fn mount(own: &Path, usual: impl AsRef<Path>) -> Result<(), FileError> {
    let usual = usual.as_ref();
    rustix::mount::mount_bind(own, usual).map_err(|error| FileError::new("mount over", usual, error.into()))
}

/// Locks a folder, so that another sandbox does not remove it: the kernel would remove this
/// sandbox's mount with it. Creates the folder if it is missing, and a marker that records that.
fn lock_folder(folder: &Path, marker: &Path) -> Result<File, Error> {
    for _ in 0..TRIES {
        if !folder.exists() {
            files::write(marker, "", files::PUBLIC)?;
            files::make_folder(folder)?;
        }
        let locked = File::open(folder).and_then(|held| {
            held.try_lock_shared()?;
            Ok(held)
        });
        match locked {
            Ok(held) if is_at(&held, folder) => return Ok(held),
            // Another sandbox has just removed the folder, or is about to.
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(FileError::new("lock", folder, error).into()),
        }
        std::thread::park_timeout(PAUSE);
    }
    Err(FileError::new("lock", folder, ErrorKind::WouldBlock.into()).into())
}

/// Removes the shared folders that were created for the sandbox.
pub(crate) fn remove_shared_folders(layout: &Layout) {
    for usual in SHARED_FOLDERS.iter().chain([&ROOT]) {
        remove_created(Path::new(usual), &marker(layout, usual));
    }
}

/// Removes a folder that has a marker. A folder that another sandbox holds stays, and so does a
/// folder that has files by now.
fn remove_created(folder: &Path, marker: &Path) {
    if marker.exists()
        && let Ok(held) = File::open(folder)
        && held.try_lock().is_ok()
    {
        let _ = std::fs::remove_dir(folder);
    }
}

/// Returns the marker file that records that the folder did not exist.
fn marker(layout: &Layout, usual: &str) -> PathBuf {
    layout.replacements().join(format!("made{}", usual.replace('/', "-")))
}

/// Resolves when the pipe on this process's standard input is closed.
pub(crate) async fn wait_stdin_closed() -> std::io::Result<()> {
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    let input = pipe::Receiver::from_owned_fd(input)?;
    let mut byte = [0; 1];
    loop {
        input.readable().await?;
        match input.try_read(&mut byte) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sandbox_removes_a_shared_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, marker) = (dir.path().join("usual"), ["a", "b"].map(|name| dir.path().join(name)));
        let first = lock_folder(&folder, &marker[0]).unwrap();
        let second = lock_folder(&folder, &marker[1]).unwrap();
        drop(first);
        remove_created(&folder, &marker[0]);
        assert!(folder.exists(), "the other sandbox has it mounted");
        drop(second);
        remove_created(&folder, &marker[1]);
        assert!(folder.exists(), "it existed before that sandbox");
        remove_created(&folder, &marker[0]);
        assert!(!folder.exists());
    }
}
