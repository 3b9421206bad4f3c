//! A watch that starts again by itself. An adapter of kube's watcher.
//!
//! After a failure the next watch begins with a list: that it is complete is how one knows that the host is back.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::Error;
use crate::tenant::{REQUEST_LIMIT, explain};

/// The first and the longest time between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Objects of a list that are held at a time.
const PAGE: u32 = 50;

/// A list, and what changes in it, for as long as it is asked for.
pub struct Feed<K> {
    api: Api<K>,
    doing: &'static str,
    stream: Option<BoxStream<'static, watcher::Result<Event<K>>>>,
    /// When a list that is being read must be complete.
    listed_by: Option<Instant>,
    begin: Instant,
    pause: Duration,
}

impl<K> Feed<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// A feed of what `api` has. `doing` says what it is for, should it fail.
    pub(crate) fn new(api: Api<K>, doing: &'static str) -> Self {
        Self {
            api,
            doing,
            stream: None,
            listed_by: None,
            begin: Instant::now(),
            pause: PAUSES.0,
        }
    }

    /// The next event. After an error it begins anew, not too soon. Nothing is lost if this is dropped while it waits.
    pub async fn next(&mut self) -> Result<Event<K>, Error> {
        if self.stream.is_none() {
            sleep_until(self.begin).await;
            self.listed_by = Some(Instant::now() + REQUEST_LIMIT);
        }
        let (api, config) = (&self.api, watcher::Config::default().page_size(PAGE));
        let stream = self.stream.get_or_insert_with(|| watcher(api.clone(), config).boxed());
        let event = match self.listed_by {
            Some(end) => timeout_at(end, stream.next()).await,
            None => Ok(stream.next().await),
        };
        let doing = self.doing.to_owned();
        let error = match event {
            Ok(Some(Ok(event))) => {
                if matches!(event, Event::InitDone) {
                    (self.listed_by, self.pause) = (None, PAUSES.0);
                }
                return Ok(event);
            }
            Ok(Some(Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)))) => {
                explain(&doing, error)
            }
            Ok(Some(Err(_)) | None) => Error::FeedEnded { doing },
            Err(_) => Error::Timeout {
                doing,
                limit: REQUEST_LIMIT,
            },
        };
        self.stream = None;
        // Not all at the same moment that a host comes back in.
        self.begin = Instant::now() + self.pause.mul_f64(rand::random_range(1.0..1.5));
        self.pause = (self.pause * 2).min(PAUSES.1);
        Err(error)
    }
}
