//! A watch that restarts by itself. An adapter of kube's watcher.
//!
//! After a failure the next watch starts with a list, and a complete list shows that the host has
//! recovered. An object that cannot be parsed is skipped; its last known state stays until the next
//! list.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use yoke_api::Lenient;

use super::request::{REQUEST_LIMIT, explain};
use crate::Error;

/// The first and the longest time between two attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Page size of a list.
const PAGE: u32 = 50;

/// Lists objects and watches their changes.
pub struct ObjectWatch<K> {
    api: Api<Lenient<K>>,
    doing: &'static str,
    stream: Option<BoxStream<'static, watcher::Result<Event<Lenient<K>>>>>,
    /// Deadline for the list that is being read.
    listed_by: Option<Instant>,
    begin: Instant,
    pause: Duration,
}

impl<K> ObjectWatch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Creates a watch of the objects of `api`. `doing` describes it in errors.
    pub(crate) fn new(api: Api<Lenient<K>>, doing: &'static str) -> Self {
        Self {
            api,
            doing,
            stream: None,
            listed_by: None,
            begin: Instant::now(),
            pause: BACKOFF.0,
        }
    }

    /// Restarts with a list after a delay.
    pub(crate) fn restart(&mut self) {
        self.stream = None;
        self.begin = Instant::now() + self.pause.mul_f64(rand::random_range(1.0..1.5));
    }

    /// Returns the next event. After an error the watch restarts, with a delay. Cancel safe: no
    /// event is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Event<K>, Error> {
        loop {
            let readable = match self.next_of_any().await? {
                Event::Init => Some(Event::Init),
                Event::InitDone => Some(Event::InitDone),
                Event::InitApply(object) => object.0.ok().map(Event::InitApply),
                Event::Apply(object) => object.0.ok().map(Event::Apply),
                Event::Delete(object) => object.0.ok().map(Event::Delete),
            };
            if let Some(event) = readable {
                return Ok(event);
            }
        }
    }

    async fn next_of_any(&mut self) -> Result<Event<Lenient<K>>, Error> {
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
                    (self.listed_by, self.pause) = (None, BACKOFF.0);
                }
                return Ok(event);
            }
            Ok(Some(Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)))) => {
                explain(&doing, error)
            }
            Ok(Some(Err(_)) | None) => Error::WatchEnded { doing },
            Err(_) => Error::Timeout {
                doing,
                limit: REQUEST_LIMIT,
            },
        };
        // Jitter: not all clients reconnect at the moment that the host recovers.
        self.restart();
        self.pause = (self.pause * 2).min(BACKOFF.1);
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;
    use yoke_api::Cluster;

    use super::*;

    /// A host that is away for so many requests; then it has a Cluster on each of two pages.
    fn watch(away: usize) -> ObjectWatch<Cluster> {
        let count = Arc::new(AtomicUsize::new(0));
        let service = service_fn(move |request: Request<Body>| {
            let (is_away, query) = (
                count.fetch_add(1, Ordering::Relaxed) < away,
                request.uri().query().unwrap_or_default().to_owned(),
            );
            async move {
                if query.contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                assert!(query.contains("limit=50"), "{query}");
                let (name, more) = match query.contains("continue=next") {
                    true => ("b", ""),
                    false => ("a", "next"),
                };
                let odd = json!([{"manager": "m", "time": "9999-12-31T23:59:59Z"}]);
                let list = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "ClusterList",
                "metadata": {"resourceVersion": "1", "continue": more},
                "items": [
                    {"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "unreadable"}, "spec": 1},
                    {"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
                        "metadata": {"name": name, "managedFields": odd}, "spec": {}},
                ]});
                let status = if is_away { 503 } else { 200 };
                let response = Response::builder()
                    .status(status)
                    .body(Body::from(list.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(response.expect("the parts are good"))
            }
        });
        ObjectWatch::new(Api::default_namespaced(Client::new(service, "t")), "watching")
    }

    #[tokio::test(start_paused = true)]
    async fn it_lists_again_after_the_host_recovers() {
        let (mut watch, begun) = (watch(3), Instant::now());
        let mut told = Vec::new();
        while told.last().is_none_or(|last| last != "all") {
            told.push(match watch.next().await {
                Ok(Event::Init) => "list".to_owned(),
                Ok(Event::InitApply(cluster)) => cluster.metadata.name.unwrap_or_default(),
                Ok(Event::InitDone) => "all".to_owned(),
                Ok(other) => panic!("{other:?}"),
                Err(error) => error.as_str().to_owned(),
            });
        }
        assert_eq!(
            told,
            [
                "list", "refused", "list", "refused", "list", "refused", "list", "a", "b", "all"
            ]
        );
        let pauses = begun.elapsed().as_millis();
        assert!(
            (3500..5250).contains(&pauses),
            "0.5, 1 and 2 s, and up to half more: {pauses}"
        );
        // A requested restart waits, too.
        let asked = Instant::now();
        watch.restart();
        assert!(matches!(watch.next().await, Ok(Event::Init)));
        assert!((500..=751).contains(&asked.elapsed().as_millis()));
        while !matches!(watch.next().await, Ok(Event::InitDone)) {}
        // From then on, silence is no failure.
        let silence = tokio::time::timeout(Duration::from_secs(3600), watch.next()).await;
        assert!(silence.is_err(), "{silence:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_host_is_a_timeout() {
        let silent = service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, kube::Error>>());
        let mut watch = ObjectWatch::<Cluster>::new(Api::default_namespaced(Client::new(silent, "t")), "watching");
        assert!(matches!(watch.next().await, Ok(Event::Init)));
        assert!(matches!(watch.next().await, Err(Error::Timeout { limit, .. }) if limit == REQUEST_LIMIT));
    }
}
