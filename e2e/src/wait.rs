//! Waiting for a state, with a limit.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const POLL: Duration = Duration::from_millis(200);

/// Calls `observe` until it gives `Ok(Some(_))` or `limit` is over; the error then names `what` and the last observation.
pub async fn wait_for<T, F, Fut>(what: &str, limit: Duration, mut observe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let begin = Instant::now();
    loop {
        let last = match observe().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => "not yet".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if begin.elapsed() > limit {
            bail!("waited {limit:?} for {what}; last seen: {last}");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Like [`wait_for`] for a condition without a value; `Err` counts as "not yet".
pub async fn wait_until<F, Fut>(what: &str, limit: Duration, mut holds: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    wait_for(what, limit, || {
        let holds = holds();
        async move { Ok(holds.await?.then_some(())) }
    })
    .await
}
