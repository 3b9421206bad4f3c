//! Logs that end before acknowledged records while no live process remembers them: the low
//! watermark shows the loss, or the server reports it.

use super::*;
use crate::process::repair::{RepairError, Repaired, repair_store};

async fn load(memory: &Memory) -> Result<Replica, RecoverError> {
    Replica::load(&memory.open().0, &snapshots(memory)).await
}

/// Stops all processes like a power failure, `later` after the keys were written.
async fn died(keys: &[&str], later: Duration) -> Memory {
    let (memory, running) = started(keys).await;
    tokio::time::sleep(later).await;
    running.writer.abort();
    let _ = running.writer.await;
    memory
}

fn dropped(loaded: Result<Replica, RecoverError>) -> u64 {
    match loaded {
        Err(RecoverError::Dropped { last, .. }) => last,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_without_records_acknowledged_at_a_clean_stop_is_rejected() {
    let (memory, running) = started(&["a", "b"]).await;
    running.stop().await;
    let records = memory.records();
    // The last record is the resignation of the writer.
    memory.truncate(records.len() - 1);
    load(&memory).await.unwrap();
    memory.truncate(records.len() - 2);
    let refused = load(&memory).await;
    let Err(RecoverError::Behind { last, known, revision }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((last, known, revision), (2, 3, 3));
}

#[tokio::test(start_paused = true)]
async fn acknowledged_records_are_known_some_seconds_before_a_power_failure() {
    let memory = died(&["a", "b"], Duration::from_secs(6)).await;
    memory.truncate(2);
    let refused = load(&memory).await;
    assert!(
        matches!(
            refused,
            Err(RecoverError::Behind {
                last: 2,
                known: 3..,
                revision: 3
            })
        ),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_the_server_reports_is_detected() {
    let memory = died(&["a", "b"], Duration::ZERO).await;
    memory.lose(2);
    assert_eq!(dropped(load(&memory).await), 2);
}

#[tokio::test(start_paused = true)]
async fn an_idle_store_does_not_raise_the_low_watermark() {
    let (memory, running) = started(&["a"]).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (messages, records) = (memory.messages(), memory.len());
    let before = messages.stored();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(messages.stored(), before);
    assert!(memory.len() > records + 40, "signs of life");
    write(&running.store, "b").await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(messages.stored(), before + 1);
    running.stop().await;
    assert_eq!(messages.stored(), before + 1, "it is there already");
}

#[tokio::test(start_paused = true)]
async fn restored_records_do_not_prevent_a_start() {
    let (memory, running) = started(&["a", "b"]).await;
    memory.lose(2);
    assert_eq!(write(&running.store, "c").await, Ok(4));
    tokio::time::sleep(Duration::from_secs(1)).await;
    running.writer.abort();
    start(&memory, identity(2, 1)).await.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b", "c"]);
}

/// The store that starts waits for it.
#[tokio::test(start_paused = true)]
async fn a_starting_store_waits_for_a_living_writer_to_restore_records() {
    let (memory, running) = started(&["a", "b"]).await;
    memory.lose(2);
    let loaded = load(&memory).await.unwrap();
    assert_eq!(loaded.state.mvcc.visible(), 3);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_continues_only_with_records_that_it_restored() {
    for (length, restored) in [(2, true), (4, false)] {
        let (memory, running) = started(&["a", "b", "c"]).await;
        let (log, mut acks) = memory.open();
        let mut follower = follow(load(&memory).await.unwrap());
        running.writer.abort();
        // A record that no process has read.
        memory.push(memory.records()[0].clone());
        memory.lose(length);
        let snapshots = snapshots(&memory);
        let result = follower.take_over(&log, &snapshots, &mut acks, &identity(2, 1)).await;
        match result {
            Ok(_) if restored => {}
            Err(RecoverError::Dropped { last: 4, .. }) if !restored => {}
            other => panic!("{length}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_accepts_a_loss_while_the_server_reports_it() {
    let memory = died(&["a", "b"], Duration::ZERO).await;
    memory.lose(2);
    memory.let_purge_ahead();
    let (log, snapshots) = (memory.open().0, snapshots(&memory));
    let refused = repair_store(&log, &snapshots, 1000, false).await;
    assert!(
        matches!(
            refused,
            Err(RepairError::NotAccepted(RecoverError::Dropped { last: 2, .. }))
        ),
        "{refused:?}"
    );
    let repaired = repair_store(&log, &snapshots, 1000, true).await.unwrap();
    // Behind every record that a process may remember alone.
    let (sequence, revision) = (65_539, 1002);
    assert_eq!(repaired, Repaired::Bumped { sequence, revision });
    assert_ne!(log.info().await.unwrap().lost.bytes, 0);
    let running = start(&memory, identity(2, 1)).await;
    assert_eq!(write(&running.store, "c").await, Ok(1003));
    running.stop().await;
    assert_eq!(
        repair_store(&log, &snapshots, 1000, true).await.unwrap(),
        Repaired::Nothing
    );

    // The server restarts and no longer reports the loss; then it drops more.
    memory.clear_loss();
    let running = start(&memory, identity(3, 1)).await;
    write(&running.store, "d").await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    write(&running.store, "e").await.unwrap();
    running.writer.abort();
    memory.lose(memory.len() - 1);
    dropped(load(&memory).await);
}

#[tokio::test(start_paused = true)]
async fn a_repair_keeps_readable_records_below_the_low_watermark() {
    let (memory, running) = started(&["a", "b", "c"]).await;
    running.stop().await;
    memory.truncate(3);
    memory.let_purge_ahead();
    let repaired = repair_store(&memory.open().0, &snapshots(&memory), 1000, true)
        .await
        .unwrap();
    let Repaired::Bumped { revision, sequence } = repaired else {
        panic!("{repaired:?}")
    };
    assert_eq!((revision, sequence), (1003, 65_541));
    let state = load(&memory).await.unwrap().state;
    assert_eq!((state.mvcc.keys(), state.mvcc.visible()), (2, 1003));
}
