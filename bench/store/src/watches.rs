//! Measures how late watches deliver events, and the cost of idle watches.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use tokio::sync::mpsc;
use yoke_bench_harness::Times;
use yoke_kine_nats::proto::mvccpb;

use crate::client::Watch;
use crate::phases::Keys;
use crate::stores::Running;
use crate::table::{Cell, Form};

/// Writes per second. The rate is the same for every store: otherwise a slower store would have
/// fewer events to deliver.
const RATE: u32 = 1_000;
/// Maximum wait for events after the last write.
const LATE: Duration = Duration::from_secs(10);
const IDLE_STREAMS: usize = 150;
const IDLE: Duration = Duration::from_secs(5);

/// Measures 10 and 100 watches during writes.
pub(crate) async fn run(
    store: &mut Running,
    keys: &Keys,
    length: Duration,
    rows: &mut impl FnMut(&str, Cell),
) -> Result<()> {
    rows("10 watches, 10 match", lag(store, keys, length, 10, 10).await?);
    rows("100 watches, 3 match", lag(store, keys, length, 100, 3).await?);
    Ok(())
}

/// Writes at a steady rate with `all` open watches. `matching` of them cover the written keys.
async fn lag(store: &mut Running, keys: &Keys, length: Duration, all: usize, matching: usize) -> Result<Cell> {
    let writes = u64::from(RATE) * length.as_millis() as u64 / 1000;
    let now = store.client()?.get("/registry/health").await?;
    let (sender, mut lags) = mpsc::unbounded_channel();
    let mut watching = tokio::task::JoinSet::new();
    for number in 0..all {
        let prefix = if number < matching {
            "/registry/pods/".to_owned()
        } else {
            format!("/registry/resource-{number}/")
        };
        // kube-apiserver uses a separate connection for each resource.
        let watch = store.client()?.watch(&prefix, now + 1).await?;
        watching.spawn(follow(watch, keys.clone(), sender.clone()));
    }
    drop(sender);
    let before = store.used()?;
    let written = write(keys, writes).await?;
    let expected = written * matching;
    let mut seen = Vec::with_capacity(expected);
    let limit = tokio::time::sleep(LATE);
    tokio::pin!(limit);
    while seen.len() < expected {
        tokio::select! {
            lag = lags.recv() => seen.push(lag.context("all watches have ended")?),
            () = &mut limit => break,
        }
    }
    let cpu = (store.used()?.cpu - before.cpu) / written as f64;
    let missing = (expected - seen.len()) as u64;
    let [median, slowest] = Times::from(seen).quantiles([0.5, 0.99]);
    Ok(Cell {
        form: Form::Lag,
        numbers: vec![median, slowest, cpu],
        problems: missing,
    })
}

/// Sends writes at the rate, even if earlier writes are not answered yet. Returns how many were
/// stored.
async fn write(keys: &Keys, writes: u64) -> Result<usize> {
    let begun = tokio::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..writes {
        tokio::time::sleep_until(begun + Duration::from_secs(1) / RATE * number as u32).await;
        let keys = keys.clone();
        tasks.spawn(async move { keys.put(number).await });
    }
    let mut stored = 0;
    while let Some(written) = tasks.join_next().await {
        match written? {
            Ok(()) => stored += 1,
            Err(error) => eprintln!("  a write under watches: {error:#}"),
        }
    }
    Ok(stored)
}

async fn follow(mut watch: Watch, keys: Keys, lags: mpsc::UnboundedSender<Duration>) -> Result<()> {
    loop {
        for event in watch.next().await? {
            if let Some(lag) = lag_of(&keys, event)? {
                let _ = lags.send(lag);
            }
        }
    }
}

fn lag_of(keys: &Keys, event: Bytes) -> Result<Option<Duration>> {
    let event = <mvccpb::Event as prost::Message>::decode(event)?;
    Ok(event.kv.and_then(|pair| keys.age(&pair.value)))
}

/// Measures the cost of watches while nothing is written: CPU time in milliseconds a second, and
/// memory.
pub(crate) async fn idle(store: &mut Running) -> Result<(f64, f64)> {
    let now = store.client()?.get("/registry/health").await?;
    let mut watches = Vec::new();
    for number in 0..IDLE_STREAMS {
        watches.push(
            store
                .client()?
                .watch(&format!("/registry/resource-{number}/"), now + 1)
                .await?,
        );
    }
    // Waits until the store has finished the work of the previous phases.
    tokio::time::sleep(IDLE / 2).await;
    let (before, begun) = (store.used()?, Instant::now());
    tokio::time::sleep(IDLE).await;
    let after = store.used()?;
    Ok((
        (after.cpu - before.cpu) / 1000.0 / begun.elapsed().as_secs_f64(),
        after.memory,
    ))
}
