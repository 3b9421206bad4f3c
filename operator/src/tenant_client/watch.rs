//! A list of a tenant's API and its changes: the list once, then one watch.
//!
//! ```text
//!  pages, a watch ─▶ trim: the needed part of each object ─▶ a channel for one change ─▶ the consumer, at its own speed
//! ```
//!
//! The stream ends with the watch, with an error. Thus the caller can wait before the next one. The
//! watcher of kube starts the next watch at once and reports nothing: an API that ends each watch
//! would receive requests without a pause. It also decodes whatever a line contains.

use std::convert::Infallible;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{AsyncBufRead, AsyncBufReadExt as _, StreamExt as _};
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use yoke_api::Lenient;

use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::limits::{WATCH_SECONDS, limited};
use crate::tenant_client::paged_list::{Pages, list_page};

/// Maximum silence of a watch: its duration, with some tolerance.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);

/// An event of the stream.
#[derive(Debug)]
pub(crate) enum Change<T> {
    /// An object of the list, or one that was written since.
    Current(T),
    /// End of the initial list.
    Listed,
    /// An object was deleted.
    Deleted,
}

/// A line of a watch.
#[derive(Deserialize)]
#[serde(bound = "Lenient<K>: DeserializeOwned")]
struct Line<K> {
    #[serde(rename = "type")]
    type_: String,
    object: Lenient<K>,
}

type Received<T> = Result<Change<T>, TenantApiError>;

/// Streams a list and its changes. Errors call it `what`, and `trim` trims each object. The stream
/// ends after an error.
pub(crate) fn changes<K, T>(
    what: &'static str,
    api: Api<Lenient<K>>,
    params: ListParams,
    pages: Pages,
    trim: impl Fn(Lenient<K>) -> T + Send + 'static,
) -> BoxStream<'static, Received<T>>
where
    K: Send + 'static,
    T: Send + 'static,
    Lenient<K>: Resource + Clone + DeserializeOwned + Send,
{
    let (sender, events) = mpsc::channel(1);
    let mut task = JoinSet::new();
    // A task of its own: without it, a request could time out while the consumer works on another
    // change.
    task.spawn(async move {
        let Err(error) = send_all(what, &api, params.limit(pages.size), pages.max, trim, &sender).await;
        // An error means that the consumer has dropped the stream.
        let _ = sender.send(Err(error)).await;
    });
    // The task ends with the stream.
    stream::unfold((events, task), next).boxed()
}

/// Propagates a panic of the task to the consumer.
async fn next<T>(
    (mut events, mut task): (mpsc::Receiver<Received<T>>, JoinSet<()>),
) -> Option<(Received<T>, (mpsc::Receiver<Received<T>>, JoinSet<()>))> {
    if let Some(change) = events.recv().await {
        return Some((change, (events, task)));
    }
    if let Some(Err(error)) = task.join_next().await
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
    None
}

/// Sends the list, then the changes.
async fn send_all<K, T>(
    what: &'static str,
    api: &Api<Lenient<K>>,
    params: ListParams,
    pages: usize,
    mut trim: impl FnMut(Lenient<K>) -> T,
    to: &mpsc::Sender<Received<T>>,
) -> Result<Infallible, TenantApiError>
where
    Lenient<K>: Resource + Clone + DeserializeOwned,
{
    let watch = WatchParams {
        label_selector: params.label_selector.clone(),
        field_selector: params.field_selector.clone(),
        ..WatchParams::default().timeout(WATCH_SECONDS).disable_bookmarks()
    };
    let version = send_list(what, api, params, pages, &mut trim, to).await?;
    send_changes(what, api, &watch, &version, trim, to).await
}

async fn send<T>(to: &mpsc::Sender<Received<T>>, change: Change<T>) -> Result<(), TenantApiError> {
    to.send(Ok(change)).await.map_err(|_| TenantApiError::Ended)
}

/// Sends the list, and returns its version.
async fn send_list<K, T>(
    what: &'static str,
    api: &Api<Lenient<K>>,
    mut params: ListParams,
    pages: usize,
    trim: &mut impl FnMut(Lenient<K>) -> T,
    to: &mpsc::Sender<Received<T>>,
) -> Result<String, TenantApiError>
where
    Lenient<K>: Resource + Clone + DeserializeOwned,
{
    let mut version = None;
    for _ in 0..pages {
        let page = list_page(what, api, &params).await?;
        version = page.metadata.resource_version.clone();
        let next = page.next().map(|token| params.clone().continue_token(token));
        for object in page.items.into_iter().map(&mut *trim).collect::<Vec<_>>() {
            send(to, Change::Current(object)).await?;
        }
        match next {
            Some(next) => params = next,
            None => break,
        }
    }
    let version = version.filter(|version| !version.is_empty());
    let version = version.ok_or(TenantApiError::Ended)?;
    send(to, Change::Listed).await?;
    Ok(version)
}

