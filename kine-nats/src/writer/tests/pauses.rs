//! Reasons for which a snapshot stops pausing.

use super::*;

/// Longest duration of a snapshot of [`resting`] without pauses.
const UNRESTED: Duration = Duration::from_secs(4);
const RESTED: Duration = Duration::from_secs(9);

/// A writer of a store whose snapshot takes 2 s of work in 40 chunks, and has started.
async fn resting() -> (Memory, Running) {
    let memory = Memory::new();
    let thresholds = SnapshotThresholds {
        bytes: 16_000_000,
        ..NEVER
    };
    let running = start_with(&memory, identity(1, 1), thresholds).await;
    memory.messages().set_slowness(Duration::from_millis(50));
    for number in 0..40 {
        let large = put_bytes(&format!("/large/{number}"), 400_000);
        running.store.submit(large).await.unwrap();
    }
    while memory.messages().stored() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (memory, running)
}

/// Waits until the snapshot is stored.
async fn time_to_store(running: &Running) -> Duration {
    let started_at = Instant::now();
    while running.store.metrics.snapshots.get() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(started_at.elapsed() < Duration::from_secs(60), "no snapshot is stored");
    }
    started_at.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_unneeded_snapshot_is_not_hurried() {
    let (_memory, running) = resting().await;
    write(&running.store, "a").await.unwrap();
    let took = time_to_store(&running).await;
    assert!(took > RESTED - Duration::from_secs(2) && took < RESTED, "{took:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_half_due_next_snapshot_hurries_a_snapshot() {
    let (_memory, running) = resting().await;
    for _ in 0..21 {
        running.store.submit(put_bytes("a", 400_000)).await.unwrap();
    }
    let took = time_to_store(&running).await;
    assert!(took < UNRESTED, "{took:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_compaction_hurries_a_snapshot() {
    let (_memory, running) = resting().await;
    let store = &running.store;
    write(store, "a").await.unwrap();
    store.submit(Command::Compact(store.revision())).await.unwrap();
    let took = time_to_store(&running).await;
    assert!(took < UNRESTED + Duration::from_secs(1), "{took:?}");
    while running.store.read().mvcc.may_trim() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_log_hurries_a_snapshot() {
    let (memory, running) = resting().await;
    memory.set_limit(memory.bytes() + 40);
    let writing = running.write_soon("a");
    let took = time_to_store(&running).await;
    assert!(took < UNRESTED, "{took:?}");
    writing.await.unwrap().unwrap();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_the_writer_hurries_a_snapshot() {
    let (memory, running) = resting().await;
    let started_at = Instant::now();
    running.stop().await;
    assert!(started_at.elapsed() < UNRESTED, "{:?}", started_at.elapsed());
    assert_eq!(snapshots(&memory).count(u64::MAX).await.unwrap(), 1);
}
