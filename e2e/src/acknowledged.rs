//! Clients of a cluster that write down what was acknowledged: afterwards all of it is there, in order, none twice.
//!
//! ```text
//!  append, some at once ▶ objects of each one after the other ┐
//!  count ───────────────▶ one object, read and changed        ├─▶ every acknowledged write is there, in order, none twice
//!  probe ───────────────▶ answers, and when                   ┘
//! ```
//!
//! What some write at once is in one batch of the store, which is left open as a whole when the store dies.

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

use crate::stack::client;

/// How long a client waits for an answer, and how often it asks for one.
pub const PROBE_EVERY: Duration = Duration::from_millis(50);
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
const COUNTER: &str = "counter";
const VALUE: &str = "value";

/// What was acknowledged, and when the API answered.
#[derive(Debug)]
pub struct Record {
    /// Objects that each client made one after the other, [`name_of`] by name.
    pub appended: Vec<u64>,
    /// Changes of one object.
    pub counted: u64,
    /// When each of them was acknowledged.
    pub changes: Vec<Instant>,
    /// Each answer.
    pub answers: Vec<Instant>,
}

/// The clients, while they run.
#[derive(Debug)]
pub struct Clients {
    kubeconfig: PathBuf,
    stop: Arc<AtomicBool>,
    appending: Vec<JoinHandle<Result<u64>>>,
    counting: JoinHandle<Result<(u64, Vec<Instant>)>>,
    probing: JoinHandle<Result<Vec<Instant>>>,
}

impl Clients {
    /// Begins to write to a cluster that answers; so many append at once.
    pub async fn begin(kubeconfig: &Path, appenders: usize) -> Result<Self> {
        let api: Api<ConfigMap> = Api::namespaced(client(kubeconfig).await?, "default");
        api.create(&PostParams::default(), &config_map(COUNTER, 0)).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut appending = Vec::new();
        for appender in 0..appenders {
            appending.push(tokio::spawn(append(appender, client(kubeconfig).await?, stop.clone())));
        }
        Ok(Self {
            appending,
            counting: tokio::spawn(count(client(kubeconfig).await?, stop.clone())),
            probing: tokio::spawn(probe(kubeconfig.to_owned(), stop.clone())),
            kubeconfig: kubeconfig.to_owned(),
            stop,
        })
    }

    /// Ends them, of a cluster that answers, and looks whether everything is there that was acknowledged.
    pub async fn end(self) -> Result<Record> {
        self.stop.store(true, Ordering::Relaxed);
        let (appended, counted, answers) = tokio::try_join!(try_join_all(self.appending), self.counting, self.probing)?;
        let (counted, changes) = counted?;
        let record = Record {
            appended: appended.into_iter().collect::<Result<_>>()?,
            counted,
            changes,
            answers: answers?,
        };
        check(&self.kubeconfig, &record).await?;
        Ok(record)
    }
}

impl Record {
    /// Objects that were made, of all clients.
    pub fn objects(&self) -> u64 {
        self.appended.iter().sum()
    }

    /// The longest time without an answer.
    pub fn longest_outage(&self) -> Duration {
        let gaps = self.answers.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    }
}

/// The name of an object that a client has appended.
pub fn name_of(appender: usize, number: u64) -> String {
    format!("{}{number:06}", prefix_of(appender))
}

/// What the names of all objects of a client begin with.
pub(crate) fn prefix_of(appender: usize) -> String {
    format!("appended-{appender}-")
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

/// The answer, if one came in time and says yes or no: what else came, or did not, leaves it open.
async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Option<Result<T, u16>> {
    match tokio::time::timeout(REQUEST_LIMIT, request).await {
        Ok(Ok(done)) => Some(Ok(done)),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Some(Err(status.code)),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Makes one object after the other. How many there must be, each with its number.
async fn append(appender: usize, client: Client, stop: Arc<AtomicBool>) -> Result<u64> {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let object = config_map(&name_of(appender, number), number);
        match answer(api.create(&PostParams::default(), &object)).await {
            // 409: an earlier try was done without an answer.
            Some(Ok(_) | Err(409)) => number += 1,
            Some(Err(code)) => bail!("creating {} was answered {code}", name_of(appender, number)),
            None => tokio::time::sleep(PROBE_EVERY).await,
        }
    }
    Ok(number)
}

/// Raises one object's number by one, again and again. Nobody else does. What it reached, and when each change was acknowledged.
async fn count(client: Client, stop: Arc<AtomicBool>) -> Result<(u64, Vec<Instant>)> {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let (mut reached, mut changes) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let Some(Ok(mut object)) = answer(api.get(COUNTER)).await else {
            tokio::time::sleep(PROBE_EVERY).await;
            continue;
        };
        let found = read(&object)?;
        // What was acknowledged is there; what was left open was done once, or not at all.
        ensure!(
            found == reached || found == reached + 1,
            "the counter is at {found} where {reached} was acknowledged"
        );
        reached = found;
        object.data = config_map(COUNTER, found + 1).data;
        match answer(api.replace(COUNTER, &PostParams::default(), &object)).await {
            Some(Ok(_)) => {
                reached = found + 1;
                changes.push(Instant::now());
            }
            Some(Err(404)) => bail!("the counter is gone"),
            Some(Err(_)) | None => {}
        }
    }
    Ok((reached, changes))
}

fn read(object: &ConfigMap) -> Result<u64> {
    let value = object.data.as_ref().and_then(|data| data.get(VALUE));
    Ok(value.context("an object without its value")?.parse()?)
}

/// When the API answered.
async fn probe(kubeconfig: PathBuf, stop: Arc<AtomicBool>) -> Result<Vec<Instant>> {
    let api: Api<Namespace> = Api::all(client(&kubeconfig).await?);
    let mut answers = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Some(Ok(_)) = answer(api.get("default")).await {
            answers.push(Instant::now());
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
    Ok(answers)
}

/// Looks whether everything is there that was acknowledged, in the order in which it was.
async fn check(kubeconfig: &Path, record: &Record) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client(kubeconfig).await?, "default");
    let objects = api.list(&ListParams::default()).await?.items;
    for (appender, appended) in record.appended.iter().copied().enumerate() {
        check_order(&objects, &prefix_of(appender), appended)?;
    }
    let (found, counted) = (read(&api.get(COUNTER).await?)?, record.counted);
    ensure!(
        found == counted || found == counted + 1,
        "the counter is at {found} where {counted} was acknowledged"
    );
    Ok(())
}

/// The same, of what one client has made.
fn check_order(objects: &[ConfigMap], prefix: &str, appended: u64) -> Result<()> {
    let mut stored = BTreeMap::new();
    for object in objects.iter().filter(|object| object.name_any().starts_with(prefix)) {
        let version: u64 = object.resource_version().context("no resourceVersion")?.parse()?;
        stored.insert(version, read(object)?);
    }
    let numbers: Vec<u64> = stored.into_values().collect();
    // The last one may have been made without an answer.
    let there = numbers.len() as u64;
    ensure!(
        there == appended || there == appended + 1,
        "{there} objects {prefix} are there where {appended} were acknowledged"
    );
    ensure!(
        numbers.iter().copied().eq(0..there),
        "objects {prefix} were made in another order"
    );
    ensure!(appended > 0, "no object {prefix} was acknowledged");
    Ok(())
}
