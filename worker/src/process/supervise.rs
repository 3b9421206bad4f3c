//! Runs the worker's services under a runner of `yoke-supervisor`. The output of a service goes to a
//! log file of bounded size, and its last lines are shown when the service exits.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
use tokio::task::JoinHandle;
use yoke_supervisor::log_file::rotate;
use yoke_supervisor::process::{build_command, send_signal, wait_for_exit};
use yoke_supervisor::programs::PATH;
use yoke_supervisor::{Policy, Process, Program, Runner, WhenDropped};

use crate::output::progress;

const POLICY: Policy = Policy {
    backoff_min: Duration::from_millis(200),
    backoff_max: Duration::from_secs(10),
    stable_after: Duration::from_secs(30),
    stop_limit: STOP_LIMIT,
    when_dropped: WhenDropped::Stop,
};
/// How long a program may take to exit after SIGTERM.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(15);
/// Size in bytes at which a log is rotated. Only one rotated log is preserved.
const LOG_MAX: u64 = 16 << 20;
/// How many log lines are shown when the program exits.
const LAST_LINES: usize = 6;
const LAST_BYTES: u64 = 4 << 10;
const LINE_MAX: usize = 400;
const FINAL_OUTPUT_LIMIT: Duration = Duration::from_secs(1);
const PIECE: usize = 16 << 10;

/// A program to run.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Folder that comes first in the program's `PATH`.
    pub(crate) bin: PathBuf,
    pub(crate) log: PathBuf,
}

impl Service {
    /// Keeps the program running. A dropped handle stops the program without waiting for it.
    pub(crate) fn supervise(self) -> Runner {
        let launcher = Launcher {
            service: self,
            log_start: 0,
        };
        Runner::spawn(launcher, POLICY)
    }

    /// Returns the last line of the program's log, if there is one.
    pub(crate) fn last_line(&self) -> Option<String> {
        read_last(&self.log, 0).unwrap_or_default().pop()
    }
}

struct Launcher {
    service: Service,
    /// Length of the log when the program was started.
    log_start: u64,
}

impl Program for Launcher {
    type Process = LoggedChild;

    fn start(&mut self) -> Result<LoggedChild, String> {
        self.log_start = fs::metadata(&self.service.log).map_or(0, |log| log.len());
        start(&self.service).map_err(|error| error.to_string())
    }

    fn report_exit(&mut self, end: &str) {
        progress(&report(&self.service, end, self.log_start));
    }
}

/// A process, and the task that copies its output to the log.
struct LoggedChild {
    child: Child,
    log: JoinHandle<()>,
}

impl Process for LoggedChild {
    fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    async fn wait(&mut self) -> String {
        wait_for_exit(&mut self.child).await
    }

    /// The reason for the exit may still be in the pipe. Output of the program's own children is
    /// not waited for.
    async fn flush_output(&mut self) {
        let _ = tokio::time::timeout(FINAL_OUTPUT_LIMIT, &mut self.log).await;
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            send_signal(pid, signal);
        }
    }
}

impl Drop for LoggedChild {
    fn drop(&mut self) {
        self.log.abort();
    }
}

/// Reports that the program exited, with its last log lines. `log_start` is the length of the log
/// at the start.
fn report(service: &Service, end: &str, log_start: u64) -> String {
    let mut text = format!("{} exited ({end}); see {}", service.name, service.log.display());
    for line in read_last(&service.log, log_start).unwrap_or_default() {
        text += &format!("\n  {}: {line}", service.name);
    }
    text
}

fn read_last(log: &Path, from: u64) -> std::io::Result<Vec<String>> {
    let mut file = fs::File::open(log)?;
    let length = file.metadata()?.len();
    // A log that is shorter than at the start has been rotated.
    let from = if from > length { 0 } else { from };
    file.seek(SeekFrom::Start(from.max(length.saturating_sub(LAST_BYTES))))?;
    let mut text = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LAST_LINES));
    // Control characters are removed, because the text goes to a terminal.
    let plain = |line: &&str| line.chars().filter(|c| !c.is_control()).take(LINE_MAX).collect();
    Ok(last.map(plain).collect())
}

