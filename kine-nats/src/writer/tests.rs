//! The writer on a log that loses records and acks, and against other writers.

mod damage;
mod doubt;
mod foreign;
mod hostile;
mod leases;
mod leaving;
mod log_repair;
mod lost;
mod low_watermark;
mod pauses;
mod simulator;
mod space;
mod strict;
mod takeover;

use super::error::WriterError;
use super::pacing::{SnapshotConfig, SnapshotThresholds};
use super::task::PIPELINE;
use crate::clock;
use crate::codec::{self, Header, Operation, Operations};
use crate::command::{Answer, Command};
use crate::error::RpcError;
use crate::fuzz::seeds;
use crate::limits::LEASE;
use crate::log::memory::{Fault, Memory, MemoryLog};
use crate::log::{Ack, Log, LogError};
use crate::metrics::Metrics;
use crate::process::role_loop::{ProcessConfig, promote};
use crate::proto::etcdserverpb as pb;
use crate::quota::Quota;
use crate::replica::error::RecoverError;
use crate::replica::follower::{Follower, WriterIdentity};
use crate::replica::recover::Replica;
use crate::snapshot::Snapshots;
use crate::snapshot::memory::MemoryMessages;
use crate::store::Store;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::task::JoinSet;
use tokio::time::Instant;

type MemorySnapshots = Snapshots<MemoryMessages, MemoryLog>;

/// Runs a test with each of `count` seeds, in paused time that advances when all tasks are idle.
fn on_each_seed(count: u64, mut run: impl AsyncFnMut(u64)) {
    for seed in seeds(count) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let run = AssertUnwindSafe(|| runtime.block_on(run(seed)));
        assert!(catch_unwind(run).is_ok(), "SEED={seed} fails");
    }
}

fn snapshots(memory: &Memory) -> MemorySnapshots {
    Snapshots::new(memory.messages(), "snap".into(), Arc::new(memory.open().0))
}

struct Running {
    store: Arc<Store>,
    writer: JoinHandle<Result<(), WriterError>>,
    stop: watch::Sender<bool>,
}

fn identity(writer: u64, incarnation: u64) -> WriterIdentity {
    WriterIdentity {
        writer,
        incarnation,
        name: format!("w{writer}"),
    }
}

fn follow(replica: Replica) -> Follower {
    follow_with(replica, Some(u64::MAX))
}

fn follow_with(replica: Replica, quota: Option<u64>) -> Follower {
    let Replica { tail, state } = replica;
    let quota = Quota::new(quota, tail.info.limit);
    Follower::new(tail, Arc::new(Store::new(state, quota, Metrics::new(), None)))
}

async fn open(
    memory: &Memory,
    identity: &WriterIdentity,
) -> Result<(MemoryLog, mpsc::Receiver<Ack>, Follower, Duration), RecoverError> {
    let (log, mut acks) = memory.open();
    let mut follower = follow(Replica::load(&log, &snapshots(memory)).await?);
    let sent = follower
        .take_over(&log, &snapshots(memory), &mut acks, identity)
        .await?;
    Ok((log, acks, follower, sent))
}

const NEVER: SnapshotThresholds = SnapshotThresholds {
    bytes: u64::MAX,
    most: u64::MAX,
    records: u64::MAX,
    age: Duration::from_secs(9999),
};

fn always(thresholds: SnapshotThresholds) -> SnapshotConfig {
    SnapshotConfig {
        thresholds: Some(thresholds),
        ..SnapshotConfig::default()
    }
}

async fn start(memory: &Memory, identity: WriterIdentity) -> Running {
    start_with(memory, identity, NEVER).await
}

async fn start_with(memory: &Memory, identity: WriterIdentity, thresholds: SnapshotThresholds) -> Running {
    try_start(memory, identity, thresholds).await.unwrap()
}

async fn try_start(
    memory: &Memory,
    identity: WriterIdentity,
    thresholds: SnapshotThresholds,
) -> Result<Running, RecoverError> {
    let (log, acks, follower, sent) = open(memory, &identity).await?;
    let store = Arc::clone(&follower.store);
    let config = ProcessConfig {
        incarnation: identity.incarnation,
        snapshot_config: always(thresholds),
        ..config(0)
    };
    let writer = promote(follower, Arc::new(log), acks, snapshots(memory), &config, sent);
    let (stop, stopped) = watch::channel(false);
    Ok(Running {
        store,
        writer: tokio::spawn(writer.run(stopped)),
        stop,
    })
}

