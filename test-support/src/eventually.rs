//! Waits until a condition holds. Tests poll with these functions instead of loops of their own.
//!
//! The failure of a wait reports what was expected, how long it waited, and what it saw last.

use std::fmt::{self, Debug, Display};
use std::time::{Duration, Instant};

/// First interval between two observations. Later intervals grow up to [`LONGEST_INTERVAL`].
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);
/// Longest interval between two observations: short for a test, and cheap even for a program run.
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);

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
/// The limit uses the clock of tokio, so this is not for tests that pause the clock.
pub async fn eventually<T: Debug, E: Display>(
    what: &str,
    limit: Duration,
    mut observe: impl AsyncFnMut() -> Result<T, E>,
    mut holds: impl FnMut(&T) -> bool,
) -> Result<T, TimedOut> {
    let start = Instant::now();
    let mut last = None;
    let poll = async {
        let mut interval = SHORTEST_INTERVAL;
        loop {
            match observe().await {
                Ok(value) if holds(&value) => return value,
                seen => last = Some(seen),
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(LONGEST_INTERVAL);
        }
    };
    match tokio::time::timeout(limit, poll).await {
        Ok(value) => Ok(value),
        Err(_) => Err(TimedOut::new(what, start.elapsed(), last)),
    }
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
    let mut interval = SHORTEST_INTERVAL;
    loop {
        let seen = match observe() {
            Ok(value) if holds(&value) => return Ok(value),
            seen => seen,
        };
        let waited = start.elapsed();
        if waited >= limit {
            return Err(TimedOut::new(what, waited, Some(seen)));
        }
        std::thread::park_timeout(interval.min(limit - waited));
        interval = (interval * 2).min(LONGEST_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

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
    async fn an_observation_that_hangs_is_ended_by_the_limit() {
        let hang = async || std::future::pending::<Result<u32, Infallible>>().await;
        let text = eventually("an answer", SHORT, hang, |_| true)
            .await
            .unwrap_err()
            .to_string();
        assert!(text.ends_with(" for an answer; no observation finished"), "{text}");
    }
}
