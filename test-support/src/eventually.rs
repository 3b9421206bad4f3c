//! Waits until a condition holds. Tests poll with these functions instead of loops of their own.
//!
//! The failure of a wait reports what was expected, how long it waited, and what it saw last.

use std::convert::Infallible;
use std::fmt::{self, Debug, Display};
use std::time::{Duration, Instant};

/// First interval between two observations.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);
/// Longest interval between two observations: short for a test, and cheap even for a program run.
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the time until the next observation. It grows with the wait, so that a caller that
/// measures the wait measures at most an eighth too much.
fn interval(waited: Duration) -> Duration {
    (waited / 8).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)
}

/// A condition did not hold in time.
///
/// `Debug` prints the same text as `Display`, so that `unwrap` is readable.
pub struct TimedOut {
    what: String,
    waited: Duration,
    last: String,
}

impl TimedOut {
    fn new<T: Debug, E: Display>(what: &str, waited: Duration, last: Option<Result<T, E>>) -> Self {
        Self {
            what: what.to_owned(),
            waited,
            last: match last {
                Some(Ok(value)) => format!("last value: {value:?}"),
                // Errors of anyhow show their causes in this form.
                Some(Err(error)) => format!("last error: {error:#}"),
                None => "no observation finished".to_owned(),
            },
        }
    }
}

impl Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {:.1?} for {}; {}", self.waited, self.what, self.last)
    }
}

impl Debug for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl std::error::Error for TimedOut {}

/// Calls `observe` until `holds` accepts its value, and returns that value. An error of `observe`
/// counts as "not yet".
///
/// `what` completes the sentence "waited for …". `limit` protects against a hang, so it should be
/// generous. It also ends an observation that does not finish.
///
/// # Caveats
///
/// Time is the time of tokio. With a paused clock, the limit and the intervals are virtual, so a
/// wait for a real socket or program ends too early.
pub async fn eventually<T: Debug, E: Display>(
    what: &str,
    limit: Duration,
    mut observe: impl AsyncFnMut() -> Result<T, E>,
    mut holds: impl FnMut(&T) -> bool,
) -> Result<T, TimedOut> {
    let start = tokio::time::Instant::now();
    let mut last = None;
    let poll = async {
        loop {
            match observe().await {
                Ok(value) if holds(&value) => return value,
                seen => last = Some(seen),
            }
            tokio::time::sleep(interval(start.elapsed())).await;
        }
    };
    match tokio::time::timeout(limit, poll).await {
        Ok(value) => Ok(value),
        Err(_) => Err(TimedOut::new(what, start.elapsed(), last)),
    }
}

/// Like [`eventually`], for an observation that finds a value, nothing, or fails. The value need not
/// be printable.
pub async fn eventually_found<T, E: Display>(
    what: &str,
    limit: Duration,
    mut observe: impl AsyncFnMut() -> Result<Option<T>, E>,
) -> Result<T, TimedOut> {
    /// A value that a failure never prints.
    struct Found<T>(T);
    impl<T> Debug for Found<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a value")
        }
    }
    let observe = async || match observe().await {
        Ok(found) => found.map(Found).ok_or_else(|| "no value yet".to_owned()),
        // Errors of anyhow show their causes in this form.
        Err(error) => Err(format!("{error:#}")),
    };
    eventually(what, limit, observe, |_| true)
        .await
        .map(|Found(value)| value)
}

/// Like [`eventually_found`], for an observation that cannot fail. A timeout cannot report more than
/// that there was no value.
pub async fn eventually_some<T>(
    what: &str,
    limit: Duration,
    mut observe: impl AsyncFnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    eventually_found(what, limit, async || Ok::<_, Infallible>(observe().await)).await
}

/// Like [`eventually`], for a condition without a value. Where there is a value, [`eventually`]
/// reports more.
pub async fn eventually_true(
    what: &str,
    limit: Duration,
    mut holds: impl AsyncFnMut() -> bool,
) -> Result<(), TimedOut> {
    let observe = async || Ok::<_, Infallible>(holds().await);
    eventually(what, limit, observe, |holds| *holds).await.map(drop)
}

