//! The signals by which people and programs end a command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Error;

/// Ctrl-C and SIGTERM.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Hears them from now on, in place of being ended.
    pub(crate) fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::Signals);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        }
    }
}
