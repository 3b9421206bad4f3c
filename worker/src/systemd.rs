//! Calls systemd: installs, starts and removes units, and notifies systemd of the worker's state.

use std::fs;
use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::process::Command;
use yoke_supervisor::programs::PATH;

use crate::error::Error;
use crate::host::files::{self, FileError};
use crate::unit::Unit;

/// Timeout for calls that start no program of the unit.
const LIMIT: Duration = Duration::from_secs(30);
/// Timeout for stopping a unit, which by default has 90 seconds to stop.
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// Upper bound for the error output of `systemctl`, in characters.
const OUTPUT_MAX: usize = 400;

/// Reports whether systemd is the init system of this machine.
pub(crate) fn is_running() -> bool {
    sd_notify::booted().unwrap_or(false)
}

/// Notifies systemd, if it has started this process, that the worker's programs run.
pub(crate) fn notify_ready() {
    notify(NotifyState::Ready);
}

/// Sets the status that `systemctl status` shows.
pub(crate) fn notify_status(status: &str) {
    notify(NotifyState::Status(status));
}

pub(crate) fn notify_stopping() {
    notify(NotifyState::Stopping);
}

/// Ignores failures: the worker does not depend on notifications, and systemd detects a missing
/// one.
fn notify(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

/// Writes the unit file if it is missing or different. Fails if a file of that name was written by
/// another program.
pub(crate) async fn install(unit: &Unit) -> Result<(), Error> {
    if read(unit)?.is_some_and(|found| !unit.is(&found)) {
        return Err(Error::UnitOfOther(unit.path()));
    }
    if files::write(&unit.path(), unit.build(), files::PUBLIC)? {
        call(&["daemon-reload"], LIMIT).await?;
    }
    Ok(())
}

/// Enables and starts the unit. Returns when its programs are started.
pub(crate) async fn start(unit: &Unit, limit: Duration) -> Result<(), Error> {
    call(&["enable", "--now", unit.name()], limit).await
}

/// Stops the unit, if it exists.
pub(crate) async fn stop(unit: &Unit) -> Result<(), Error> {
    if is_running() && is_installed(unit)? {
        call(&["stop", unit.name()], STOP_LIMIT).await?;
    }
    Ok(())
}

/// Stops and removes the unit, if it exists. A unit that another program wrote is left alone.
pub(crate) async fn remove(unit: &Unit) -> Result<(), Error> {
    if !is_installed(unit)? {
        return Ok(());
    }
    if !is_running() {
        // systemd does not run, for example in a chroot on another machine's disk: there are only
        // links and files to remove.
        call(&["disable", unit.name()], LIMIT).await?;
        return Ok(files::remove(&unit.path())?);
    }
    call(&["disable", "--now", unit.name()], STOP_LIMIT).await?;
    files::remove(&unit.path())?;
    call(&["daemon-reload"], LIMIT).await?;
    // systemd has already unloaded a unit that never failed, so an error is expected.
    let _ = call(&["reset-failed", unit.name()], LIMIT).await;
    Ok(())
}

/// Reports whether the unit exists, written by this or another version.
pub(crate) fn is_installed(unit: &Unit) -> Result<bool, Error> {
    Ok(read(unit)?.is_some_and(|found| unit.is(&found)))
}

/// Reports whether the unit is active, or about to be.
pub(crate) async fn is_active(unit: &Unit) -> bool {
    // The exit status is 0 for active and reloading units. The output tells the other states apart.
    let mut command = systemctl(&["is-active", unit.name()]);
    let output_text = tokio::time::timeout(LIMIT, command.output()).await;
    let output_text = output_text.ok().and_then(Result::ok).map(|output| output.stdout);
    matches!(
        output_text.as_deref().map(<[u8]>::trim_ascii),
        Some(b"active" | b"activating" | b"reloading")
    )
}

fn read(unit: &Unit) -> Result<Option<String>, Error> {
    let path = unit.path();
    match fs::read(&path) {
        // A file that is not UTF-8 cannot be a unit of this program, and fails the comparison.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::new("read", &path, error).into()),
    }
}

fn systemctl(arguments: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    command
        .arg("--no-ask-password")
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn call(arguments: &[&str], limit: Duration) -> Result<(), Error> {
    let why = match tokio::time::timeout(limit, systemctl(arguments).output()).await {
        Ok(Ok(output)) if output.status.success() => return Ok(()),
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr)
            .trim()
            .chars()
            .take(OUTPUT_MAX)
            .collect(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("timed out after {limit:?}"),
    };
    Err(Error::Systemctl {
        arguments: arguments.join(" "),
        why,
    })
}
