//! A log that is full or nearly full, and snapshots that fail.

use super::*;

/// A writer whose first snapshot, due after ten keys, could not be stored.
async fn started_without_snapshot() -> (Memory, Running) {
    let memory = Memory::new();
    let thresholds = SnapshotThresholds { records: 10, ..NEVER };
    memory.messages().set_left(Some(0));
    let running = start_with(&memory, identity(1, 1), thresholds).await;
    for _ in 0..10 {
        write(&running.store, "a").await.unwrap();
    }
    (memory, running)
}

/// Fills the log, without the writers' knowledge, until it accepts no further record of the size.
fn fill(memory: &Memory) {
    memory.set_limit(memory.bytes() + 40);
}

#[tokio::test(start_paused = true)]
async fn a_full_log_is_freed_while_a_lease_is_granted() {
    let (memory, running) = started(&[]).await;
    for _ in 0..20 {
        running.store.submit(put_bytes("a", 100)).await.unwrap();
    }
    fill(&memory);
    let answer = running.store.submit(Command::Grant { id: 7, ttl: 60 }).await;
    assert!(answer.is_ok(), "{answer:?}");
    write(&running.store, "b").await.unwrap();
    running.stop().await;
    let replica = Replica::load(&memory.open().0, &snapshots(&memory)).await.unwrap();
    assert!(replica.state.leases.get(7).is_some());
    assert!(memory.first() > 10, "{}", memory.first());
}

