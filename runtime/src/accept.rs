//! What a listener does about connections that it cannot accept.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long to wait; what cannot be accepted waits in the kernel, mostly until others have closed their files.
const PAUSE: Duration = Duration::from_millis(100);
/// How often that is said.
const SAY: Duration = Duration::from_secs(60);

/// Keeps a listener that has no file descriptors left, say, from asking again and again, and from filling the log.
#[derive(Debug, Default)]
pub struct AcceptBackoff {
    said: Option<Instant>,
}

impl AcceptBackoff {
    /// Waits before the next try. An error of one connection, which its client has ended meanwhile, concerns no other.
    pub async fn wait(&mut self, error: &io::Error) {
        use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
            return;
        }
        if self.said.is_none_or(|said| said.elapsed() >= SAY) {
            self.said = Some(Instant::now());
            tracing::error!(error = error as &dyn Error, "Connections cannot be accepted; they wait");
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_what_cannot_be_accepted_and_not_for_what_is_gone() {
        let (mut backoff, begun) = (AcceptBackoff::default(), Instant::now());
        backoff.wait(&ErrorKind::ConnectionAborted.into()).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // EMFILE: too many open files.
        for _ in 0..2 {
            backoff.wait(&io::Error::from_raw_os_error(24)).await;
        }
        assert_eq!(begun.elapsed(), PAUSE * 2);
        assert_eq!(backoff.said, Some(begun));
    }
}
