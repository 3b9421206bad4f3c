//! A log that is full or nearly so, and snapshots that fail.

use super::*;

fn put_bytes(key: &str, bytes: usize) -> Command {
    Command::Put(pb::PutRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: vec![b'v'; bytes].into(),
        ..Default::default()
    })
}

/// Fills the log until it takes nothing more of the size, behind the writers' backs.
fn fill(memory: &Memory) {
    memory.set_limit(memory.bytes() + 40);
}

#[tokio::test(start_paused = true)]
async fn a_full_log_is_made_room_in_before_there_is_a_writer() {
    let memory = Memory::new();
    let running = start(&memory, identity(1, 1)).await;
    for _ in 0..20 {
        running.store.submit(put_bytes("a", 100)).await.unwrap();
    }
    running.writer.abort();
    fill(&memory);
    let started = tokio::time::timeout(Duration::from_secs(60), start(&memory, identity(2, 1))).await;
    let running = started.expect("a writer begins");
    assert_eq!(write(&running.store, "b").await, Ok(22));
    running.stop().await;
}
