//! Clients of a cluster that record which writes were acknowledged. At the end, every acknowledged
//! write must be present, in order, and exactly once. A write that was applied twice has another
//! resourceVersion than the acknowledged one.
//!
//! ```text
//!  append (several) ─▶ objects, one after the other     ┐
//!  count ────────────▶ one object, read and changed     ├─▶ every acknowledged write is present, in order, once
//!  probe ────────────▶ answers, and their times         ┘
//! ```
//!
//! Concurrent writes share one batch of the store. If the store dies, the outcome of the whole
//! batch is unknown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt as _};
use tokio::task::JoinHandle;

use crate::stack::{client, configuration};

/// Interval between requests of a client that got no answer.
pub const PROBE_EVERY: Duration = Duration::from_millis(50);
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Timeout for each client's last answer, from a healthy cluster.
const LAST_LIMIT: Duration = Duration::from_secs(60);
/// Prefix of all names of appended objects.
pub(crate) const APPENDED: &str = "appended-";
const COUNTER: &str = "counter";
const VALUE: &str = "value";

/// For each object that one client created: the acknowledged resourceVersion, or `None` if the
/// creation was not acknowledged.
pub type Appended = Vec<Option<u64>>;

/// The acknowledged writes, and the times of the API's answers.
#[derive(Debug)]
pub struct Record {
    /// Objects that each client created one after the other, named by [`name_of`].
    pub appended: Vec<Appended>,
    /// Changes of one object.
    pub counted: Counted,
    /// Time of each acknowledged change.
    pub changes: Vec<Instant>,
    /// Time of each answer.
    pub answers: Vec<Instant>,
}

/// State of an object with a number that one client increments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Last acknowledged number.
    pub reached: u64,
    /// resourceVersion of the object with that number. `None` while the outcome of a further
    /// increment is unknown.
    version: Option<u64>,
}

/// The running clients.
#[derive(Debug)]
pub struct Clients {
    kubeconfig: PathBuf,
    stop: Arc<AtomicBool>,
    appending: Vec<JoinHandle<Result<Appended>>>,
    counting: JoinHandle<Result<(Counted, Vec<Instant>)>>,
    probe: Probe,
}

/// A client that checks continuously whether the API answers.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<AtomicBool>,
    probing: JoinHandle<Result<Vec<Instant>>>,
}

impl Probe {
    /// Starts the client.
    pub async fn start(kubeconfig: &Path) -> Result<Self> {
        let (client, stop) = (connect(kubeconfig).await?, Arc::default());
        let probing = tokio::spawn(probe(client, Arc::clone(&stop)));
        Ok(Self { stop, probing })
    }

    /// Stops the client after one more answer. Returns the time of each answer.
    pub async fn stop(self) -> Result<Vec<Instant>> {
        self.stop.store(true, Ordering::Relaxed);
        let answers = tokio::time::timeout(LAST_LIMIT, self.probing).await;
        answers.context("waiting for the last answer")??
    }
}

impl Clients {
    /// Starts the clients on a healthy cluster. `appenders` clients append concurrently.
    pub async fn start(kubeconfig: &Path, appenders: usize) -> Result<Self> {
        let api: Api<ConfigMap> = Api::namespaced(connect(kubeconfig).await?, "default");
        api.create(&PostParams::default(), &config_map(COUNTER, 0)).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut appending = Vec::new();
        for appender in 0..appenders {
            appending.push(tokio::spawn(append(appender, connect(kubeconfig).await?, stop.clone())));
        }
        Ok(Self {
            appending,
            counting: tokio::spawn(count(connect(kubeconfig).await?, stop.clone())),
            probe: Probe::start(kubeconfig).await?,
            kubeconfig: kubeconfig.to_owned(),
            stop,
        })
    }

    /// Stops each client after one more answer of the healthy cluster, and checks that every
    /// acknowledged write is present.
    pub async fn stop(self) -> Result<Record> {
        self.stop.store(true, Ordering::Relaxed);
        let written = async { tokio::try_join!(try_join_all(self.appending), self.counting) };
        let written = tokio::time::timeout(LAST_LIMIT, written).await;
        let (appended, counted) = written.context("waiting for the last write")??;
        let (counted, changes) = counted?;
        let record = Record {
            appended: appended.into_iter().collect::<Result<_>>()?,
            counted,
            changes,
            answers: self.probe.stop().await?,
        };
        check(&self.kubeconfig, &record).await?;
        Ok(record)
    }
}

