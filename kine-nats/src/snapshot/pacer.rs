//! When a snapshot rests, so that requests do not wait behind it for the processor, the link and the disk. Time comes in,
//! the length of a rest goes out; [`super::Rests`] takes it.

use std::time::Duration;

/// How many times as long as a piece of work took the rest behind it is: a snapshot works a quarter of the time.
const REST: u32 = 3;
/// The longest rest: a piece that had to wait for the log tells nothing about how much it used.
const LONGEST: Duration = Duration::from_millis(200);
/// For how long one snapshot rests at all. What is written meanwhile has to be kept until it is stored.
const PATIENCE: Duration = Duration::from_secs(60);

/// One snapshot on its way.
#[derive(Debug)]
pub(super) struct Pacer {
    /// When the piece of work under way began.
    began: Duration,
    /// From when on there is no rest any more.
    until: Duration,
}

impl Pacer {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            began: now,
            until: now + PATIENCE,
        }
    }

    /// A piece of work is done: how long to rest.
    pub(super) fn rest(&self, now: Duration) -> Duration {
        let took = now.saturating_sub(self.began);
        (took * REST).min(LONGEST).min(self.until.saturating_sub(now))
    }

    /// The next piece of work begins.
    pub(super) fn resume(&mut self, now: Duration) {
        self.began = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn a_rest_is_in_proportion_to_the_work_before_it() {
        let mut pacer = Pacer::new(7 * MILLISECOND);
        for (begins, ends, rest) in [(7, 7, 0), (7, 9, 6), (15, 25, 30), (100, 190, 200), (400, 9000, 200)] {
            pacer.resume(begins * MILLISECOND);
            assert_eq!(pacer.rest(ends * MILLISECOND), rest * MILLISECOND, "{begins} to {ends}");
        }
        // A clock that goes back takes no time away.
        assert_eq!(pacer.rest(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn ends_in_bounded_time() {
        for took in [1, 5, 50, 500] {
            let took = took * MILLISECOND;
            let (mut pacer, mut now, mut worked) = (Pacer::new(Duration::ZERO), Duration::ZERO, Duration::ZERO);
            for _ in 0..100_000 {
                now += took;
                worked += took;
                now += pacer.rest(now);
                pacer.resume(now);
            }
            assert!(
                now <= worked * 4 && now <= worked + Duration::from_secs(60),
                "{took:?}: {now:?}"
            );
        }
    }
}