fn config(member: u64) -> ProcessConfig {
    ProcessConfig {
        member,
        incarnation: 0,
        name: String::new(),
        quota: Some(u64::MAX),
        snapshot_config: always(NEVER),
        strict_reads: false,
        metrics: Metrics::new(),
        peers: None,
        end_when_replaced: false,
    }
}

/// A writer on a new log that has stored these keys.
async fn started(keys: &[&str]) -> (Memory, Running) {
    let memory = Memory::new();
    let running = start(&memory, identity(1, 1)).await;
    for key in keys {
        write(&running.store, key).await.unwrap();
    }
    (memory, running)
}

fn put(key: &str) -> Command {
    put_bytes(key, 0)
}

fn put_bytes(key: &str, bytes: usize) -> Command {
    Command::Put(pb::PutRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: vec![b'v'; bytes].into(),
        ..Default::default()
    })
}

async fn write(store: &Store, key: &str) -> Result<i64, RpcError> {
    match store.submit(put(key)).await? {
        Answer::Put(answer) => Ok(answer.header.unwrap().revision),
        other => panic!("{other:?}"),
    }
}

/// Keys in log order, by the rules that every reader follows.
async fn stored(memory: &Memory) -> Vec<String> {
    let (log, _) = memory.open();
    let replica = Replica::load(&log, &snapshots(memory)).await.unwrap();
    replica
        .state
        .mvcc
        .changes(0)
        .map(|change| String::from_utf8(change.key().to_vec()).unwrap())
        .collect()
}

/// Whether the last record of a log is a resignation.
fn has_resigned(memory: &Memory) -> bool {
    let last = memory.records().pop().unwrap();
    matches!(codec::decode(&last).unwrap().operations.as_slice(), [Operation::Resign])
}

impl Running {
    /// Writes concurrently with other writers.
    fn write_soon(&self, key: impl Into<String>) -> JoinHandle<Result<i64, RpcError>> {
        let (store, key) = (Arc::clone(&self.store), key.into());
        tokio::spawn(async move { write(&store, &key).await })
    }

    /// Writes this many keys, each after the writer has received the one before; returns their
    /// revisions.
    async fn write_in_turn(&self, count: usize) -> Vec<i64> {
        let mut writes = Vec::new();
        for number in 0..count {
            writes.push(self.write_soon(format!("k{number}")));
            tokio::task::yield_now().await;
        }
        let answers = futures::future::join_all(writes).await;
        answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect()
    }