/// Like [`eventually`], for tests without a runtime. It blocks the thread, and cannot end an
/// observation that does not finish.
pub fn eventually_blocking<T: Debug, E: Display>(
    what: &str,
    limit: Duration,
    mut observe: impl FnMut() -> Result<T, E>,
    mut holds: impl FnMut(&T) -> bool,
) -> Result<T, TimedOut> {
    let start = Instant::now();
    loop {
        let seen = match observe() {
            Ok(value) if holds(&value) => return Ok(value),
            seen => seen,
        };
        let waited = start.elapsed();
        if waited >= limit {
            return Err(TimedOut::new(what, waited, Some(seen)));
        }
        std::thread::park_timeout(interval(waited).min(limit - waited));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(50);

    fn count_up() -> impl FnMut() -> Result<u32, String> {
        let mut count = 0;
        move || {
            count += 1;
            if count == 2 {
                return Err("a passing error".to_owned());
            }
            Ok(count)
        }
    }

    #[tokio::test]
    async fn the_first_value_that_holds_is_returned() {
        let mut count = count_up();
        let found = eventually("the third", LIMIT, async || count(), |count| *count >= 3).await;
        assert_eq!(found.unwrap(), 3);
        let found = eventually_blocking("the third", LIMIT, count_up(), |count| *count >= 3);
        assert_eq!(found.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_failure_reports_the_last_value_and_the_time() {
        let observe = || Ok::<_, Infallible>(["one pod"]);
        let failures = [
            eventually("two pods", SHORT, async || observe(), |pods| pods.len() == 2).await,
            eventually_blocking("two pods", SHORT, observe, |pods| pods.len() == 2),
        ];
        for failure in failures {
            let failure = failure.unwrap_err();
            assert!(failure.waited >= SHORT, "{failure}");
            let text = failure.to_string();
            assert!(
                text.starts_with("waited ") && text.ends_with(r#" for two pods; last value: ["one pod"]"#),
                "{text}"
            );
            assert_eq!(format!("{failure:?}"), text);
        }
    }

    #[tokio::test]
    async fn a_failure_reports_the_last_error() {
        let observe = || Err::<u32, _>("connection refused");
        let failures = [
            eventually("an answer", SHORT, async || observe(), |_| true).await,
            eventually_blocking("an answer", SHORT, observe, |_| true),
        ];
        for failure in failures {
            let text = failure.unwrap_err().to_string();
            assert!(
                text.ends_with(" for an answer; last error: connection refused"),
                "{text}"
            );
        }
    }

    #[tokio::test]
    async fn a_value_or_a_condition_is_waited_for() {
        struct Opaque(u32);
        let (mut one, mut other) = (count_up(), count_up());
        let found = eventually_some("the third", LIMIT, async || {
            one().ok().filter(|count| *count >= 3).map(Opaque)
        });
        assert_eq!(found.await.unwrap().0, 3);
        let holds = eventually_true("the third", LIMIT, async || other().is_ok_and(|count| count >= 3));
        holds.await.unwrap();
        let nothing = eventually_some("a value", SHORT, async || None::<Opaque>).await;
        let text = nothing.err().unwrap().to_string();
        assert!(text.ends_with(" for a value; last error: no value yet"), "{text}");
        let text = eventually_true("the end", SHORT, async || false).await.unwrap_err();
        assert!(text.to_string().ends_with(" for the end; last value: false"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_is_followed() {
        let start = tokio::time::Instant::now();
        let hour = Duration::from_secs(3600);
        eventually_true("the hour", hour * 2, async || start.elapsed() >= hour)
            .await
            .unwrap();
        let late = start.elapsed() - hour;
        assert!(late <= LONGEST_INTERVAL, "{late:?}");
        let text = eventually_true("nothing", hour, async || false).await.unwrap_err();
        assert!(text.to_string().starts_with("waited 3600.0s for nothing"), "{text}");
    }

    #[tokio::test]
    async fn an_observation_that_hangs_is_ended_by_the_limit() {
        let hang = async || std::future::pending::<Result<u32, Infallible>>().await;
        let text = eventually("an answer", SHORT, hang, |_| true)
            .await
            .unwrap_err()
            .to_string();
        assert!(text.ends_with(" for an answer; no observation finished"), "{text}");
    }
}
