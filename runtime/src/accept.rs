//! Backoff of a listener that cannot accept connections.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Delay before the next attempt. Meanwhile, connections wait in the kernel, usually until other
/// files are closed.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Interval between log lines about the failure.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Keeps a listener from looping and from flooding the log, for example when the process is out of
/// file descriptors.
#[derive(Debug, Default)]
pub struct AcceptBackoff {
    logged: Option<Instant>,
}

impl AcceptBackoff {
    /// Waits before the next attempt. Returns immediately for an error of a single connection,
    /// which its client has closed.
    pub async fn wait(&mut self, error: &io::Error) {
        use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
            return;
        }
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            self.logged = Some(Instant::now());
            tracing::error!(error = error as &dyn Error, "cannot accept connections; retrying");
        }
        sleep(RETRY_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_after_a_failure_of_the_process_but_not_of_one_connection() {
        let (mut backoff, begun) = (AcceptBackoff::default(), Instant::now());
        backoff.wait(&ErrorKind::ConnectionAborted.into()).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // EMFILE: too many open files.
        for _ in 0..2 {
            backoff.wait(&io::Error::from_raw_os_error(24)).await;
        }
        assert_eq!(begun.elapsed(), RETRY_DELAY * 2);
        assert_eq!(backoff.logged, Some(begun));
    }
}