/// Starts the program through `setpriv`, so that it dies with this process: a second instance could
/// not take its sockets.
fn start(service: &Service) -> std::io::Result<LoggedChild> {
    let mut child = build_command("setpriv", &format!("{}:{PATH}", service.bin.display()))
        .args(["--pdeathsig", "KILL", "--"])
        .arg(&service.program)
        .args(&service.arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let log = tokio::spawn(write_log(child.stdout.take(), child.stderr.take(), service.log.clone()));
    Ok(LoggedChild { child, log })
}

async fn write_log(out: Option<impl AsyncRead + Unpin>, err: Option<impl AsyncRead + Unpin>, path: PathBuf) {
    let (Some(mut out), Some(mut err)) = (out, err) else {
        return;
    };
    let (mut first, mut second) = (vec![0; PIECE], vec![0; PIECE]);
    let (mut out_ended, mut err_ended) = (false, false);
    while !(out_ended && err_ended) {
        tokio::select! {
            count = out.read(&mut first), if !out_ended => out_ended = append(&path, &first, count.unwrap_or(0)),
            count = err.read(&mut second), if !err_ended => err_ended = append(&path, &second, count.unwrap_or(0)),
        }
    }
}

/// Appends to the log, and reports whether the stream has ended. A failed write is ignored: it must
/// not stop the program.
fn append(path: &Path, piece: &[u8], count: usize) -> bool {
    rotate(path, LOG_MAX);
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(&piece[..count]));
    count == 0
}

#[cfg(test)]
mod tests {
    use yoke_test_support::eventually;

    use super::*;

    fn service(dir: &Path, script: &str) -> Service {
        Service {
            name: "x",
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            bin: dir.to_owned(),
            log: dir.join("x.log"),
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    /// Counts the lines of the log, which may not exist yet.
    fn count_lines(dir: &Path) -> std::io::Result<usize> {
        Ok(fs::read_to_string(dir.join("x.log"))?.lines().count())
    }

    #[tokio::test]
    async fn a_program_that_exits_is_restarted() {
        let dir = tempfile::tempdir().unwrap();
        let runner = service(dir.path(), "echo out; echo err >&2").supervise();
        let observe = async || count_lines(dir.path()).map(|lines| (lines, runner.state().exits));
        eventually("output of three starts", LIMIT, observe, |(lines, exits)| {
            *lines >= 6 && *exits >= 3
        })
        .await
        .unwrap();
        runner.stop(STOP_LIMIT).await;
    }

    #[tokio::test]
    async fn a_program_gets_sigterm() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap 'echo asked >> $0; exit' TERM; echo up; while :; do sleep 0.1; done";
        let mut service = service(dir.path(), script);
        service.arguments.push(dir.path().join("asked").display().to_string());
        let runner = service.supervise();
        eventually(
            "the program to start",
            LIMIT,
            async || count_lines(dir.path()),
            |lines| *lines == 1,
        )
        .await
        .unwrap();
        runner.stop(STOP_LIMIT).await;
        assert!(dir.path().join("asked").exists());
    }

    #[test]
    fn the_last_output_of_a_program_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path(), "");
        assert!(!report(&service, "x", 0).contains('\n'), "there is no log yet");
        fs::write(&service.log, "long ago\n").unwrap();
        let before = fs::metadata(&service.log).unwrap().len();
        let lines: Vec<_> = (1..=9).map(|number| format!("\u{1b}[31mline {number}\n\n")).collect();
        append(&service.log, lines.concat().as_bytes(), lines.concat().len());
        let log = service.log.display();
        let expected: Vec<_> = (4..=9).map(|number| format!("\n  x: [31mline {number}")).collect();
        let expected = format!("x exited (exit status: 3); see {log}{}", expected.concat());
        assert_eq!(report(&service, "exit status: 3", before), expected);
        // The log was rotated meanwhile.
        fs::write(&service.log, "new\n").unwrap();
        assert!(report(&service, "x", before).ends_with("\n  x: new"));
    }

    #[test]
    fn a_long_log_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        fs::File::create(&path).unwrap().set_len(LOG_MAX + 1).unwrap();
        assert!(!append(&path, b"next", 4));
        assert!(append(&path, b"", 0));
        assert_eq!(fs::read_to_string(&path).unwrap(), "next");
        assert_eq!(fs::metadata(dir.path().join("x.log.1")).unwrap().len(), LOG_MAX + 1);
    }
}
