//! A program that runs while the store beside it writes. `/writer` of kine-nats begins its answer when it does, and ends it
//! when it does not any more, or has ended itself: who waits for either only reads.
//!
//! ```text
//! main     ask ─▶ answered ─▶ the API server lives ─▶ start PROGRAM ─▶ the answer ends ─▶ SIGKILL ─▶ ask …
//! threads                                             wait for PROGRAM: it ended by itself ─▶ end as it did
//!          SIGTERM, SIGINT ─▶ PROGRAM, or end
//! ```

use std::io::{Error, ErrorKind, Read as _, Result, Write as _, copy, sink};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, exit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::Duration;

use super::server::Server;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How soon a store that does not answer is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// More than the head of an answer has.
const HEAD: usize = 4096;

/// What runs at the moment, if it is not to end, and the signal by which this process is to end.
#[derive(Default)]
struct State {
    program: Option<Pid>,
    signal: Option<i32>,
}

type Running = Arc<Mutex<State>>;

/// Runs a program while the store writes. This process ends as the program does, if that ends by itself.
#[allow(clippy::print_stderr, reason = "this goes to a container's log")]
pub(super) fn run_beside(store: SocketAddr, server: &Server, mut command: Command) -> Result<()> {
    let running = Running::default();
    pass_on_signals(&running)?;
    loop {
        let mut answer = wait_for(store);
        // Of a store that stops writing meanwhile the answer has ended when it is read.
        server.wait_apart()?;
        let (mut child, pid) = {
            let mut running = lock(&running);
            let child = command.spawn()?;
            let pid = Pid::from_child(&child);
            running.program = Some(pid);
            (child, pid)
        };
        let watched = Arc::clone(&running);
        let ended = spawn(move || {
            let status = child.wait();
            // Killed below, it is no end.
            if lock(&watched).program.is_some() {
                exit(status.map_or(1, to_code));
            }
        });
        let _ = copy(&mut answer, &mut sink());
        if lock(&running).program.take().is_some() {
            eprintln!(
                "yoke-launch: the store beside this does not write any more; the program ends, and begins when it does"
            );
            // It may have ended in this moment.
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = ended.join();
        if let Some(number) = lock(&running).signal {
            exit(128 + number);
        }
    }
}

/// The first process of a container gets no signal that it does not ask for.
fn pass_on_signals(running: &Running) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let running = Arc::clone(running);
    spawn(move || {
        for number in &mut signals {
            let mut running = lock(&running);
            let Some(pid) = running.program else {
                exit(128 + number);
            };
            running.signal = Some(number);
            let signal = if number == SIGINT { Signal::INT } else { Signal::TERM };
            let _ = kill_process(pid, signal);
        }
    });
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "there is no runtime here")]
fn wait_for(store: SocketAddr) -> TcpStream {
    loop {
        match ask(store) {
            Ok(stream) => return stream,
            Err(_) => sleep(AGAIN),
        }
    }
}

/// A connection on which the store has answered. By HTTP/1.0, with which an answer ends as the connection does.
fn ask(store: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(store)?;
    stream.write_all(b"GET /writer HTTP/1.0\r\n\r\n")?;
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 512];
        let read = stream.read(&mut part)?;
        if read == 0 || head.len() > HEAD {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        head.extend_from_slice(&part[..read]);
    }
    let status = head.split(|byte| *byte == b' ').nth(1);
    if status == Some(b"200") {
        Ok(stream)
    } else {
        Err(Error::from(ErrorKind::InvalidData))
    }
}

/// As a shell has it: a signal's number and 128.
fn to_code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}

fn lock(running: &Running) -> MutexGuard<'_, State> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
