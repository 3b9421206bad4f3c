//! `run`: creates a Cluster for the time that a command runs.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};
use tokio::signal::unix::SignalKind;
use yoke_api::Cluster;

use crate::arguments::RunOptions;
use crate::create::build_spec;
use crate::session::Session;
use crate::signals::Signals;
use crate::temporary_object::{self, create_temporary};
use crate::{Error, kubeconfig, output, wait};

/// Tells the user the fate of a Cluster that this program cannot delete.
const FATE: &str = "the host deletes it when its --ttl has passed";

/// Creates a Cluster, runs the command, and deletes the Cluster, however the command ends. If this
/// program cannot delete it, the host does when `spec.ttl` has passed.
pub(crate) async fn run(session: &Session, options: &RunOptions) -> Result<(), Error> {
    let program = options.command.first().map(OsStr::new).unwrap_or_default();
    let program = find_program(program)?;
    let mut signals = Signals::listen()?;
    let cluster = build_cluster(options);
    let doing = "creating a Cluster for the command";
    let (name, signal) = create_temporary(session, &mut signals, "run-", cluster, doing, FATE).await?;
    let result = match signal {
        Some(signal) => Err(Error::Interrupted(signal)),
        None => {
            output::print_message(&format!(
                "Cluster {name} in namespace {} lives for {} at most",
                session.namespace, options.ttl
            ));
            run_in(session, options, &name, &program, &mut signals).await
        }
    };
    if options.keep_on_failure && matches!(result, Err(Error::CommandFailed(_))) {
        output::print_message(&format!(
            "Cluster {name} is kept for {} from its creation; delete it sooner: kubectl yoke delete cluster {name} -n {}",
            options.ttl, session.namespace
        ));
        return result;
    }
    tokio::select! {
        () = delete(session, &name) => {}
        () = wait_for_second_signal(&mut signals) => output::print_message(&format!("the host deletes Cluster {name} when its --ttl has passed")),
    }
    result
}

/// Waits until the user insists on ending before the Cluster is deleted. The first signal may be
/// the one that ended the command, so only the second counts.
async fn wait_for_second_signal(signals: &mut Signals) {
    signals.next().await;
    output::print_message("the Cluster is being deleted; interrupt again to leave that to the host");
    signals.next().await;
}

fn build_cluster(options: &RunOptions) -> Cluster {
    Cluster::new("", build_spec(&options.what, Some(options.ttl.clone())))
}

/// Waits for the Cluster and runs the command to its end.
async fn run_in(
    session: &Session,
    options: &RunOptions,
    name: &str,
    program: &Path,
    signals: &mut Signals,
) -> Result<(), Error> {
    let ready = async {
        wait::wait_until_ready(session, name, options.timeout).await?;
        kubeconfig::fetch(session, name, true).await
    };
    let text = tokio::select! {
        text = ready => text.map_err(|source| Error::NotRun(Box::new(source)))?,
        signal = signals.next() => return Err(Error::Interrupted(signal)),
    };
    // Only this user can read the file, and dropping the value deletes it.
    let file = write_private(&text)?;
    let child = Command::new(program)
        .args(options.command.iter().skip(1))
        .env("KUBECONFIG", file.path())
        .env("YOKE_CLUSTER", name)
        .spawn();
    let child = child.map_err(|source| Error::CommandNotRun {
        program: program.to_owned(),
        source,
    })?;
    match to_code(wait_for(child, signals).await?) {
        0 => Ok(()),
        code => Err(Error::CommandFailed(code)),
    }
}

fn write_private(text: &str) -> Result<NamedTempFile, Error> {
    let failed = |source| Error::File {
        verb: "write",
        path: std::env::temp_dir(),
        source,
    };
    let mut file = NamedTempFile::with_prefix("kubectl-yoke-").map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    Ok(file)
}

/// Waits until the command exits, and forwards signals. The terminal sends its own signals to both
/// processes, so these are not forwarded.
async fn wait_for(mut child: Child, signals: &mut Signals) -> Result<ExitStatus, Error> {
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    loop {
        let signal = tokio::select! {
            signal = signals.next() => signal,
            status = child.wait() => return status.map_err(Error::CommandStatusUnknown),
        };
        let has_heard = [SignalKind::interrupt(), SignalKind::quit()].contains(&signal) && is_in_foreground(pid);
        let signal = Signal::from_named_raw(signal.as_raw_value()).filter(|_| !has_heard);
        if let (Some(pid), Some(signal)) = (pid, signal) {
            // The command may have exited already.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Returns whether Ctrl-C and Ctrl-\ at the terminal reach both this process and the command. The
/// command may be in a process group of its own (`timeout`).
fn is_in_foreground(command: Option<Pid>) -> bool {
    let group = getpgrp();
    let terminal = std::fs::File::open("/dev/tty");
    getpgid(command) == Ok(group) && terminal.is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(group))
}

/// Returns the exit code that a shell would report.
fn to_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

async fn delete(session: &Session, name: &str) {
    let said = match temporary_object::delete::<Cluster>(session, name).await {
        Ok(true) => format!("Cluster {name} is being deleted"),
        Ok(false) => format!("Cluster {name} was already deleted"),
        Err(error) => format!("{}; {FATE}", error.with_causes()),
    };
    output::print_message(&said);
}

/// Finds the program. It is looked up before the Cluster is created, so that a wrong name costs
/// nothing.
fn find_program(name: &OsStr) -> Result<PathBuf, Error> {
    let missing = || Error::NoCommand(PathBuf::from(name));
    let is_program = |path: &PathBuf| {
        let meta = path.metadata();
        meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.as_encoded_bytes().contains(&b'/') {
        return match PathBuf::from(name) {
            path if is_program(&path) => Ok(path),
            path if path.exists() => Err(Error::CommandNotRun {
                program: path,
                source: std::io::ErrorKind::PermissionDenied.into(),
            }),
            _ => Err(missing()),
        };
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .map(|folder| folder.join(name))
        .find(is_program)
        .ok_or_else(missing)
}
