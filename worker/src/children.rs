//! Keeps programs running: started anew after a pause that grows while they keep ending early. What they say goes to a file
//! that does not grow without end.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::machine::PATH;
use crate::output::say;

const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A program that ran this long is not in a crash loop.
const STEADY: Duration = Duration::from_secs(30);
/// How long a program may take to end of itself.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// A log longer than this is put aside, and replaces the one that was before.
const LOG_MAX: u64 = 16 << 20;
const PIECE: usize = 16 << 10;

/// A program that is to run.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Where programs that it calls by name are looked for first.
    pub(crate) bin: PathBuf,
    pub(crate) log: PathBuf,
}

/// A program that is kept running. Dropped, it is asked to end, and nobody waits for it.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Keeper {
    pub(crate) fn start(service: Service) -> Self {
        let (stop, asked) = oneshot::channel();
        Self {
            stop,
            task: tokio::spawn(keep(service, asked)),
        }
    }

    /// Ends the program, by force if it takes too long.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

async fn keep(service: Service, mut asked: oneshot::Receiver<()>) {
    let mut pause = PAUSE_MIN;
    loop {
        let started = Instant::now();
        let end = match start(&service) {
            Err(error) => error.to_string(),
            Ok(mut child) => {
                let log = tokio::spawn(record(child.stdout.take(), child.stderr.take(), service.log.clone()));
                let end = tokio::select! {
                    end = child.wait() => Some(end),
                    _ = &mut asked => None,
                };
                let Some(end) = end else {
                    end_child(&mut child).await;
                    log.abort();
                    return;
                };
                // What its own children still say is nobody's concern.
                log.abort();
                end.map_or_else(|error| error.to_string(), |status| status.to_string())
            }
        };
        say(&format!(
            "{} ended ({end}); see {}",
            service.name,
            service.log.display()
        ));
        if started.elapsed() > STEADY {
            pause = PAUSE_MIN;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = &mut asked => return,
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// With `setpriv`, so that it does not outlive this process: a second one could not take its sockets.
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
        // A terminal's Ctrl-C is for the worker, which ends its parts in order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

async fn end_child(child: &mut Child) {
    if let Some(pid) = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
    {
        // A process that has ended since is what is wanted.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

async fn record(out: Option<impl AsyncRead + Unpin>, err: Option<impl AsyncRead + Unpin>, path: PathBuf) {
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

/// Says whether there was nothing more. A log that cannot be written keeps nobody from working.
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
    async fn a_program_that_ends_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(service(dir.path(), "echo out; echo err >&2"));
        until(|| lines(dir.path()) >= 6).await;
        keeper.stop().await;
    }

    #[tokio::test]
    async fn a_program_is_asked_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap 'echo asked >> $0; exit' TERM; echo up; while :; do sleep 0.1; done";
        let mut service = service(dir.path(), script);
        service.arguments.push(dir.path().join("asked").display().to_string());
        let keeper = Keeper::start(service);
        until(|| lines(dir.path()) == 1).await;
        keeper.stop().await;
        assert!(dir.path().join("asked").exists());
    }

    #[test]
    fn a_long_log_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        fs::File::create(&path).unwrap().set_len(LOG_MAX + 1).unwrap();
        assert!(!append(&path, b"next", 4));
        assert!(append(&path, b"", 0));
        assert_eq!(fs::read_to_string(&path).unwrap(), "next");
        assert_eq!(fs::metadata(dir.path().join("x.log.1")).unwrap().len(), LOG_MAX + 1);
    }
}
