//! Delays the refusals of clients that exceed their rate. A client that retries at each answer then
//! retries less often, and refusals take less capacity from others.

use std::time::Duration;

use tokio::sync::Semaphore;

/// Maximum number of delayed refusals: a quarter of the requests that an Envoy may have pending
/// (`max_requests` of the cluster `gate` in its bootstrap). Further ones are refused at once.
const PLACES: usize = 4096;

/// Delays refusals.
#[derive(Debug)]
pub(super) struct Tarpit {
    refusal_delay: Duration,
    places: Semaphore,
}

impl Tarpit {
    /// Creates a tarpit; `refusal_delay` is the average delay.
    pub(super) fn new(refusal_delay: Duration) -> Self {
        Self {
            refusal_delay,
            places: Semaphore::new(PLACES),
        }
    }

    /// Waits for 0.5 to 1.5 times the average delay, if a slot is free. The random factor spreads
    /// the retries of clients that came at once.
    pub(super) async fn wait(&self) {
        if let Ok(_place) = self.places.try_acquire() {
            tokio::time::sleep(self.refusal_delay.mul_f64(rand::random_range(0.5..1.5))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_without_slot_does_not_wait() {
        const REFUSAL_DELAY: Duration = Duration::from_secs(1);
        let tarpit = Arc::new(Tarpit::new(REFUSAL_DELAY));
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
        assert!((REFUSAL_DELAY..REFUSAL_DELAY * 2).contains(&longest), "{longest:?}");
        let begun = Instant::now();
        tarpit.wait().await;
        assert!(begun.elapsed() >= REFUSAL_DELAY / 2, "there are places again");
    }
}
