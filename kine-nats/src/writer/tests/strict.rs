//! Reads that wait for the log, whether or not the lease is valid.

use super::*;
use crate::process::role_loop::run_cycle;
use crate::role::Outcome;

/// A writer with a few keys, which may already have more than one record in flight.
async fn started(strict_reads: bool) -> (Memory, Arc<Store>, watch::Sender<bool>) {
    let memory = Memory::new();
    let (stores, mut store) = watch::channel(None);
    let (stop, stopped) = watch::channel(false);
    let plan = ProcessConfig {
        strict_reads,
        ..config(1 << 16)
    };
    let ((log, acks), snapshots) = (memory.open(), snapshots(&memory));
    tokio::spawn(async move { run_cycle(Arc::new(log), acks, snapshots, &plan, 0, &stores, stopped).await });
    let store: Arc<Store> = store.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    for key in ["a", "b", "c", "d", "e"] {
        write(&store, key).await.unwrap();
    }
    (memory, store, stop)
}

fn read_soon(store: &Arc<Store>) -> JoinHandle<Result<i64, RpcError>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { store.read_latest(|state| state.mvcc.visible()).await })
}

fn write_soon(store: &Arc<Store>) -> JoinHandle<Result<i64, RpcError>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { write(&store, "f").await })
}

/// Lets all tasks run until they are idle, in far less than a lease.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_strict_read_waits_for_a_record_that_it_shares() {
    let (memory, store, _stop) = started(true).await;
    let before = memory.len();
    memory.delay_acks();
    let mut reads: Vec<_> = (0..10).map(|_| read_soon(&store)).collect();
    settle().await;
    assert_eq!(memory.len(), before + 1);
    // The record in flight was sent before this read arrived.
    reads.push(read_soon(&store));
    settle().await;
    assert_eq!(memory.len(), before + 2);
    assert!(store.has_valid_lease() && reads.iter().all(|read| !read.is_finished()));
    memory.release_acks().await;
    for read in reads {
        assert_eq!(read.await.unwrap(), Ok(6));
    }
    assert_eq!(memory.len(), before + 2);
}

#[tokio::test(start_paused = true)]
async fn any_other_read_is_answered_under_the_lease() {
    let (memory, store, _stop) = started(false).await;
    let before = memory.len();
    memory.delay_acks();
    let read = read_soon(&store);
    settle().await;
    assert!(read.is_finished());
    assert_eq!(memory.len(), before);
}

#[tokio::test(start_paused = true)]
async fn a_later_write_answers_a_strict_read() {
    let (memory, store, _stop) = started(true).await;
    let before = memory.len();
    memory.delay_acks();
    let mut writes = Vec::new();
    for _ in 0..PIPELINE {
        writes.push(write_soon(&store));
        settle().await;
    }
    let read = read_soon(&store);
    writes.push(write_soon(&store));
    settle().await;
    assert_eq!(memory.len(), before + PIPELINE);
    memory.release_acks().await;
    assert_eq!(read.await.unwrap(), Ok(9));
    assert_eq!(memory.len(), before + PIPELINE + 1);
}

#[tokio::test(start_paused = true)]
async fn other_strict_requests_wait_like_a_strict_read() {
    let (memory, store, _stop) = started(true).await;
    let before = memory.len();
    memory.delay_acks();
    let epoch = store.epoch();
    let [first, second] = [Arc::clone(&store), Arc::clone(&store)];
    // A request through the writer that changes nothing, and a follower's read.
    let leases = tokio::spawn(async move { first.submit(Command::Leases).await });
    settle().await;
    let barrier = tokio::spawn(async move { second.submit_here(epoch, Command::Barrier).await });
    settle().await;
    assert!(!leases.is_finished() && !barrier.is_finished());
    assert_eq!(memory.len(), before + 2);
    memory.release_acks().await;
    assert!(matches!(leases.await.unwrap(), Ok(Answer::Leases(_))));
    let answer = barrier.await.unwrap();
    assert!(
        matches!(answer, Outcome::Done(Ok(Answer::Barrier { revision: 6, .. }))),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_strict_read_fails_without_the_log() {
    let (memory, store, _stop) = started(true).await;
    memory.set_connected(false);
    assert_eq!(read_soon(&store).await.unwrap(), Err(RpcError::Timeout));
    memory.set_connected(true);
    assert_eq!(read_soon(&store).await.unwrap(), Ok(6));
}
