//! Rate limit of a snapshot, so that requests do not wait behind it for the processor, the network
//! and the disk. The time is passed in and the length of a pause is returned; [`Throttle`]
//! sleeps.

use crate::clock;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Ratio of a pause to the work before it: a snapshot works a quarter of the time.
const PAUSE_RATIO: u32 = 3;
/// Longest pause. A piece that had to wait for the log says nothing about the resources that it
/// used.
const LONGEST: Duration = Duration::from_millis(200);
/// Time after which a snapshot no longer pauses. Records that are written meanwhile must be
/// retained until it is stored.
const PATIENCE: Duration = Duration::from_secs(60);

/// The rate limit of one snapshot.
#[derive(Debug)]
struct RateLimit {
    /// Start of the current piece of work.
    start: Duration,
    /// End of all pauses.
    until: Duration,
}

impl RateLimit {
    fn new(now: Duration) -> Self {
        Self {
            start: now,
            until: now + PATIENCE,
        }
    }

    /// Length of the pause after a finished piece of work.
    fn pause_after(&self, now: Duration) -> Duration {
        let took = now.saturating_sub(self.start);
        (took * PAUSE_RATIO).min(LONGEST).min(self.until.saturating_sub(now))
    }

    /// Starts the next piece of work.
    fn resume(&mut self, now: Duration) {
        self.start = now;
    }
}

/// The pauses of one snapshot; `None` if something waits for it from the start.
#[derive(Debug)]
pub(super) struct Throttle(Option<(RateLimit, watch::Receiver<bool>)>);

impl Throttle {
    /// Creates the pauses. `hurried` becomes true when something waits for the snapshot.
    pub(super) fn new(hurried: Option<&watch::Receiver<bool>>) -> Self {
        Self(hurried.map(|hurried| (RateLimit::new(clock::now()), hurried.clone())))
    }

    /// Pauses after a piece of work, at most until something waits.
    pub(super) async fn wait(&mut self) {
        let Some((limit, hurried)) = &mut self.0 else { return };
        let pause = limit.pause_after(clock::now());
        if !pause.is_zero() {
            let _ = timeout(pause, hurried.wait_for(|hurried| *hurried)).await;
        }
        limit.resume(clock::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn a_pause_is_proportional_to_the_work_before_it() {
        let mut limit = RateLimit::new(7 * MILLISECOND);
        for (start_at, end_at, pause) in [(7, 7, 0), (7, 9, 6), (15, 25, 30), (100, 190, 200), (400, 9000, 200)] {
            limit.resume(start_at * MILLISECOND);
            assert_eq!(
                limit.pause_after(end_at * MILLISECOND),
                pause * MILLISECOND,
                "{start_at} to {end_at}"
            );
        }
        // A clock that goes back shortens nothing.
        assert_eq!(limit.pause_after(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn the_total_time_is_bounded() {
        for took in [1, 5, 50, 500] {
            let took = took * MILLISECOND;
            let (mut limit, mut now, mut worked) = (RateLimit::new(Duration::ZERO), Duration::ZERO, Duration::ZERO);
            for _ in 0..100_000 {
                now += took;
                worked += took;
                now += limit.pause_after(now);
                limit.resume(now);
            }
            assert!(
                now <= worked * 4 && now <= worked + Duration::from_secs(60),
                "{took:?}: {now:?}"
            );
        }
    }
}
