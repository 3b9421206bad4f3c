//! What a list of a tenant's API has, and how it changes: the list once, and one watch after it.
//!
//! It ends with the watch, and that is an error: whoever begins another one waits first. kube's own watcher begins it at once,
//! and tells nobody, so that an API that ends each watch is asked without a pause.

use std::collections::VecDeque;
use std::fmt::Debug;

use futures::stream::{BoxStream, try_unfold};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use yoke_api::Lenient;

use super::pages::{Pages, list_page};
use super::{TenantApiError, WATCH_SECONDS, limited};

/// What was seen.
#[derive(Debug)]
pub(crate) enum Change<K> {
    /// An object of the list, or one that was written since.
    Is(Lenient<K>),
    /// All of the list was told.
    Listed,
    /// One is gone.
    Gone,
}

/// Of a list, which an error calls `what`. Never ends without an error.
pub(super) fn changes<K>(
    what: &'static str,
    api: Api<Lenient<K>>,
    params: ListParams,
    pages: Pages,
) -> impl Stream<Item = Result<Change<K>, TenantApiError>> + Send + use<K>
where
    K: Send + 'static,
    Lenient<K>: Resource + Clone + Debug + DeserializeOwned + Send,
{
    let watcher = Watcher {
        what,
        api,
        params: params.limit(pages.size),
        pages: pages.max,
        told: VecDeque::new(),
        stage: Stage::Lists,
    };
    try_unfold(watcher, |mut watcher| async {
        let change = watcher.next().await?;
        Ok(Some((change, watcher)))
    })
}

struct Watcher<K> {
    what: &'static str,
    api: Api<Lenient<K>>,
    params: ListParams,
    /// Which may still be read.
    pages: usize,
    told: VecDeque<Change<K>>,
    stage: Stage<K>,
}

enum Stage<K> {
    Lists,
    /// Of this version.
    Listed(String),
    Watches(BoxStream<'static, kube::Result<WatchEvent<Lenient<K>>>>),
}

impl<K> Watcher<K>
where
    K: Send + 'static,
    Lenient<K>: Resource + Clone + Debug + DeserializeOwned + Send,
{
    async fn next(&mut self) -> Result<Change<K>, TenantApiError> {
        loop {
            if let Some(change) = self.told.pop_front() {
                return Ok(change);
            }
            match &mut self.stage {
                Stage::Lists => self.list().await?,
                Stage::Listed(version) => {
                    let params = WatchParams {
                        label_selector: self.params.label_selector.clone(),
                        field_selector: self.params.field_selector.clone(),
                        ..WatchParams::default().timeout(WATCH_SECONDS).disable_bookmarks()
                    };
                    let watch = limited(self.what, self.api.watch(&params, version)).await?;
                    self.stage = Stage::Watches(watch.boxed());
                }
                Stage::Watches(watch) => {
                    let event = watch.try_next().await.map_err(|source| TenantApiError::Request {
                        what: self.what,
                        source: Box::new(source),
                    })?;
                    match event.ok_or(TenantApiError::Ended)? {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => return Ok(Change::Is(object)),
                        WatchEvent::Deleted(_) => return Ok(Change::Gone),
                        WatchEvent::Bookmark(_) => {}
                        WatchEvent::Error(_) => return Err(TenantApiError::Ended),
                    }
                }
            }
        }
    }

    async fn list(&mut self) -> Result<(), TenantApiError> {
        let page = list_page(self.what, &self.api, &self.params).await?;
        self.pages = self.pages.saturating_sub(1);
        let next = page.next().filter(|_| self.pages > 0);
        match next.map(|token| self.params.clone().continue_token(token)) {
            Some(next) => self.params = next,
            None => {
                let version = page.metadata.resource_version.clone();
                self.stage = Stage::Listed(version.ok_or(TenantApiError::Ended)?);
            }
        }
        self.told.extend(page.items.into_iter().map(Change::Is));
        if matches!(self.stage, Stage::Listed(_)) {
            self.told.push_back(Change::Listed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::Node;
    use kube::Client;
    use kube::client::Body;

    use super::*;

    /// What is told by an API that answers lists and watches so, and what it was asked for.
    async fn follow(list: &'static str, watch: &'static str) -> (Vec<String>, TenantApiError, Vec<String>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let answer = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let text = if query.contains("watch=true") { watch } else { list };
            seen.lock().unwrap().push(query);
            std::future::ready(http::Response::builder().body(Body::from(text.as_bytes().to_vec())))
        });
        let api = Api::<Lenient<Node>>::all(Client::new(answer, "default"));
        let params = ListParams::default().fields("metadata.name=a");
        let mut changes = Box::pin(changes("its Nodes", api, params, Pages { size: 2, max: 3 }));
        let mut told = Vec::new();
        let ended = loop {
            match changes.try_next().await {
                Ok(change) => told.push(match change.unwrap() {
                    Change::Is(node) => node.meta().name.clone().unwrap_or_default(),
                    Change::Listed => "listed".to_owned(),
                    Change::Gone => "gone".to_owned(),
                }),
                Err(error) => break error,
            }
        };
        let asked = asked.lock().unwrap().clone();
        (told, ended, asked)
    }

    #[tokio::test]
    async fn a_watch_follows_a_list_and_no_other_one_follows_it() {
        let list = r#"{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}"#;
        let watch = r#"{"type": "MODIFIED", "object": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}}
{"type": "DELETED", "object": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}}
"#;
        let (told, ended, asked) = follow(list, watch).await;
        assert_eq!(told, ["a", "listed", "b", "gone"]);
        assert!(matches!(ended, TenantApiError::Ended), "{ended:?}");
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(
            asked[1].contains("resourceVersion=7") && asked[1].contains("metadata.name"),
            "{asked:?}"
        );
    }

    #[tokio::test]
    async fn pages_without_an_end_are_not_read_on() {
        let list = r#"{"metadata": {"resourceVersion": "7", "continue": "x"}, "items": []}"#;
        let (told, ended, asked) = follow(list, "").await;
        assert_eq!(told, ["listed"]);
        assert!(matches!(ended, TenantApiError::Ended), "{ended:?}");
        assert_eq!(asked.len(), 4, "three pages and a watch: {asked:?}");
    }

    #[tokio::test]
    async fn more_than_a_page_is_an_error() {
        let (told, ended, asked) =
            follow(r#"{"items": [{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}"#, "").await;
        assert_eq!((told.len(), asked.len()), (0, 1));
        assert!(matches!(ended, TenantApiError::Request { .. }), "{ended:?}");
    }
}
