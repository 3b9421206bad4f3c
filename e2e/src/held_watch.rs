//! A client that holds a watch, like a controller. When the watch ends, the client resumes it from
//! the last resourceVersion. If the API server answers that the version is too old, the client
//! lists again. A newly started API server knows no changes older than its own first list.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::acknowledged::{APPENDED, Record, name_of, prefix_of};

/// Delay before the client sends the next request.
const PAUSE: Duration = Duration::from_millis(200);
/// A watch without events for this long counts as broken, because the watched objects change
/// continuously.
const SILENCE: Duration = Duration::from_secs(10);
/// HTTP status for a resourceVersion that is too old.
const EXPIRED: u16 = 410;
/// Timeout of one watch request.
const WATCH_SECONDS: u32 = 280;

/// Events seen so far.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Names in the order of creation.
    made: Vec<String>,
    /// Number of watch requests.
    requests: usize,
    /// Number of lists after the first one.
    lists: usize,
    /// Longest time between two events.
    gap: Duration,
    /// Reason why the watch cannot continue.
    failure: Option<String>,
}

/// A watch of the ConfigMaps in the namespace `default`.
#[derive(Debug)]
pub struct HeldWatch {
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

impl HeldWatch {
    /// Starts the watch. Objects that are created from now on are seen.
    pub async fn start(client: Client) -> Result<Self> {
        let api: Api<ConfigMap> = Api::namespaced(client, "default");
        let list = api.list(&ListParams::default().limit(1)).await.context("listing")?;
        let version = list
            .metadata
            .resource_version
            .context("the list has no resourceVersion")?;
        let (sender, seen) = watch::channel(Seen::default());
        let task = tokio::spawn(async move {
            let Err(error) = hold(api, version, &sender).await;
            sender.send_modify(|seen| seen.failure = Some(format!("{error:#}")));
        });
        Ok(Self { seen, task })
    }

    /// Waits until the creation of an object was seen.
    pub async fn wait_for(&self, name: &str, limit: Duration) -> Result<()> {
        self.wait_until(name, limit, |made| made.iter().rev().any(|made| made == name))
            .await
    }

    /// Waits until the creation of `count` further objects was seen.
    pub async fn wait_for_more(&self, count: usize, limit: Duration) -> Result<()> {
        let count = self.seen.borrow().made.len() + count;
        self.wait_until(&format!("{count} objects"), limit, |made| made.len() >= count)
            .await
    }

    /// Waits until all objects of a record were seen.
    pub async fn wait_for_all(&self, record: &Record, limit: Duration) -> Result<()> {
        for (appender, appended) in record.appended.iter().enumerate() {
            let last = (appended.len() as u64).saturating_sub(1);
            self.wait_for(&name_of(appender, last), limit).await?;
        }
        Ok(())
    }

    async fn wait_until(&self, what: &str, limit: Duration, holds: impl Fn(&[String]) -> bool) -> Result<()> {
        let mut seen = self.seen.clone();
        let delivered = seen.wait_for(|seen| seen.failure.is_some() || holds(&seen.made));
        let delivered = tokio::time::timeout(limit, delivered).await;
        let delivered = delivered.with_context(|| format!("the watch did not deliver {what} within {limit:?}"))?;
        let failure = delivered.context("the task of the watch panicked")?.failure.clone();
        failure.map_or(Ok(()), |failure| Err(anyhow!("the watch cannot continue: {failure}")))
    }

    /// Number of watch requests so far.
    pub fn requests(&self) -> usize {
        self.seen.borrow().requests
    }

    /// Longest time between two events, and number of lists after the first one.
    pub fn interruptions(&self) -> (Duration, usize) {
        let seen = self.seen.borrow();
        (seen.gap, seen.lists)
    }