/// Sends the changes since a version.
async fn send_changes<K, T>(
    what: &'static str,
    api: &Api<Lenient<K>>,
    watch: &WatchParams,
    version: &str,
    mut trim: impl FnMut(Lenient<K>) -> T,
    to: &mpsc::Sender<Received<T>>,
) -> Result<Infallible, TenantApiError>
where
    Lenient<K>: Resource + Clone + DeserializeOwned,
{
    let request = Request::new(api.resource_url()).watch(watch, version);
    let client: Client = api.clone().into_client();
    let lines = limited(what, async {
        client.request_stream(request.map_err(kube::Error::BuildRequest)?).await
    });
    let mut lines = std::pin::pin!(lines.await?);
    let mut line = Vec::new();
    loop {
        let read = timeout(SILENCE, read_line(&mut lines, &mut line)).await;
        let failed = |error| TenantApiError::Request {
            what,
            source: Box::new(error),
        };
        if !read
            .map_err(|_| TenantApiError::Ended)?
            .map_err(|error| failed(kube::Error::ReadEvents(error)))?
        {
            return Err(TenantApiError::Ended);
        }
        let Line { type_, object } =
            serde_json::from_slice(&line).map_err(|error| failed(kube::Error::SerdeError(error)))?;
        let change = match type_.as_str() {
            "ADDED" | "MODIFIED" => Change::Current(trim(object)),
            "DELETED" => Change::Deleted,
            _ => return Err(TenantApiError::Ended),
        };
        // Frees the memory while the event waits in the channel.
        line = Vec::new();
        send(to, change).await?;
    }
}

/// Reads a line. Returns `false` at the end. The connection limits its length.
async fn read_line(lines: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> std::io::Result<bool> {
    lines.read_until(b'\n', line).await?;
    // A line without a newline was cut off.
    Ok(line.ends_with(b"\n"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::Node;
    use kube::Client;
    use kube::client::Body;

    use super::*;

    /// Follows an API with these answers. Returns the events, the final error, and the requests.
    async fn follow(list: &'static str, watch: &'static str) -> (Vec<String>, TenantApiError, Vec<String>) {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let answer = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let text = if query.contains("watch=true") { watch } else { list };
            seen.lock().unwrap().push(query);
            std::future::ready(http::Response::builder().body(Body::from(text.as_bytes().to_vec())))
        });
        let api = Api::<Lenient<Node>>::all(Client::new(answer, "default"));
        let params = ListParams::default().fields("metadata.name=a");
        let name = |node: Lenient<Node>| node.meta().name.clone().unwrap_or_default();
        let mut changes = Box::pin(changes("Nodes", api, params, Pages { size: 2, max: 3 }, name));
        let mut events = Vec::new();
        let error = loop {
            match changes.next().await.unwrap() {
                Ok(change) => events.push(match change {
                    Change::Current(name) => name,
                    Change::Listed => "listed".to_owned(),
                    Change::Deleted => "deleted".to_owned(),
                }),
                Err(error) => break error,
            }
        };
        let requests = requests.lock().unwrap().clone();
        (events, error, requests)
    }

    #[tokio::test]
    async fn one_watch_follows_a_list() {
        let list = r#"{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}"#;
        let watch = r#"{"type": "MODIFIED", "object": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}}
{"type": "DELETED", "object": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}}
"#;
        let (events, error, requests) = follow(list, watch).await;
        assert_eq!(events, ["a", "listed", "b", "deleted"]);
        assert!(matches!(error, TenantApiError::Ended), "{error:?}");
        assert_eq!(requests.len(), 2, "{requests:?}");
        assert!(
            requests[1].contains("resourceVersion=7") && requests[1].contains("metadata.name"),
            "{requests:?}"
        );
    }

    #[tokio::test]
    async fn endless_pages_are_not_read() {
        for (rule, items, events, count) in [
            (
                "pages of one",
                r#"{"metadata": {"name": "a"}}"#,
                &["a", "a", "a", "listed"][..],
                4,
            ),
            ("empty pages", "", &["listed"][..], 2),
        ] {
            let list = format!(r#"{{"metadata": {{"resourceVersion": "7", "continue": "x"}}, "items": [{items}]}}"#);
            let (seen, error, requests) = follow(list.leak(), "").await;
            assert_eq!(
                (&seen[..], requests.len()),
                (&events.iter().map(ToString::to_string).collect::<Vec<_>>()[..], count),
                "{rule}"
            );
            assert!(matches!(error, TenantApiError::Ended), "{rule}: {error:?}");
        }
    }

    #[tokio::test]
    async fn a_page_with_too_many_objects_is_an_error() {
        let (events, error, requests) = follow(r#"{"items": [{}, {}, {}]}"#, "").await;
        assert_eq!((events.len(), requests.len()), (0, 1));
        assert!(matches!(error, TenantApiError::TooMany { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn an_unexpected_line_ends_a_watch() {
        let list = r#"{"metadata": {"resourceVersion": "7"}, "items": []}"#;
        for (rule, watch, is_end) in [
            (
                "the version is too old",
                "{\"object\": {\"kind\": \"Status\", \"code\": 410}, \"type\": \"ERROR\"}\n",
                true,
            ),
            (
                "an event that was not requested",
                "{\"type\": \"BOOKMARK\", \"object\": {}}\n",
                true,
            ),
            ("a truncated line", "{\"type\": \"ADDED\", \"object\": {}}", true),
            ("invalid JSON", "x\n", false),
        ] {
            let (events, error, _) = follow(list, watch).await;
            assert_eq!(events, ["listed"], "{rule}");
            assert_eq!(matches!(error, TenantApiError::Ended), is_end, "{rule}: {error:?}");
        }
    }

    #[tokio::test]
    #[should_panic(expected = "the trim function fails")]
    async fn a_panic_reaches_the_consumer() {
        let list = r#"{"metadata": {"resourceVersion": "7"}, "items": [{}]}"#;
        let answer = tower::service_fn(move |_: http::Request<Body>| {
            std::future::ready(http::Response::builder().body(Body::from(list.as_bytes().to_vec())))
        });
        let api = Api::<Lenient<Node>>::all(Client::new(answer, "default"));
        let panic_on = |_| -> () { panic!("the trim function fails") };
        let mut changes = changes("Nodes", api, ListParams::default(), Pages { size: 2, max: 3 }, panic_on);
        while changes.next().await.is_some() {}
    }
}
