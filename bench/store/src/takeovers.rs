//! Measures how long no write succeeds after the writer process is killed, while another process
//! can take over.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use rustix::process::Signal;
use tokio::time::timeout;
use yoke_bench_harness::Times;

use crate::client::Client;
use crate::process::{Cores, Process};
use crate::stores::{Kind, Running, Store};
use crate::table::Cell;

const VALUE: Bytes = Bytes::from_static(b"value");
const FOLLOW: &[&str] = &["--follow"];
/// Timeout for a write before it is sent again, because the killed process may never answer.
const PATIENCE: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(60);

/// Kills the writer `times` times. The killed process is then started again, and follows the new
/// writer.
pub(crate) async fn run(store: Store, times: usize, cores: &Cores, rows: &mut impl FnMut(&str, Cell)) -> Result<()> {
    let gaps = match store.kind {
        Kind::Etcd(_) => of_etcd(store, times, cores).await?,
        Kind::KineNats(_) | Kind::GoKine => of_kine_nats(store, times, cores).await?,
    };
    let gaps = Times::from(gaps);
    for (what, share) in [("median", 0.5), ("longest", 1.0)] {
        let seconds = gaps.quantile(share) / 1000.0;
        rows(
            &format!("takeover after SIGKILL, {what} of {times}, s"),
            Cell::number(seconds, 2),
        );
    }
    Ok(())
}

async fn of_kine_nats(store: Store, times: usize, cores: &Cores) -> Result<Vec<Duration>> {
    let first = Running::start(store, cores, FOLLOW).await?;
    let second = first.beside(cores, FOLLOW).await?;
    let mut processes = [first, second];
    let mut gaps = Vec::new();
    for number in 0..times {
        let [writer, follower] = &mut processes;
        gaps.push(gap(&mut writer.front, &follower.client()?, number).await?);
        writer.front.begin()?;
        writer.ready().await?;
        processes.swap(0, 1);
    }
    Ok(gaps)
}

async fn of_etcd(store: Store, times: usize, cores: &Cores) -> Result<Vec<Duration>> {
    let mut running = Running::start(store, cores, &[]).await?;
    let mut gaps = Vec::new();
    for number in 0..times {
        let other = running.client_behind()?;
        gaps.push(gap(&mut running.front, &other, number).await?);
        running.front.begin()?;
        running.ready().await?;
        running.lead().await?;
    }
    Ok(gaps)
}

/// Kills the writer, and returns the time until another process writes.
async fn gap(writer: &mut Process, other: &Client, number: usize) -> Result<Duration> {
    let write = async |name: &str| {
        let key = format!("/registry/{name}/{number}");
        matches!(timeout(PATIENCE, other.put(&key, 0, VALUE)).await, Ok(Ok(_)))
    };
    let begun = Instant::now();
    // An answered write shows that the other process has found the writer.
    while !write("before").await {
        ensure!(
            begun.elapsed() < LIMIT,
            "nothing is written before the writer is killed"
        );
    }
    writer.end(Signal::KILL)?;
    let killed = Instant::now();
    // A write that the killed process received may return an error, and may have been stored
    // nevertheless.
    while !write("after").await {
        ensure!(
            killed.elapsed() < LIMIT,
            "nothing is written after the writer was killed"
        );
    }
    Ok(killed.elapsed())
}