    /// Ends the watch. Fails unless it delivered all objects of a record once and in order.
    pub fn check(self, record: &Record) -> Result<()> {
        let made = self.stop()?;
        for (appender, appended) in record.appended.iter().enumerate() {
            let expected = (0..appended.len() as u64).map(|number| name_of(appender, number));
            let of_this = |name: &&String| name.starts_with(&prefix_of(appender));
            let delivered: Vec<_> = made.iter().filter(of_this).collect();
            ensure!(
                expected.eq(delivered.iter().copied().cloned()),
                "the watch delivered {} of {} objects, or in another order",
                delivered.len(),
                appended.len()
            );
        }
        Ok(())
    }

    /// Ends the watch. Returns the names of created objects, once for each event.
    pub fn stop(self) -> Result<Vec<String>> {
        self.task.abort();
        let seen = self.seen.borrow();
        match &seen.failure {
            Some(failure) => bail!("the watch could not continue: {failure}"),
            None => Ok(seen.made.clone()),
        }
    }
}

async fn hold(api: Api<ConfigMap>, mut version: String, seen: &watch::Sender<Seen>) -> Result<Infallible> {
    let mut last = Instant::now();
    loop {
        match follow(&api, &mut version, &mut last, seen).await? {
            End::Interrupted => tokio::time::sleep(PAUSE).await,
            End::Expired => list_again(&api, &mut version, seen).await?,
        }
    }
}

/// Why a watch ended.
enum End {
    /// The watch can be resumed.
    Interrupted,
    /// The API server no longer knows the version.
    Expired,
}

/// Watches until the watch ends.
async fn follow(
    api: &Api<ConfigMap>,
    version: &mut String,
    last: &mut Instant,
    seen: &watch::Sender<Seen>,
) -> Result<End> {
    let parameters = WatchParams::default().timeout(WATCH_SECONDS);
    seen.send_modify(|seen| seen.requests += 1);
    let mut events = match tokio::time::timeout(SILENCE, api.watch(&parameters, version)).await {
        Ok(Ok(events)) => events.boxed(),
        Ok(Err(kube::Error::Api(status))) if status.code == EXPIRED => return Ok(End::Expired),
        // The cluster is asleep or unreachable.
        Ok(Err(_)) | Err(_) => return Ok(End::Interrupted),
    };
    while let Ok(Some(Ok(event))) = tokio::time::timeout(SILENCE, events.next()).await {
        match event {
            WatchEvent::Added(object) => {
                *version = to_version(&object)?;
                seen.send_modify(|seen| {
                    seen.made.push(object.name_any());
                    seen.gap = seen.gap.max(last.elapsed());
                });
                *last = Instant::now();
            }
            WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                let name = object.name_any();
                ensure!(
                    !name.starts_with(APPENDED),
                    "{name} was changed or deleted unexpectedly"
                );
                *version = to_version(&object)?;
            }
            WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
            WatchEvent::Error(status) if status.code == EXPIRED => return Ok(End::Expired),
            WatchEvent::Error(_) => break,
        }
    }
    Ok(End::Interrupted)
}

/// Adds the objects that were created since the watch ended, in order.
async fn list_again(api: &Api<ConfigMap>, version: &mut String, seen: &watch::Sender<Seen>) -> Result<()> {
    let listed = tokio::time::timeout(SILENCE, api.list(&ListParams::default())).await;
    let Ok(Ok(list)) = listed else {
        tokio::time::sleep(PAUSE).await;
        return Ok(());
    };
    let mut objects = Vec::new();
    for object in list.items {
        objects.push((to_version(&object)?.parse::<u64>()?, object.name_any()));
    }
    objects.sort();
    seen.send_modify(|seen| {
        seen.lists += 1;
        let known: BTreeSet<_> = seen.made.iter().cloned().collect();
        let new = objects
            .into_iter()
            .map(|(_, name)| name)
            .filter(|name| !known.contains(name));
        seen.made.extend(new);
    });
    *version = list
        .metadata
        .resource_version
        .context("the list has no resourceVersion")?;
    Ok(())
}

fn to_version(object: &ConfigMap) -> Result<String> {
    object.resource_version().context("the object has no resourceVersion")
}
