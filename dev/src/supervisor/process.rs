//! One process, either started by this daemon or adopted from a previous daemon.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::process::Child;
use yoke_supervisor::log_file::rotate;
use yoke_supervisor::process::{build_command, send_signal, wait_for_exit};
use yoke_supervisor::programs::PATH;

use super::Service;

/// A log longer than this, in bytes, is rotated when its process starts.
const LOG_LIMIT: u64 = 32 << 20;
const ADOPTED_POLL: Duration = Duration::from_millis(250);

/// Persisted facts about a process. The start time, in clock ticks since boot, tells it from a
/// later process with the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) pid: u32,
    start_time: u64,
    service: Service,
}

/// A running process.
#[derive(Debug)]
pub(super) struct Process {
    record: Record,
    child: Option<Child>,
}

impl Process {
    /// Starts the process of a service.
    pub(super) fn start(service: &Service, log: &Path, record_file: &Path) -> Result<Self> {
        let (program, args) = service.command.split_first().context("the service has no command")?;
        rotate(log, LOG_LIMIT);
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .context("opening the log")?;
        let errors = log.try_clone().context("opening the log")?;
        let mut child = build_command(program, PATH)
            .args(args)
            .envs(&service.env)
            .stdout(log)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        match write_record(&child, service, record_file) {
            Ok(record) => Ok(Self {
                record,
                child: Some(child),
            }),
            // Without a record, the next daemon would start a second process beside it.
            Err(error) => {
                let _ = child.start_kill();
                Err(error)
            }
        }
    }

    /// Adopts the process of a previous daemon, if it still runs.
    pub(super) fn adopt(record_file: &Path) -> Option<Self> {
        let record: Record = serde_json::from_slice(&fs::read(record_file).ok()?).ok()?;
        Some(Self { record, child: None }).filter(Self::is_running)
    }

    /// The service as it was when the process started.
    pub(super) fn service(&self) -> &Service {
        &self.record.service
    }

    fn is_running(&self) -> bool {
        start_time(self.record.pid) == Some(self.record.start_time)
    }
}

impl yoke_supervisor::Process for Process {
    fn pid(&self) -> Option<u32> {
        Some(self.record.pid)
    }

    async fn wait(&mut self) -> String {
        if let Some(child) = &mut self.child {
            return wait_for_exit(child).await;
        }
        while self.is_running() {
            tokio::time::sleep(ADOPTED_POLL).await;
        }
        "ended".to_owned()
    }

    fn signal(&self, signal: Signal) {
        if self.is_running() {
            send_signal(self.record.pid, signal);
        }
    }
}

fn write_record(child: &Child, service: &Service, file: &Path) -> Result<Record> {
    let pid = child.id().context("the process exited before it had a pid")?;
    let start_time = start_time(pid).context("reading the start time of a process that was just started")?;
    let record = Record {
        pid,
        start_time,
        service: service.clone(),
    };
    fs::write(file, serde_json::to_vec(&record)?).context("recording the process")?;
    Ok(record)
}

/// Start time of a process. `None` if it has exited, even if it is still a zombie.
fn start_time(pid: u32) -> Option<u64> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `/proc/<pid>/stat`. The name, in parentheses, may contain anything, so fields are counted
/// from its end. The state is the third field of the file, the start time the twenty-second.
fn parse_stat(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use yoke_supervisor::process::terminate;

    use super::*;

    #[test]
    fn the_start_time_is_found_after_any_name() {
        let rest = "1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 1";
        assert_eq!(parse_stat(&format!("12 (a b) c) S {rest}")), Some(987_654));
        assert_eq!(parse_stat(&format!("12 (dead) Z {rest}")), None);
        assert_eq!(parse_stat("nonsense"), None);
    }

    fn sleeper(seconds: &str) -> Service {
        Service {
            name: "sleeper".into(),
            command: vec!["sleep".into(), seconds.into()],
            env: Default::default(),
            probe: super::super::Probe::Command(vec!["true".into()]),
            stamp: String::new(),
        }
    }

    #[tokio::test]
    async fn a_process_that_cannot_be_recorded_does_not_run_on() {
        let dir = tempfile::tempdir().unwrap();
        let sign = dir.path().join("sign");
        let mut service = sleeper("60");
        // The process is alive as long as the file grows.
        let script = format!("while sleep 0.05; do echo x >> {}; done", sign.display());
        service.command = ["sh", "-c", &script].map(String::from).to_vec();
        let nowhere = dir.path().join("missing/record");
        Process::start(&service, &dir.path().join("log"), &nowhere).unwrap_err();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let grown = || fs::metadata(&sign).map_or(0, |meta| meta.len());
        let before = grown();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(grown(), before);
    }

    #[tokio::test]
    async fn a_process_is_adopted_while_it_runs_and_not_after() {
        let dir = tempfile::tempdir().unwrap();
        let (log, record) = (dir.path().join("log"), dir.path().join("record"));
        let mut process = Process::start(&sleeper("60"), &log, &record).unwrap();
        let adopted = Process::adopt(&record).unwrap();
        assert_eq!(adopted.record, process.record);
        terminate(&mut process, Duration::from_secs(5)).await;
        assert!(Process::adopt(&record).is_none());
    }
}
