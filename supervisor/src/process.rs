//! One process: how it starts, how its exit is observed, and how it is stopped.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

/// A process that a runner supervises.
pub trait Process: Send {
    /// The PID; `None` after the exit.
    fn pid(&self) -> Option<u32>;

    /// Waits until the process exits, and returns how.
    ///
    /// # Guarantees
    ///
    /// A call may be dropped before it returns, and repeated. A call after the exit returns at once.
    fn wait(&mut self) -> impl Future<Output = String> + Send;

    /// Waits for output that the process wrote before it exited. A process that the runner stops
    /// does not get this call.
    fn flush_output(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Sends a signal. A process that has exited needs none.
    fn signal(&self, signal: Signal);
}

/// Sends SIGTERM, and SIGKILL if the process has not exited within `limit`.
pub async fn terminate(process: &mut impl Process, limit: Duration) {
    process.signal(Signal::TERM);
    if tokio::time::timeout(limit, process.wait()).await.is_err() {
        process.signal(Signal::KILL);
        process.wait().await;
    }
}

/// Waits until a child exits, and returns its exit status as text.
pub async fn wait_for_exit(child: &mut Child) -> String {
    match child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Sends a signal to a process. The process may have exited, so a failure is ignored.
pub fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Builds the command of a service: in `/`, without input, and with no environment variable but
/// `PATH`.
pub fn build_command(program: impl AsRef<OsStr>, search_path: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", search_path)
        .current_dir("/")
        .stdin(Stdio::null())
        // Ctrl-C of a terminal reaches the supervisor only, which then stops its services in order.
        .process_group(0);
    command
}
