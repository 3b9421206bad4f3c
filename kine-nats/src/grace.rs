//! How long compacted history is retained: as in etcd, up-to-date watches receive it first.

use crate::clock;
use std::time::Duration;

/// Shortest time after a compaction.
const GRACE: Duration = Duration::from_secs(1);
/// Longest time after the first of several compactions in close succession.
const LONGEST: Duration = Duration::from_secs(10);

/// The compactions whose history is not dropped yet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Grace {
    first: Duration,
    until: Duration,
}

impl Grace {
    /// Records a compaction.
    pub(crate) fn record_compaction(&mut self) {
        let now = clock::now();
        if self.is_over() {
            self.first = now;
        }
        self.until = (now + GRACE).min(self.first + LONGEST);
    }

    /// Whether compacted history may be dropped.
    pub(crate) fn is_over(&self) -> bool {
        clock::now() >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const SOON: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn the_grace_period_is_bounded() {
        let mut grace = Grace::default();
        grace.record_compaction();
        sleep(GRACE - SOON).await;
        assert!(!grace.is_over());
        sleep(SOON).await;
        assert!(grace.is_over());
        let mut waited = Duration::ZERO;
        grace.record_compaction();
        while !grace.is_over() {
            grace.record_compaction();
            sleep(SOON).await;
            waited += SOON;
        }
        assert_eq!(waited, LONGEST);
    }
}