#[tokio::test(start_paused = true)]
async fn a_full_log_is_freed_before_there_is_a_writer() {
    let (memory, running) = started(&[]).await;
    for _ in 0..20 {
        running.store.submit(put_bytes("a", 100)).await.unwrap();
    }
    running.writer.abort();
    fill(&memory);
    let started = tokio::time::timeout(Duration::from_secs(60), start(&memory, identity(2, 1))).await;
    let running = started.expect("a writer starts");
    assert_eq!(write(&running.store, "b").await, Ok(22));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_snapshot_is_tried_again_after_seconds() {
    let (memory, running) = started_without_snapshot().await;
    let started_at = Instant::now();
    tokio::time::sleep(Duration::from_millis(100)).await;
    memory.messages().set_left(None);
    while memory.messages().counts().is_empty() {
        assert!(started_at.elapsed() < Duration::from_secs(5), "not tried again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(
        started_at.elapsed() > Duration::from_secs(1),
        "{:?}",
        started_at.elapsed()
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_puts_are_rejected_before_the_log_is_full() {
    let memory = Memory::new();
    memory.set_limit(200_000);
    let running = start(&memory, identity(1, 1)).await;
    let store = &running.store;
    // No snapshot frees space.
    memory.messages().set_left(Some(0));
    let mut refused = None;
    for _ in 0..300 {
        if let Err(refusal) = store.submit(put_bytes("a", 1000)).await {
            refused = Some(refusal);
            break;
        }
    }
    assert_eq!(refused, Some(RpcError::NoSpace));
    assert!(memory.bytes() < 155_000 && store.is_full());
    let granted = store.submit(Command::Grant { id: 7, ttl: 600 }).await;
    assert_eq!(granted.unwrap_err(), RpcError::NoSpace);
    store.submit(Command::Compact(store.revision())).await.unwrap();
    let delete = pb::DeleteRangeRequest {
        key: "a".into(),
        ..Default::default()
    };
    store.submit(Command::DeleteRange(delete)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(
        store.read_latest(|state| state.mvcc.latest(b"a").is_none()).await,
        Ok(true)
    );
    assert_eq!(store.submit(put_bytes("a", 1)).await.unwrap_err(), RpcError::NoSpace);
    // Puts are accepted again once two snapshots are stored.
    memory.messages().set_left(None);
    tokio::time::sleep(Duration::from_secs(40)).await;
    store.submit(put_bytes("a", 1)).await.unwrap();
    assert!(!store.is_full() && memory.bytes() < 10_000, "{}", memory.bytes());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn puts_continue_after_the_limit_is_raised() {
    let memory = Memory::new();
    memory.set_limit(200_000);
    let running = start(&memory, identity(1, 1)).await;
    memory.messages().set_left(Some(0));
    while running.store.submit(put_bytes("a", 1000)).await.is_ok() {}
    assert!(running.store.is_full());
    memory.set_limit(400_000);
    tokio::time::sleep(Duration::from_secs(31)).await;
    running.store.submit(put_bytes("a", 1000)).await.unwrap();
    assert!(!running.store.is_full());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn puts_are_rejected_early_after_the_limit_is_lowered() {
    let memory = Memory::new();
    memory.set_limit(1_000_000);
    let running = start(&memory, identity(1, 1)).await;
    let store = &running.store;
    memory.messages().set_left(Some(0));
    for _ in 0..100 {
        store.submit(put_bytes("a", 1000)).await.unwrap();
    }
    memory.set_limit(memory.bytes() + 30_000);
    tokio::time::sleep(Duration::from_secs(31)).await;
    for _ in 0..40 {
        assert_eq!(store.submit(put_bytes("a", 1000)).await.unwrap_err(), RpcError::NoSpace);
    }
    let delete = pb::DeleteRangeRequest {
        key: "a".into(),
        ..Default::default()
    };
    store.submit(Command::DeleteRange(delete)).await.unwrap();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unconfigured_quota_follows_the_limit() {
    let memory = Memory::new();
    memory.set_limit(200_000);
    let first = start(&memory, identity(1, 1)).await;
    let (log, mut acks) = memory.open();
    let loaded = Replica::load(&log, &snapshots(&memory)).await.unwrap();
    let mut follower = follow_with(loaded, None);
    let store = Arc::clone(&follower.store);
    assert_eq!(store.quota.bytes(), 50_000);
    memory.set_limit(400_000);
    first.stop().await;
    let sent = follower
        .take_over(&log, &snapshots(&memory), &mut acks, &identity(2, 1))
        .await
        .unwrap();
    assert_eq!(store.quota.bytes(), 100_000);
    let writer = promote(follower, Arc::new(log), acks, snapshots(&memory), &config(2), sent);
    let (_stop, stopped) = watch::channel(false);
    let writing = tokio::spawn(writer.run(stopped));
    memory.set_limit(800_000);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(store.quota.bytes(), 200_000);
    writing.abort();
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_limited_in_bytes() {
    let (memory, running) = started(&["a"]).await;
    memory.set_connected(false);
    let mut tasks = JoinSet::new();
    for number in 0..100 {
        let store = Arc::clone(&running.store);
        tasks.spawn(async move { store.submit(put_bytes(&number.to_string(), 1 << 20)).await });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waiting = running.store.waiting();
    assert!(waiting <= 64 << 20, "{waiting}");
    memory.set_connected(true);
    assert!(tasks.join_all().await.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(running.store.waiting(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_log_does_not_wait_for_the_pause_after_failed_snapshots() {
    let (memory, running) = started_without_snapshot().await;
    // Failed after 0, 3, 9, 21 and 45 seconds; the next would start after 75.
    tokio::time::sleep(Duration::from_secs(48)).await;
    memory.messages().set_left(None);
    fill(&memory);
    assert_eq!(write(&running.store, "b").await, Ok(12));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn snapshots_that_free_no_space_are_not_repeated_quickly() {
    let (memory, running) = started(&["a"]).await;
    memory.inject(std::iter::repeat_n(Some(Fault::Full), 120));
    tokio::time::sleep(Duration::from_secs(30)).await;
    let snapshots = running.store.metrics.snapshots.get();
    assert!((2..=6).contains(&snapshots), "{snapshots}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    write(&running.store, "b").await.unwrap();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn snapshots_at_a_start_are_not_repeated_quickly() {
    let (memory, running) = started(&["a"]).await;
    running.stop().await;
    let before = memory.messages().stored();
    memory.inject(std::iter::repeat_n(Some(Fault::Full), 100));
    let running = start(&memory, identity(2, 1)).await;
    let stored = memory.messages().stored() - before;
    assert!((4..=16).contains(&stored), "{stored} messages");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn chunks_of_a_failed_start_are_removed() {
    use crate::snapshot::Messages;
    let (memory, running) = started(&[]).await;
    for _ in 0..20 {
        running.store.submit(put_bytes("a", 100)).await.unwrap();
    }
    running.writer.abort();
    let stray = format!("snap.c.{}.dead", memory.records().len());
    memory.messages().store(stray.clone(), Bytes::new()).await.unwrap();
    // No snapshot can be stored as long as it exists.
    memory.messages().set_left(Some(0));
    fill(&memory);
    let copy = memory.clone();
    let starting = tokio::spawn(async move { start(&copy, identity(2, 1)).await });
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!memory.messages().counts().contains_key(&stray));
    memory.messages().set_left(None);
    starting.await.unwrap().stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_ends_before_a_snapshot_is_not_purged() {
    let (memory, running) = started(&["a"]).await;
    running.stop().await;
    let snapshots = snapshots(&memory);
    let Replica { tail, state } = Replica::load(&memory.open().0, &snapshots).await.unwrap();
    let leases = state.leases.terms();
    let state = std::sync::RwLock::new(state);
    let pin = crate::snapshot::SnapshotPoint::new(&state, tail.fencing, leases);
    snapshots.store_and_purge(&state, &pin).await.unwrap();
    memory.truncate(1);
    snapshots.store_and_purge(&state, &pin).await.unwrap();
    assert_eq!(memory.first(), 1);
}