impl Record {
    /// Number of objects that all clients created.
    pub fn objects(&self) -> u64 {
        self.appended.iter().map(|appended| appended.len() as u64).sum()
    }

    /// Longest time without an answer.
    pub fn longest_outage(&self) -> Duration {
        longest_gap(&self.answers)
    }
}

/// Longest time between two answers.
pub fn longest_gap(answers: &[Instant]) -> Duration {
    let gaps = answers.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}

/// Name of an appended object.
pub fn name_of(appender: usize, number: u64) -> String {
    format!("{}{number:06}", prefix_of(appender))
}

/// Prefix of the names of one client's objects.
pub(crate) fn prefix_of(appender: usize) -> String {
    format!("{APPENDED}{appender}-")
}

fn config_map(name: &str, value: u64) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([(VALUE.to_owned(), value.to_string())].into()),
        ..ConfigMap::default()
    }
}

/// Result of a request whose outcome is known: success, 404 or 409. `None` for any other error and
/// for a timeout.
async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Option<Result<T, u16>> {
    match tokio::time::timeout(REQUEST_LIMIT, request).await {
        Ok(Ok(done)) => Some(Ok(done)),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Some(Err(status.code)),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// A client without automatic retries: a hidden retry may repeat a write that was applied.
async fn connect(kubeconfig: &Path) -> Result<Client> {
    let mut config = configuration(kubeconfig).await?;
    config.default_retry = false;
    Client::try_from(config).context("making a client")
}

/// Creates one object after the other.
async fn append(appender: usize, client: Client, stop: Arc<AtomicBool>) -> Result<Appended> {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let (mut appended, mut is_open) = (Appended::new(), false);
    loop {
        let number = appended.len() as u64;
        let name = name_of(appender, number);
        let object = config_map(&name, number);
        match answer(api.create(&PostParams::default(), &object)).await {
            Some(Ok(made)) => appended.push(Some(version_of(&made)?)),
            // An earlier attempt was applied but not acknowledged.
            Some(Err(409)) if is_open => appended.push(None),
            Some(Err(code)) => bail!("creating {name} failed with status {code}"),
            None => {
                is_open = true;
                tokio::time::sleep(PROBE_EVERY).await;
                continue;
            }
        }
        is_open = false;
        if stop.load(Ordering::Relaxed) {
            return Ok(appended);
        }
    }
}

/// Increments one object's number repeatedly, as the only writer. Returns the last state and the
/// time of each acknowledged change.
async fn count(client: Client, stop: Arc<AtomicBool>) -> Result<(Counted, Vec<Instant>)> {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let (mut counted, mut changes) = (Counted::default(), Vec::new());
    loop {
        let Some(Ok(mut object)) = answer(api.get(COUNTER)).await else {
            tokio::time::sleep(PROBE_EVERY).await;
            continue;
        };
        let found = counted.check(&object)?;
        counted.reached = found;
        object.data = config_map(COUNTER, found + 1).data;
        match answer(api.replace(COUNTER, &PostParams::default(), &object)).await {
            Some(Ok(changed)) => {
                counted = Counted {
                    reached: found + 1,
                    version: Some(version_of(&changed)?),
                };
                changes.push(Instant::now());
                if stop.load(Ordering::Relaxed) {
                    return Ok((counted, changes));
                }
            }
            Some(Err(404)) => bail!("the counter does not exist"),
            // The write was certainly not applied.
            Some(Err(_)) => {}
            None => counted.version = None,
        }
    }
}

impl Counted {
    /// Returns the object's current number. Fails unless it equals the acknowledged state, or the
    /// unacknowledged increment was applied once.
    fn check(&self, object: &ConfigMap) -> Result<u64> {
        let (found, version) = (read(object)?, version_of(object)?);
        let as_acknowledged = found == self.reached && self.version.is_none_or(|known| known == version);
        ensure!(
            as_acknowledged || (self.version.is_none() && found == self.reached + 1),
            "the counter is at {found} in version {version} after {self:?}"
        );
        Ok(found)
    }
}

fn version_of(object: &ConfigMap) -> Result<u64> {
    Ok(object
        .resource_version()
        .context("the object has no resourceVersion")?
        .parse()?)
}

fn read(object: &ConfigMap) -> Result<u64> {
    let value = object.data.as_ref().and_then(|data| data.get(VALUE));
    Ok(value.context("the object has no value")?.parse()?)
}

/// Records the times of the API's answers.
async fn probe(client: Client, stop: Arc<AtomicBool>) -> Result<Vec<Instant>> {
    let api: Api<Namespace> = Api::all(client);
    let mut answers = Vec::new();
    loop {
        if let Some(Ok(_)) = answer(api.get("default")).await {
            answers.push(Instant::now());
            if stop.load(Ordering::Relaxed) {
                return Ok(answers);
            }
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// Checks that every acknowledged write is present, in order.
async fn check(kubeconfig: &Path, record: &Record) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client(kubeconfig).await?, "default");
    let objects = api.list(&ListParams::default()).await?.items;
    for (appender, appended) in record.appended.iter().enumerate() {
        check_order(&objects, &prefix_of(appender), appended)?;
    }
    record.counted.check(&api.get(COUNTER).await?)?;
    Ok(())
}

/// Checks the objects that one client created.
fn check_order(objects: &[ConfigMap], prefix: &str, appended: &Appended) -> Result<()> {
    let mut stored = BTreeMap::new();
    for object in objects.iter().filter(|object| object.name_any().starts_with(prefix)) {
        stored.insert(version_of(object)?, read(object)?);
    }
    ensure!(!appended.is_empty(), "no object {prefix} was acknowledged");
    ensure!(
        stored.len() == appended.len(),
        "{} objects {prefix} exist, but {} were acknowledged",
        stored.len(),
        appended.len()
    );
    for ((version, number), (expected, acknowledged)) in stored.into_iter().zip((0u64..).zip(appended)) {
        ensure!(
            number == expected,
            "object {prefix}{number} is in the place of {expected}"
        );
        ensure!(
            acknowledged.is_none_or(|acknowledged| acknowledged == version),
            "object {prefix}{number} has version {version}, but {acknowledged:?} was acknowledged"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &str, value: u64, version: u64) -> ConfigMap {
        let mut object = config_map(name, value);
        object.metadata.resource_version = Some(version.to_string());
        object
    }

    #[test]
    fn missing_and_repeated_writes_are_found() {
        let made = |objects: &[(u64, u64)]| -> Vec<ConfigMap> {
            let name = |number| name_of(0, number);
            objects
                .iter()
                .map(|(number, version)| stored(&name(*number), *number, *version))
                .collect()
        };
        let acknowledged = vec![Some(3), None, Some(9)];
        for (rule, objects, met) in [
            ("as acknowledged", made(&[(0, 3), (1, 7), (2, 9)]), true),
            ("an object is lost", made(&[(0, 3), (2, 9)]), false),
            (
                "an object that no client created",
                made(&[(0, 3), (1, 7), (2, 9), (3, 11)]),
                false,
            ),
            ("two objects in another order", made(&[(0, 3), (1, 10), (2, 9)]), false),
            ("an object was created twice", made(&[(0, 3), (1, 7), (2, 12)]), false),
        ] {
            let found = check_order(&objects, &prefix_of(0), &acknowledged);
            assert_eq!(found.is_ok(), met, "{rule}: {found:?}");
        }
        let (closed, open) = (
            Counted {
                reached: 5,
                version: Some(20),
            },
            Counted {
                reached: 5,
                version: None,
            },
        );
        for (rule, counted, value, version, met) in [
            ("as acknowledged", closed, 5, 20, true),
            ("a change was applied twice", closed, 5, 21, false),
            ("an increment that no client made", closed, 6, 21, false),
            ("an increment is lost", closed, 4, 20, false),
            ("the unacknowledged increment was not applied", open, 5, 20, true),
            ("the unacknowledged increment was applied", open, 6, 21, true),
            ("the unacknowledged increment was applied twice", open, 7, 22, false),
        ] {
            let found = counted.check(&stored(COUNTER, value, version));
            assert_eq!(found.is_ok(), met, "{rule}: {found:?}");
        }
    }
}
