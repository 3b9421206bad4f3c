//! Talks with systemd: units are installed, started and removed, and it is told how the worker is.

use std::fs;
use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::process::Command;

use crate::Error;
use crate::files::{self, FileError};
use crate::machine::PATH;
use crate::unit::Unit;

/// Of what needs no program of the unit to start.
const LIMIT: Duration = Duration::from_secs(30);
/// A unit has 90 seconds to stop by default.
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// Of what `systemctl` says that failed.
const SAID_MAX: usize = 400;

/// Whether it runs this machine.
pub(crate) fn is_running() -> bool {
    sd_notify::booted().unwrap_or(false)
}

/// Tells it, if it has started this process, that the worker's programs are started.
pub(crate) fn tell_ready() {
    tell(NotifyState::Ready);
}

/// What `systemctl status` shows.
pub(crate) fn tell_status(status: &str) {
    tell(NotifyState::Status(status));
}

pub(crate) fn tell_stopping() {
    tell(NotifyState::Stopping);
}

/// The worker runs whether it is heard or not; systemd sees itself that it is not.
fn tell(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

/// Writes the unit where it is missing or different. Refuses where somebody else has one of its name.
pub(crate) async fn install(unit: &Unit) -> Result<(), Error> {
    if read(unit)?.is_some_and(|found| !unit.is(&found)) {
        return Err(Error::ForeignUnit(unit.path()));
    }
    if files::write(&unit.path(), unit.build(), files::PUBLIC)? {
        call(&["daemon-reload"], LIMIT).await?;
    }
    Ok(())
}

/// Starts the unit, now and with the machine. Returns when its programs are started.
pub(crate) async fn start(unit: &Unit, limit: Duration) -> Result<(), Error> {
    call(&["enable", "--now", unit.name()], limit).await
}

/// Ends the unit for now, if there is one.
pub(crate) async fn stop(unit: &Unit) -> Result<(), Error> {
    if is_running() && is_installed(unit)? {
        call(&["stop", unit.name()], STOP_LIMIT).await?;
    }
    Ok(())
}

/// Stops the unit and removes it, if there is one. Somebody else's is left alone.
pub(crate) async fn remove(unit: &Unit) -> Result<(), Error> {
    if !is_installed(unit)? {
        return Ok(());
    }
    if !is_running() {
        // Of a machine whose disk is looked at from another one: there are but links and files.
        call(&["disable", unit.name()], LIMIT).await?;
        return Ok(files::remove(&unit.path())?);
    }
    call(&["disable", "--now", unit.name()], STOP_LIMIT).await?;
    files::remove(&unit.path())?;
    call(&["daemon-reload"], LIMIT).await?;
    // One that never failed is not known any more, which is what is wanted.
    let _ = call(&["reset-failed", unit.name()], LIMIT).await;
    Ok(())
}

/// Whether the unit is there, of this or another version.
pub(crate) fn is_installed(unit: &Unit) -> Result<bool, Error> {
    Ok(read(unit)?.is_some_and(|found| unit.is(&found)))
}

/// Whether its programs are started, or about to be.
pub(crate) async fn is_active(unit: &Unit) -> bool {
    // Its status is 0 for those that are active and those that are reloaded; others say what they are.
    let mut command = systemctl(&["is-active", unit.name()]);
    let said = tokio::time::timeout(LIMIT, command.output()).await;
    let said = said.ok().and_then(Result::ok).map(|output| output.stdout);
    matches!(
        said.as_deref().map(<[u8]>::trim_ascii),
        Some(b"active" | b"activating" | b"reloading")
    )
}

fn read(unit: &Unit) -> Result<Option<String>, Error> {
    let path = unit.path();
    match fs::read(&path) {
        // What is no text is none of this program's, and is told apart by that.
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
            .take(SAID_MAX)
            .collect(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no end within {limit:?}"),
    };
    Err(Error::Systemctl {
        arguments: arguments.join(" "),
        why,
    })
}
