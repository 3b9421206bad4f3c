//! For how long what was compacted is kept: watches that are up to date hear of it first, as etcd's do.

use crate::clock;
use std::time::Duration;

/// After a compaction, at least.
const GRACE: Duration = Duration::from_secs(1);
/// After the first of many that follow each other closely, at most.
const LONGEST: Duration = Duration::from_secs(10);

/// The compactions that nothing was dropped for yet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Grace {
    first: Duration,
    until: Duration,
}

impl Grace {
    /// Notes a compaction.
    pub(crate) fn begin(&mut self) {
        let now = clock::now();
        if self.is_over() {
            self.first = now;
        }
        self.until = (now + GRACE).min(self.first + LONGEST);
    }

    /// Whether what was compacted may be dropped.
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
    async fn lasts_a_second_and_never_for_ever() {
        let mut grace = Grace::default();
        grace.begin();
        sleep(GRACE - SOON).await;
        assert!(!grace.is_over());
        sleep(SOON).await;
        assert!(grace.is_over());
        let mut waited = Duration::ZERO;
        grace.begin();
        while !grace.is_over() {
            grace.begin();
            sleep(SOON).await;
            waited += SOON;
        }
        assert_eq!(waited, LONGEST);
    }
}
