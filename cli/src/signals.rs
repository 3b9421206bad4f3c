//! The signals that end a command.

use std::future::pending;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Error;

/// Ctrl-C, Ctrl-\, SIGTERM and SIGHUP. SIGHUP is left out if the caller ignores it (`nohup`).
pub(crate) struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Starts to receive the signals; from now on they no longer end the process.
    pub(crate) fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::Signals);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: (!ignores_hangup()).then(|| listen(SignalKind::hangup())).transpose()?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.quit.recv() => SignalKind::quit(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            () = receive(self.hangup.as_mut()) => SignalKind::hangup(),
        }
    }
}

async fn receive(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

/// Returns whether this process was started with SIGHUP ignored. Only Linux can tell.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // SIGHUP is signal 1, the lowest bit.
    ignored.is_some_and(|bits| u64::from_str_radix(bits.trim(), 16).is_ok_and(|bits| bits & 1 == 1))
}
