//! Logs that end before acknowledged records.

use super::*;

/// The epoch record of a writer that found a truncated log.
fn epoch_behind(memory: &Memory, epoch: u64) -> Bytes {
    let last = codec::decode(memory.records().last().unwrap()).unwrap();
    let mut operations = Operations::default();
    operations.epoch(2000, "other");
    let header = Header {
        epoch,
        writer: 99,
        previous: last.hash,
        ..last.header
    };
    codec::encode(&header, &operations).0
}

#[tokio::test(start_paused = true)]
async fn records_lost_just_after_a_start_are_stored_again() {
    let (memory, running) = started(&["a"]).await;
    running.stop().await;
    let running = start(&memory, identity(2, 1)).await;
    let before = memory.records();
    memory.truncate(before.len() - 3);
    assert_eq!(write(&running.store, "b").await, Ok(3));
    assert_eq!(memory.records()[..before.len()], before);
    running.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn an_emptied_log_is_filled_again() {
    let (memory, running) = started(&["a"]).await;
    memory.truncate(0);
    assert_eq!(write(&running.store, "b").await, Ok(3));
    running.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_writer_repairs_its_log_before_a_takeover() {
    let (memory, running) = started(&["a", "b", "c"]).await;
    memory.truncate(2);
    let copy = memory.clone();
    let challenger = tokio::spawn(async move { open(&copy, &identity(2, 1)).await.map(|_| ()) });
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(!challenger.is_finished(), "{:?}", challenger.await);
    challenger.abort();
    assert_eq!(write(&running.store, "d").await, Ok(5));
    running.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn a_displaced_writer_does_not_disturb_its_successor() {
    let (memory, running) = started(&["a", "b", "c"]).await;
    memory.truncate(1);
    memory.push(epoch_behind(&memory, 2));
    assert_eq!(write(&running.store, "d").await, Err(RpcError::LeaderFailed));
    let ended = running.writer.await.unwrap();
    assert!(
        matches!(
            ended,
            Err(WriterError::Lost {
                last: 2,
                acknowledged: 4,
                ..
            })
        ),
        "{ended:?}"
    );
    let snapshots = snapshots(&memory).newest().await.unwrap();
    assert!(snapshots.is_none(), "nothing stands in the way");
    start(&memory, identity(3, 1)).await.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_waits_for_the_writer_to_repair_the_log() {
    let (memory, running) = started(&["a"]).await;
    let (log, mut acks) = memory.open();
    let mut follower = follow(Replica::load(&log, &snapshots(&memory)).await.unwrap());
    running.writer.abort();
    let mut records = memory.records();
    memory.truncate(1);
    let copy = memory.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(2900)).await;
        records.drain(..1);
        records.into_iter().for_each(|record| copy.push(record));
    });
    let snapshots = snapshots(&memory);
    let result = follower
        .take_over(&log, &snapshots, &mut acks, &identity(2, 1))
        .await
        .map(|_| ());
    assert!(result.is_ok(), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_follower_restores_records_of_a_lost_writer() {
    let (memory, running) = started(&["a", "b", "c"]).await;
    let (log, mut acks) = memory.open();
    let mut follower = follow(Replica::load(&log, &snapshots(&memory)).await.unwrap());
    running.writer.abort();
    let records = memory.records();
    memory.truncate(2);
    let snapshots = snapshots(&memory);
    follower
        .take_over(&log, &snapshots, &mut acks, &identity(2, 1))
        .await
        .unwrap();
    assert_eq!(memory.records()[..records.len()], records);
    assert_eq!(stored(&memory).await, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_follower_does_not_overwrite_an_epoch_on_a_shortened_log() {
    let (memory, running) = started(&["a", "b", "c"]).await;
    let (log, mut acks) = memory.open();
    let mut follower = follow(Replica::load(&log, &snapshots(&memory)).await.unwrap());
    running.writer.abort();
    memory.truncate(1);
    memory.push(epoch_behind(&memory, 2));
    let records = memory.records();
    let snapshots = snapshots(&memory);
    let refused = follower.take_over(&log, &snapshots, &mut acks, &identity(2, 1)).await;
    let Err(RecoverError::Behind { last, known, revision }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((last, known, revision), (2, 4, 4));
    assert_eq!(memory.records(), records);
}
