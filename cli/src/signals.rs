//! The signals by which people and programs end a command.

use std::future::pending;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Error;

/// Ctrl-C, Ctrl-\, SIGTERM, and the end of the terminal unless whoever called wants none of it (`nohup`).
pub(crate) struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Hears them from now on, in place of being ended.
    pub(crate) fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::Signals);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: (!ignores_hangup()).then(|| listen(SignalKind::hangup())).transpose()?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.quit.recv() => SignalKind::quit(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            () = hear(self.hangup.as_mut()) => SignalKind::hangup(),
        }
    }
}

async fn hear(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

/// Whether this process was started to go on when its terminal is closed. Only Linux tells.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The first signal is the lowest bit.
    ignored.is_some_and(|bits| u64::from_str_radix(bits.trim(), 16).is_ok_and(|bits| bits & 1 == 1))
}
