//! The state that a stopping writer leaves for the next start.

use super::*;

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// A writer that has stored large values and for which no snapshot was due.
async fn with_unsaved() -> (Memory, Running) {
    let memory = Memory::new();
    let running = start(&memory, identity(1, 1)).await;
    store_much(&running).await;
    (memory, running)
}

async fn store_much(running: &Running) {
    for key in KEYS {
        running.store.submit(put_bytes(key, 300_000)).await.unwrap();
    }
}

/// Bytes that the next start has to read behind a snapshot.
async fn replayed(memory: &Memory) -> u64 {
    let loaded = Replica::load(&memory.open().0, &snapshots(memory)).await.unwrap();
    loaded.tail.replayed.bytes
}

#[tokio::test(start_paused = true)]
async fn a_stopping_writer_stores_a_snapshot() {
    let (memory, running) = with_unsaved().await;
    running.stop().await;
    assert!(replayed(&memory).await < 1000);
    assert!(has_resigned(&memory));
    assert_eq!(stored(&memory).await, KEYS);
    let next = start(&memory, identity(2, 1)).await;
    assert_eq!(write(&next.store, "e").await, Ok(6));
    next.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_log_is_not_snapshotted_at_the_stop() {
    let (memory, running) = started(&KEYS).await;
    running.stop().await;
    assert_eq!(snapshots(&memory).count(u64::MAX).await.unwrap(), 0);
}

/// A cluster that was awake for long and hardly used.
#[tokio::test(start_paused = true)]
async fn only_very_many_heartbeats_lead_to_a_snapshot_at_the_stop() {
    for (hours, expected) in [(2, 0), (3, 1)] {
        let (memory, running) = started(&KEYS).await;
        tokio::time::sleep(Duration::from_secs(hours * 3600)).await;
        running.stop().await;
        assert_eq!(snapshots(&memory).count(u64::MAX).await.unwrap(), expected, "{hours}");
    }
}

#[tokio::test(start_paused = true)]
async fn replayed_changes_lead_to_a_snapshot_in_time() {
    let thresholds = SnapshotThresholds {
        age: Duration::from_secs(600),
        ..NEVER
    };
    for (keys, expected) in [(&[][..], 0), (&["a"], 1)] {
        let (memory, first) = started(keys).await;
        first.stop().await;
        let next = start_with(&memory, identity(2, 1), thresholds).await;
        tokio::time::sleep(Duration::from_secs(700)).await;
        next.stop().await;
        assert_eq!(snapshots(&memory).count(u64::MAX).await.unwrap(), expected, "{keys:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_slow_snapshot() {
    let (memory, running) = with_unsaved().await;
    memory.messages().set_slowness(Duration::from_secs(9));
    let started_at = Instant::now();
    running.stop().await;
    assert!(
        started_at.elapsed() < Duration::from_secs(7),
        "{:?}",
        started_at.elapsed()
    );
    memory.messages().set_slowness(Duration::ZERO);
    assert!(replayed(&memory).await > 1_000_000);
    assert_eq!(stored(&memory).await, KEYS);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_writer_accepts_writes_until_the_snapshot_is_stored() {
    let (memory, running) = with_unsaved().await;
    memory.messages().set_slowness(Duration::from_millis(200));
    let _ = running.stop.send(true);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!running.writer.is_finished());
    write(&running.store, "e").await.unwrap();
    running.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b", "c", "d", "e"]);
}

/// A cluster that sleeps often and is never awake for long.
#[tokio::test(start_paused = true)]
async fn many_stops_leave_two_snapshots() {
    let memory = Memory::new();
    for life in 1..=20 {
        let running = start(&memory, identity(life, 1)).await;
        store_much(&running).await;
        running.stop().await;
    }
    assert_eq!(snapshots(&memory).count(u64::MAX).await.unwrap(), 2);
    assert!(
        memory.records().len() > 80 && memory.first() > 60,
        "the log is cut behind the older one"
    );
}
