//! What a writer that stops leaves to whoever is next.

use super::*;

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// A writer that has stored large values, of which a snapshot was not due.
async fn with_unsaved() -> (Memory, Running) {
    let memory = Memory::new();
    let running = start(&memory, identity(1, 1)).await;
    for key in KEYS {
        running.store.submit(put_bytes(key, 300_000)).await.unwrap();
    }
    (memory, running)
}

/// How many records the next start has to read behind a snapshot.
async fn replayed(memory: &Memory) -> u64 {
    let loaded = Replica::load(&memory.open().0, &snapshots(memory)).await.unwrap();
    loaded.tail.replayed.1
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_its_end_so_that_the_next_start_reads_nothing_else() {
    let (memory, running) = with_unsaved().await;
    running.stop().await;
    assert_eq!(replayed(&memory).await, 0);
    assert_eq!(stored(&memory).await, KEYS);
    let next = start(&memory, identity(2, 1)).await;
    assert_eq!(write(&next.store, "e").await, Ok(6));
    next.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_snapshot_where_there_is_little_to_read() {
    let (memory, running) = started(&KEYS).await;
    running.stop().await;
    assert!(replayed(&memory).await > 4);
}

#[tokio::test(start_paused = true)]
async fn no_snapshot_that_takes_too_long() {
    let (memory, running) = with_unsaved().await;
    memory.messages().set_slowness(Duration::from_secs(9));
    let begun = Instant::now();
    running.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    memory.messages().set_slowness(Duration::ZERO);
    assert!(replayed(&memory).await > 4);
    assert_eq!(stored(&memory).await, KEYS);
}

#[tokio::test(start_paused = true)]
async fn its_snapshot_stands_in_nobodys_way() {
    let (memory, running) = with_unsaved().await;
    memory.messages().set_slowness(Duration::from_millis(500));
    let _ = running.stop.send(true);
    while !has_resigned(&memory) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let next = start(&memory, identity(2, 1)).await;
    write(&next.store, "e").await.unwrap();
    assert!(!running.writer.is_finished(), "the snapshot was stored first");
    running.stop().await;
    next.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b", "c", "d", "e"]);
}
