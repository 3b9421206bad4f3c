//! Runs a program while the store beside it is the writer. `/writer` of kine-nats starts its
//! response when the store becomes the writer, and ends it when the store stops writing or exits.
//! Waiting for either is a blocking read.
//!
//! ```text
//! main     request ─▶ response ─▶ the API server is alive ─▶ start PROGRAM ─▶ the response ends ─▶ SIGKILL ─▶ request …
//! threads                                                    wait for PROGRAM: if it exits by itself ─▶ exit with its code
//!          SIGTERM, SIGINT ─▶ PROGRAM, or exit
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

/// Retry interval for a store that does not answer.
const AGAIN: Duration = Duration::from_millis(50);
/// Limit for the head of a response; a real head is smaller.
const HEAD: usize = 4096;

/// The running program, unless it is being killed, and the signal that makes this process exit.
#[derive(Default)]
struct State {
    program: Option<Pid>,
    signal: Option<i32>,
}

type Running = Arc<Mutex<State>>;

/// Runs a program while the store writes. If the program exits by itself, this process exits with
/// its code.
#[allow(clippy::print_stderr, reason = "this goes to a container's log")]
pub(super) fn run_beside(store: SocketAddr, server: &Server, mut command: Command) -> Result<()> {
    let running = Running::default();
    pass_on_signals(&running)?;
    loop {
        let mut answer = wait_for(store);
        // If the store stops writing during this wait, the response has ended by the time it is
        // read below.
        server.wait_apart()?;
        let (mut child, pid) = {
            let mut running = lock(&running);
            let child = command.spawn()?;
            let pid = Pid::from_child(&child);
            running.program = Some(pid);
            (child, pid)
        };
        let watched = Arc::clone(&running);
        let waiter = spawn(move || {
            let status = child.wait();
            // A program that was killed below did not exit by itself.
            if lock(&watched).program.is_some() {
                exit(status.map_or(1, to_code));
            }
        });
        let _ = copy(&mut answer, &mut sink());
        if lock(&running).program.take().is_some() {
            eprintln!(
                "yoke-launch: the store beside this process is no longer the writer; the program is stopped until it is again"
            );
            // The program may have exited at this very moment.
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = waiter.join();
        if let Some(number) = lock(&running).signal {
            exit(128 + number);
        }
    }
}

/// Forwards signals to the program. The kernel delivers to the first process of a container only
/// signals that it handles.
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
        match request_writer(store) {
            Ok(stream) => return stream,
            Err(_) => sleep(AGAIN),
        }
    }
}

/// Connects to the store and reads the head of its response. With HTTP/1.0 the response ends with
/// the connection.
fn request_writer(store: SocketAddr) -> Result<TcpStream> {
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

/// The exit code as a shell reports it: for a signal, its number plus 128.
fn to_code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}

fn lock(running: &Running) -> MutexGuard<'_, State> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
