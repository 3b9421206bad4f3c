//! The command `join`: makes a machine a permanent worker that systemd starts at boot and restarts
//! on failure.
//!
//! ```text
//!  token ─▶ preflight ─▶ setup.rs, and a copy of this program ─▶ unit ─▶ `systemctl enable --now` ─▶ Node Ready
//!                           └ a failure before the unit has started restores the state before the command
//! ```
//!
//! Called again for the same cluster, the command completes what is missing.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;
use yoke_api::join_token::JoinLine;

use crate::arguments::JoinOptions;
use crate::error::Error;
use crate::error_chain::format_chain;
use crate::host::files::{self, FileError};
use crate::layout::Layout;
use crate::netns::Netns;
use crate::node::{self, Readiness};
use crate::output::progress;
use crate::preflight::facts::Purpose;
use crate::process::signals::Signals;
use crate::state::{Lock, Worker};
use crate::unit::Unit;
use crate::{certificate, cleanup, commands, join_admission, root, setup, systemd};

/// Time from the start of the unit to a Ready Node.
const READY_LIMIT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Makes this machine a permanent worker.
pub(crate) async fn join(options: &JoinOptions, line: Option<&JoinLine>) -> Result<(), Error> {
    // Listening starts first, as in `run`.
    let mut signals = Signals::listen()?;
    let layout = root::open(&options.worker.machine.root)?;
    let found = Worker::read(&layout)?.filter(|worker| !worker.ephemeral);
    let has_joined = certificate::has_joined(&layout);
    let mut previous = None;
    let worker = match (found, line) {
        (None, None) => return Err(Error::NoWorker(layout.root().to_owned())),
        (Some(worker), Some(line)) if has_joined && worker.server != line.server => {
            return Err(setup::other_worker(&layout, worker));
        }
        (Some(worker), None) => continue_worker(&layout, worker).await?,
        (Some(worker), Some(_)) if has_joined => continue_worker(&layout, worker).await?,
        // A worker that was never admitted, or whose certificate has expired, may try again with
        // another token.
        (found, Some(line)) => {
            if let Some(worker) = found {
                previous = Some(PreviousWorker::stop(&layout, &worker).await?);
            }
            let started = set_up_and_start(&layout, options, line, previous.is_none(), &mut signals).await;
            if let (Err(_), Some(previous)) = (&started, &previous) {
                previous.restore(&layout).await;
            }
            started?
        }
    };
    let unit = Unit::new(&layout, &worker.id);
    let joined = tokio::select! {
        ready = wait_ready(&layout, &worker, &unit) => ready,
        rejected = join_admission::wait_rejected(&layout, &worker) => {
            match &previous {
                Some(previous) => previous.restore(&layout).await,
                None => undo(&layout, &worker, &unit).await,
            }
            Err(rejected)
        }
        () = signals.next() => {
            progress(&format!("{} keeps running; `yoke-worker leave` removes it", unit.name()));
            Err(Error::Interrupted)
        }
    };
    if previous.is_some() {
        // The next `join` removes what this call leaves behind.
        let _ = remove_folder(&layout.previous());
    }
    joined
}

/// Continues with an existing worker. A worker whose unit is already active is left unchanged.
async fn continue_worker(layout: &Layout, worker: Worker) -> Result<Worker, Error> {
    check_systemd()?;
    worker.check_netns(layout)?;
    let unit = Unit::new(layout, &worker.id);
    if systemd::is_installed(&unit)? && systemd::is_active(&unit).await {
        progress(&format!("{} is already running; nothing was changed", unit.name()));
        return Ok(worker);
    }
    // The free lock proves that no `run` by hand is active.
    drop(Lock::take(layout)?);
    setup::install_self(layout)?;
    start(&unit).await?;
    Ok(worker)
}

/// The previous worker of the folder, to be restored if the new token fails. A wrong clock is
/// enough for its certificate to count as expired, and a wrong token must not destroy a working
/// worker.
struct PreviousWorker {
    unit: Unit,
    is_installed: bool,
    is_active: bool,
    /// Path, mode and, if the file existed, content.
    files: Vec<(PathBuf, u32, Option<Vec<u8>>)>,
}

