//! Lets those wait for their refusal who ask faster than they may: who asks anew at each answer asks so much the less, and what
//! refusing takes is not taken from others.

use std::time::Duration;

use tokio::sync::Semaphore;

/// Who waits at most, of all: a quarter of the questions that an Envoy may have open (`max_requests` of the cluster `gate` in
/// its bootstrap). Others are refused at once.
const PLACES: usize = 4096;

/// Where they wait.
#[derive(Debug)]
pub(super) struct Tarpit {
    hold: Duration,
    places: Semaphore,
}

impl Tarpit {
    /// Where each waits for so long, on average.
    pub(super) fn new(hold: Duration) -> Self {
        Self {
            hold,
            places: Semaphore::new(PLACES),
        }
    }

    /// Waits, if there is a place: between half as long and half as long again, so that those who came at once do not come back
    /// at once.
    pub(super) async fn wait(&self) {
        if let Ok(_place) = self.places.try_acquire() {
            tokio::time::sleep(self.hold.mul_f64(rand::random_range(0.5..1.5))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_does_not_wait() {
        const HOLD: Duration = Duration::from_secs(1);
        let tarpit = Arc::new(Tarpit::new(HOLD));
        let waiting: Vec<_> = (0..PLACES)
            .map(|_| {
                let tarpit = Arc::clone(&tarpit);
                tokio::spawn(async move { tarpit.wait().await })
            })
            .collect();
        while tarpit.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let begun = Instant::now();
        tarpit.wait().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for waiting in waiting {
            waiting.await.unwrap();
        }
        let longest = begun.elapsed();
        assert!((HOLD..HOLD * 2).contains(&longest), "{longest:?}");
        let begun = Instant::now();
        tarpit.wait().await;
        assert!(begun.elapsed() >= HOLD / 2, "there are places again");
    }
}
