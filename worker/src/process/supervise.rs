//! Keeps programs running: restarts a program that exits, with a backoff while it exits early. Its
//! output goes to a log file of bounded size.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::output::progress;
use crate::process::programs::PATH;

const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A program that ran at least this long is not in a crash loop.
const STABLE_AFTER: Duration = Duration::from_secs(30);
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

/// Handle of a supervised program. Dropping it stops the program without waiting for it.
#[derive(Debug)]
pub(crate) struct Supervisor {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    exits: Arc<AtomicU32>,
}

impl Service {
    /// Returns the last line of the program's log, if there is one.
    pub(crate) fn last_line(&self) -> Option<String> {
        read_last(&self.log, 0).unwrap_or_default().pop()
    }
}

impl Supervisor {
    pub(crate) fn start(service: Service) -> Self {
        let (stop, stop_requested) = oneshot::channel();
        let exits = Arc::default();
        Self {
            stop,
            task: tokio::spawn(supervise(service, stop_requested, Arc::clone(&exits))),
            exits,
        }
    }

    /// Counts how often the program has exited, or could not be started, without being stopped.
    pub(crate) fn exits(&self) -> u32 {
        self.exits.load(Ordering::Relaxed)
    }

    /// Stops the program, with SIGKILL if it takes too long.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

async fn supervise(service: Service, mut stop_requested: oneshot::Receiver<()>, exits: Arc<AtomicU32>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let started = Instant::now();
        let log_start = fs::metadata(&service.log).map_or(0, |log| log.len());
        let end = match start(&service) {
            Err(error) => error.to_string(),
            Ok(mut child) => {
                let mut log = tokio::spawn(write_log(child.stdout.take(), child.stderr.take(), service.log.clone()));
                let end = tokio::select! {
                    end = child.wait() => Some(end),
                    _ = &mut stop_requested => None,
                };
                let Some(end) = end else {
                    stop_child(&mut child).await;
                    log.abort();
                    return;
                };
                // The reason for the exit may still be in the pipe. Output of the program's own
                // children is not waited for.
                let _ = tokio::time::timeout(FINAL_OUTPUT_LIMIT, &mut log).await;
                log.abort();
                end.map_or_else(|error| error.to_string(), |status| status.to_string())
            }
        };
        progress(&report(&service, &end, log_start));
        exits.fetch_add(1, Ordering::Relaxed);
        if started.elapsed() > STABLE_AFTER {
            backoff = BACKOFF_MIN;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            _ = &mut stop_requested => return,
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
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
fn start(service: &Service) -> std::io::Result<Child> {
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(&service.program)
        .args(&service.arguments)
        .env_clear()
        .env("PATH", format!("{}:{PATH}", service.bin.display()))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C of a terminal reaches the worker only, which then stops its programs in order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

async fn stop_child(child: &mut Child) {
    if let Some(pid) = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
    {
        // A process that has exited needs no signal.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
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
    if fs::metadata(path).is_ok_and(|found| found.len() > LOG_MAX) {
        let _ = fs::rename(path, path.with_extension("log.1"));
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(&piece[..count]));
    count == 0
}

#[cfg(test)]
mod tests {
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

    async fn until(what: impl Fn() -> bool) {
        let wait = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .expect("the state is reached");
    }

    fn lines(dir: &Path) -> usize {
        fs::read_to_string(dir.join("x.log"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    #[tokio::test]
    async fn a_program_that_exits_is_restarted() {
        let dir = tempfile::tempdir().unwrap();
        let supervisor = Supervisor::start(service(dir.path(), "echo out; echo err >&2"));
        until(|| lines(dir.path()) >= 6 && supervisor.exits() >= 3).await;
        supervisor.stop().await;
    }

    #[tokio::test]
    async fn a_program_gets_sigterm() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap 'echo asked >> $0; exit' TERM; echo up; while :; do sleep 0.1; done";
        let mut service = service(dir.path(), script);
        service.arguments.push(dir.path().join("asked").display().to_string());
        let supervisor = Supervisor::start(service);
        until(|| lines(dir.path()) == 1).await;
        supervisor.stop().await;
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