impl PreviousWorker {
    /// Stops the previous worker and saves the files that a new token changes.
    async fn stop(layout: &Layout, worker: &Worker) -> Result<Self, Error> {
        let unit = Unit::new(layout, &worker.id);
        let is_installed = systemd::is_installed(&unit)?;
        let is_active = is_installed && systemd::is_active(&unit).await;
        systemd::stop(&unit).await?;
        let files = [
            (layout.state(), files::PUBLIC),
            (layout.ca(), files::PUBLIC),
            (layout.client_ca(), files::PUBLIC),
            (layout.bootstrap_kubeconfig(), files::SECRET),
            // The kubelet writes this file with the server address of the token.
            (layout.kubeconfig(), files::SECRET),
            (layout.upgrade(), files::PUBLIC),
        ];
        save_programs(layout)?;
        let read = |(path, mode): (PathBuf, u32)| match fs::read(&path) {
            Ok(content) => Ok((path, mode, Some(content))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok((path, mode, None)),
            Err(error) => Err(FileError::new("read", &path, error)),
        };
        Ok(Self {
            unit,
            is_installed,
            is_active,
            files: files.into_iter().map(read).collect::<Result<_, _>>()?,
        })
    }

    async fn restore(&self, layout: &Layout) {
        match self.try_restore(layout).await {
            Ok(()) => progress("restored the previous worker"),
            Err(error) => progress(&format!("cannot restore the previous worker: {}", format_chain(&error))),
        }
    }

    async fn try_restore(&self, layout: &Layout) -> Result<(), Error> {
        if self.is_installed {
            systemd::stop(&self.unit).await?;
        } else {
            systemd::remove(&self.unit).await?;
        }
        let lock = Lock::take(layout)?;
        restore_programs(layout)?;
        for (path, mode, content) in &self.files {
            match content {
                Some(content) => _ = files::write(path, content, *mode)?,
                None => files::remove(path)?,
            }
        }
        drop(lock);
        if self.is_active {
            systemd::start(&self.unit, READY_LIMIT).await?;
        }
        Ok(())
    }
}

/// Saves programs and images by hard links. Setup replaces files and never writes into them, so the
/// links preserve the content.
fn save_programs(layout: &Layout) -> Result<(), FileError> {
    let previous = layout.previous();
    // Leftover of a killed process.
    remove_folder(&previous)?;
    for (folder, saved) in programs(layout) {
        // A worker that was killed early may not have this folder yet.
        files::make_folder(&folder)?;
        files::make_folder(&saved)?;
        let entries = fs::read_dir(&folder).map_err(|error| FileError::new("read", &folder, error))?;
        for entry in entries {
            let linked = entry.and_then(|entry| fs::hard_link(entry.path(), saved.join(entry.file_name())));
            linked.map_err(|error| FileError::new("save the content of", &folder, error))?;
        }
    }
    Ok(())
}

fn restore_programs(layout: &Layout) -> Result<(), FileError> {
    for (folder, saved) in programs(layout) {
        let restored = fs::metadata(&saved)
            .and_then(|_| fs::remove_dir_all(&folder))
            .and_then(|()| fs::rename(&saved, &folder));
        restored.map_err(|error| FileError::new("restore", &folder, error))?;
    }
    remove_folder(&layout.previous())
}

/// Pairs of a folder that setup fills from the bundle and the folder that preserves its previous
/// content.
fn programs(layout: &Layout) -> [(PathBuf, PathBuf); 2] {
    let previous = layout.previous();
    [
        (layout.bin(), previous.join("bin")),
        (layout.images(), previous.join("images")),
    ]
}

fn remove_folder(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::new("remove", folder, error)),
        _ => Ok(()),
    }
}

/// Sets up a worker and starts its unit. On failure a new worker is undone.
async fn set_up_and_start(
    layout: &Layout,
    options: &JoinOptions,
    line: &JoinLine,
    is_new: bool,
    signals: &mut Signals,
) -> Result<Worker, Error> {
    let name = setup::choose_name(&options.worker)?;
    commands::check(&options.worker, line, Purpose::Join).await?;
    check_systemd()?;
    let (id, lock) = setup::claim_folder(layout).await?;
    let worker = setup::build_worker(name, id, Netns::current()?, line, &options.worker, false);
    let unit = Unit::new(layout, &worker.id);
    let mut set_up = setup::set_up(layout, &worker, line, &options.worker.machine.bundle).await;
    if set_up.is_ok() {
        set_up = setup::install_self(layout).map_err(Error::from);
    }
    // The process of the unit takes the lock.
    drop(lock);
    if set_up.is_ok() {
        set_up = tokio::select! {
            biased;
            () = signals.next() => Err(Error::Interrupted),
            started = start(&unit) => started,
        };
    }
    match set_up {
        Ok(()) => Ok(worker),
        Err(error) => {
            if is_new {
                undo(layout, &worker, &unit).await;
            }
            Err(error)
        }
    }
}

async fn undo(layout: &Layout, worker: &Worker, unit: &Unit) {
    let undone = async {
        systemd::remove(unit).await?;
        let _lock = Lock::take(layout)?;
        cleanup::remove_worker(layout, worker).await
    };
    match undone.await {
        Ok(()) => progress("the worker was removed from this machine"),
        Err(error) => progress(&format!(
            "{}; run `yoke-worker leave` to remove the rest",
            format_chain(&error)
        )),
    }
}

fn check_systemd() -> Result<(), Error> {
    if systemd::is_running() {
        Ok(())
    } else {
        Err(Error::NoSystemd)
    }
}

async fn start(unit: &Unit) -> Result<(), Error> {
    systemd::install(unit).await?;
    progress(&format!(
        "starting {0}; see its log with `journalctl -u {0}`",
        unit.name()
    ));
    systemd::start(unit, READY_LIMIT).await
}

/// Waits until the Node is Ready, or until only the cluster's CNI plugin is missing. Prints the
/// reason for waiting whenever it changes.
async fn wait_ready(layout: &Layout, worker: &Worker, unit: &Unit) -> Result<(), Error> {
    let deadline = Instant::now() + READY_LIMIT;
    let mut last_message = String::new();
    loop {
        let is_node = || format!("this machine is Node {} of {}", worker.name, worker.server);
        let missing = match node::observe_readiness(layout, worker).await {
            Readiness::Ready => {
                progress(&format!("{} and is Ready; {} keeps it running", is_node(), unit.name()));
                return Ok(());
            }
            // A cluster's CNI plugin may run as a Pod, which needs the Node first.
            Readiness::Unconnected => {
                progress(&format!(
                    "{}; {} keeps it running. The Node becomes Ready when a CNI plugin of the cluster writes a configuration to {}",
                    is_node(),
                    unit.name(),
                    layout.cni_config().display()
                ));
                return Ok(());
            }
            Readiness::Missing(missing) => missing,
        };
        if missing != last_message {
            progress(&format!("waiting: {missing}"));
            last_message = missing;
        }
        if Instant::now() > deadline {
            return Err(Error::NotReady {
                name: worker.name.clone(),
                limit: READY_LIMIT,
                missing: last_message,
                unit: unit.name().to_owned(),
                logs: layout.logs(),
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