    async fn stop(self) {
        let _ = self.stop.send(true);
        self.writer.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn stored_writes_are_answered_before_the_writer_resigns() {
    let (memory, running) = started(&[]).await;
    assert_eq!(write(&running.store, "a").await, Ok(2));
    assert_eq!(write(&running.store, "b").await, Ok(3));
    assert_eq!(running.store.revision(), 3);
    running.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b"]);
    assert!(has_resigned(&memory));
}

#[tokio::test(start_paused = true)]
async fn waiting_writes_share_a_record() {
    let (memory, running) = started(&[]).await;
    let before = memory.records().len();
    let writes: Vec<_> = (0..500)
        .map(|number| running.write_soon(format!("k{number}")))
        .collect();
    let revisions = futures::future::join_all(writes).await;
    let revisions: BTreeSet<i64> = revisions.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
    assert_eq!(revisions, (2..502).collect(), "one revision each, without gaps");
    assert!(
        memory.records().len() - before < 250,
        "{} records",
        memory.records().len() - before
    );
    running.stop().await;
    assert_eq!(stored(&memory).await.len(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_record_in_doubt_is_stored_once_and_answered() {
    for fault in [Fault::LoseAck, Fault::LoseRecord, Fault::Refuse, Fault::Full] {
        let (memory, running) = started(&[]).await;
        memory.inject([None, Some(fault)]);
        let revisions: BTreeSet<i64> = running.write_in_turn(20).await.into_iter().collect();
        assert_eq!(revisions, (2..22).collect(), "{fault:?}");
        running.stop().await;
        assert_eq!(stored(&memory).await.len(), 20, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_writer_waits_and_continues() {
    let (memory, running) = started(&["a"]).await;
    memory.set_connected(false);
    let waiting = running.write_soon("b");
    tokio::time::sleep(LEASE).await;
    assert!(
        !running.store.has_valid_lease(),
        "reads are refused when the lease is over"
    );
    memory.set_connected(true);
    assert_eq!(waiting.await.unwrap(), Ok(3));
    assert!(running.store.has_valid_lease());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_challenger_waits_for_the_lease_and_the_old_writer_is_fenced() {
    let (memory, old) = started(&["a"]).await;
    // The old writer is cut off, as by SIGSTOP; its next record is not stored.
    memory.inject(std::iter::repeat_n(Some(Fault::LoseRecord), 1));
    let lost = old.write_soon("lost");
    tokio::time::sleep(Duration::from_millis(50)).await;
    old.writer.abort();
    let started_at = Instant::now();
    let new = start(&memory, identity(2, 2)).await;
    assert!(started_at.elapsed() >= LEASE, "{:?}", started_at.elapsed());
    write(&new.store, "b").await.unwrap();
    assert_eq!(lost.await.unwrap(), Err(RpcError::LeaderFailed));
    new.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_living_writer_is_fenced_by_a_later_epoch_only() {
    let (memory, running) = started(&["a"]).await;
    let (log, _acks) = memory.open();
    let replica = Replica::load(&log, &snapshots(&memory)).await.unwrap();
    let mut operations = Operations::default();
    operations.epoch(2000, "other");
    let header = Header {
        cluster: replica.tail.fencing.cluster,
        epoch: 2,
        writer: 2,
        incarnation: 1,
        previous: replica.tail.fencing.hash,
        base: replica.state.mvcc.head(),
    };
    memory.push(codec::encode(&header, &operations).0);
    assert_eq!(
        write(&running.store, "b").await,
        Err(RpcError::LeaderFailed),
        "never success for what is not stored"
    );
    assert!(matches!(
        running.writer.await.unwrap(),
        Err(WriterError::Fenced { epoch: 2 })
    ));
    assert!(!running.store.has_valid_lease());
    assert_eq!(stored(&memory).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_record_of_a_replaced_writer_is_skipped() {
    let (memory, old) = started(&["a"]).await;
    let template = codec::decode(memory.records().last().unwrap()).unwrap();
    old.stop().await;
    let new = start(&memory, identity(2, 1)).await;
    let late = Header {
        previous: template.hash,
        base: 2,
        ..template.header
    };
    memory.push(codec::encode(&late, &Operations::default()).0);
    assert_eq!(write(&new.store, "b").await, Ok(3));
    assert_eq!(write(&new.store, "c").await, Ok(4));
    new.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_record_before_the_first_one_is_skipped() {
    let (memory, old) = started(&["a"]).await;
    let template = codec::decode(memory.records().last().unwrap()).unwrap();
    old.stop().await;
    let new = start(&memory, identity(2, 1)).await;
    let late = |previous| {
        let header = Header {
            previous,
            base: 2,
            ..template.header.clone()
        };
        codec::encode(&header, &Operations::default()).0
    };
    // The late records arrive before the new writer's first records.
    for previous in [template.hash, 7] {
        memory.push(late(previous));
    }
    let revisions: BTreeSet<i64> = new.write_in_turn(8).await.into_iter().collect();
    assert_eq!(revisions, (3..11).collect());
    new.stop().await;
    assert_eq!(stored(&memory).await.len(), 9);
}

/// A log of a writer of an earlier version: its second record was accepted, its first was not.
#[tokio::test(start_paused = true)]
async fn a_log_with_a_successor_of_a_displaced_record_is_continued() {
    let (memory, old) = started(&["a"]).await;
    let late = memory.records().pop().unwrap();
    old.stop().await;
    let new = start(&memory, identity(2, 1)).await;
    let epoch = codec::decode(memory.records().last().unwrap()).unwrap();
    new.writer.abort();
    memory.push(late);
    let header = Header {
        previous: 99,
        base: 2,
        ..epoch.header
    };
    memory.push(codec::encode(&header, &Operations::default()).0);
    let next = start(&memory, identity(3, 1)).await;
    assert_eq!(write(&next.store, "b").await, Ok(3));
    next.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_resigned_writer_is_replaced_at_once_but_not_by_a_lower_incarnation() {
    let memory = Memory::new();
    start(&memory, identity(1, 5)).await.stop().await;
    let started_at = Instant::now();
    start(&memory, identity(2, 5)).await.stop().await;
    assert!(
        started_at.elapsed() < Duration::from_secs(1),
        "{:?}",
        started_at.elapsed()
    );
    let refused = open(&memory, &identity(3, 4)).await;
    assert!(matches!(refused, Err(RecoverError::Superseded { theirs: 5, ours: 4 })));
}
