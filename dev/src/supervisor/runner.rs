//! Runs one service under a runner of `yoke-supervisor`. The process outlives this daemon: its record
//! in a file lets the next daemon adopt it.

use std::path::PathBuf;
use std::time::Duration;

use yoke_supervisor::process::terminate;
use yoke_supervisor::{Policy, Program, State, WhenDropped};

use super::Service;
use super::process::Process;

/// Time for a process to exit after SIGTERM.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(15);
const POLICY: Policy = Policy {
    backoff_min: Duration::from_millis(200),
    backoff_max: Duration::from_secs(3),
    stable_after: Duration::from_secs(10),
    stop_limit: STOP_LIMIT,
    when_dropped: WhenDropped::Detach,
};

/// Handle of a running service.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) service: Service,
    record: PathBuf,
    runner: yoke_supervisor::Runner,
}

struct Launcher {
    service: Service,
    log: PathBuf,
    record: PathBuf,
}

impl Runner {
    /// Keeps `service` running. Starts with the process in `record`, if that process runs the same
    /// service.
    pub(super) fn spawn(service: Service, log: PathBuf, record: PathBuf) -> Self {
        let launcher = Launcher {
            service: service.clone(),
            log,
            record: record.clone(),
        };
        Self {
            service,
            record,
            runner: yoke_supervisor::Runner::spawn(launcher, POLICY),
        }
    }

    pub(super) fn state(&self) -> State {
        self.runner.state()
    }

    /// Stops the process, by force after `limit`, and ends the runner.
    pub(super) async fn stop(self, limit: Duration) {
        self.runner.stop(limit).await;
        let _ = std::fs::remove_file(&self.record);
    }

    /// Stops the process. The runner starts it again.
    pub(super) async fn restart(&self) {
        self.runner.restart().await;
    }

    /// Ends the runner and leaves the process running.
    pub(super) async fn detach(self) {
        self.runner.detach().await;
    }
}

impl Program for Launcher {
    type Process = Process;

    /// Adopts the process of an earlier daemon. Stops it if it runs another version of the service.
    async fn adopt(&mut self) -> Option<Process> {
        let mut process = Process::adopt(&self.record)?;
        if process.service().same_process(&self.service) {
            return Some(process);
        }
        terminate(&mut process, STOP_LIMIT).await;
        None
    }

    fn start(&mut self) -> Result<Process, String> {
        Process::start(&self.service, &self.log, &self.record).map_err(|error| format!("{error:#}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::Probe;

    fn service(command: &[&str]) -> Service {
        Service {
            name: "x".into(),
            command: command.iter().map(ToString::to_string).collect(),
            env: Default::default(),
            probe: Probe::Command(vec!["true".into()]),
            stamp: String::new(),
        }
    }

    async fn until(runner: &Runner, what: impl Fn(&State) -> bool) -> State {
        let mut states = runner.runner.watch();
        let wait = states.wait_for(|state| what(state));
        tokio::time::timeout(Duration::from_secs(10), wait)
            .await
            .expect("the state is reached")
            .unwrap()
            .clone()
    }

    #[tokio::test]
    async fn a_killed_process_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let runner = Runner::spawn(
            service(&["sleep", "60"]),
            dir.path().join("log"),
            dir.path().join("record"),
        );
        let first = until(&runner, |state| state.pid.is_some()).await.pid.unwrap();
        let pid = rustix::process::Pid::from_raw(first as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let second = until(&runner, |state| state.pid.is_some_and(|pid| pid != first)).await;
        assert_eq!(second.exits, 1);
        runner.stop(STOP_LIMIT).await;
    }

    #[tokio::test]
    async fn a_process_left_behind_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let files = || (dir.path().join("log"), dir.path().join("record"));
        let runner = Runner::spawn(service(&["sleep", "60"]), files().0, files().1);
        let pid = until(&runner, |state| state.pid.is_some()).await.pid;
        runner.detach().await;
        let next = Runner::spawn(service(&["sleep", "60"]), files().0, files().1);
        assert_eq!(until(&next, |state| state.pid.is_some()).await.pid, pid);
        next.detach().await;
        // A different command under the same name replaces the process.
        let other = Runner::spawn(service(&["sleep", "61"]), files().0, files().1);
        assert_ne!(until(&other, |state| state.pid.is_some()).await.pid, pid);
        other.stop(STOP_LIMIT).await;
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_reported_and_can_be_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let runner = Runner::spawn(
            service(&["/nowhere/x"]),
            dir.path().join("log"),
            dir.path().join("record"),
        );
        let state = until(&runner, |state| state.last_end.is_some()).await;
        assert!(state.last_end.unwrap().contains("starting /nowhere/x"));
        runner.stop(STOP_LIMIT).await;
    }
}
