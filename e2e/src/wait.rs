//! Waits for a state, with a timeout.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::TryStreamExt as _;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use serde::de::DeserializeOwned;
use yoke_test_support::eventually_found;

/// Calls `observe` until it returns `Ok(Some(_))` or `limit` has passed. The error names `what` and
/// the last observation.
pub async fn wait_for<T, F, Fut>(what: &str, limit: Duration, mut observe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    Ok(eventually_found(what, limit, async || observe().await).await?)
}

/// Like [`wait_for`], for a condition without a value. `Err` counts as "not yet".
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

/// Watches an object of the host's API until `observe` returns `Ok(Some(_))` or `limit` has passed.
/// The error names `what` and the last observation. `observe` gets `None` if the object does not
/// exist.
pub async fn watch_for<K, T>(
    what: &str,
    limit: Duration,
    api: Api<K>,
    name: &str,
    mut observe: impl FnMut(Option<K>) -> Result<Option<T>>,
) -> Result<T>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut last = "nothing".to_owned();
    let look = async {
        let mut states = std::pin::pin!(watch_object(api, name).default_backoff());
        loop {
            // After an error, the watch restarts with backoff.
            let state = match states.try_next().await {
                Ok(state) => state.context("the watch ended")?,
                Err(error) => {
                    last = format!("{error:#}");
                    continue;
                }
            };
            last = match observe(state) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => "not yet".to_owned(),
                Err(error) => format!("{error:#}"),
            };
        }
    };
    match tokio::time::timeout(limit, look).await {
        Ok(found) => found,
        Err(_) => bail!("waited {limit:?} for {what}; last seen: {last}"),
    }
}
