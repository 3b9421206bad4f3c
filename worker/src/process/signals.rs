//! Listens for the signals that stop a worker.

use std::future::pending;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;
use crate::process::own_status::ignores_hangup;

/// Listens for SIGTERM, SIGINT and, unless the caller ignores it (`nohup`), SIGHUP.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::Signals);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: (!ignores_hangup()).then(|| listen(SignalKind::hangup())).transpose()?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = receive(self.hangup.as_mut()) => {}
        }
    }
}

async fn receive(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}
