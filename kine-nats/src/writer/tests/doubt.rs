//! Records with an unknown outcome, and logs with strange answers.

use super::*;

/// Another writer's epoch record, and `more` records behind it.
async fn succeed(memory: &Memory, more: u64) {
    let (log, _acks) = memory.open();
    let replica = Replica::load(&log, &snapshots(memory)).await.unwrap();
    let mut operations = Operations::default();
    operations.epoch(2000, "other");
    let mut header = Header {
        cluster: replica.tail.fencing.cluster,
        epoch: replica.tail.fencing.epoch + 1,
        writer: 99,
        incarnation: 1,
        previous: replica.tail.fencing.hash,
        base: replica.state.mvcc.head(),
    };
    let (record, mut hash) = codec::encode(&header, &operations);
    memory.push(record);
    for _ in 0..more {
        header.previous = hash;
        let (record, next) = codec::encode(&header, &Operations::default());
        hash = next;
        memory.push(record);
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_whose_successor_purged_the_log_ends() {
    let (memory, running) = started(&["a"]).await;
    succeed(&memory, 5).await;
    memory.purge(6);
    let ended = tokio::time::timeout(Duration::from_secs(5), running.writer).await;
    let ended = ended.expect("it ends").unwrap();
    assert!(
        matches!(
            ended,
            Err(WriterError::Overtaken {
                first: 6,
                acknowledged: 2
            })
        ),
        "{ended:?}"
    );
    assert!(!running.store.has_valid_lease());
}

#[tokio::test(start_paused = true)]
async fn writes_to_a_rejecting_log_are_retried_with_pauses() {
    let (memory, running) = started(&[]).await;
    memory.fail_publish(50);
    let started_at = Instant::now();
    assert_eq!(write(&running.store, "a").await, Ok(2));
    let took = started_at.elapsed();
    assert!(
        took > Duration::from_secs(3) && took < Duration::from_secs(6),
        "{took:?}"
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_lease_counts_from_the_first_send_of_the_epoch_record() {
    let memory = Memory::new();
    let (log, mut acks) = memory.open();
    let mut follower = follow(Replica::load(&log, &snapshots(&memory)).await.unwrap());
    memory.inject([Some(Fault::LoseAck)]);
    memory.fail_info(3);
    let started_at = clock::now();
    let sent = follower
        .take_over(&log, &snapshots(&memory), &mut acks, &identity(1, 1))
        .await
        .unwrap();
    assert!(clock::now() > started_at + LEASE);
    assert_eq!(sent, started_at);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_no_server_accepts_ends_the_writer() {
    let (memory, running) = started(&[]).await;
    memory.set_largest(10);
    assert_eq!(write(&running.store, "a").await, Err(RpcError::LeaderFailed));
    let ended = running.writer.await.unwrap();
    assert!(
        matches!(ended, Err(WriterError::Log(LogError::TooLarge { .. }))),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_writer_in_doubt_before_a_gap_ends() {
    let (memory, running) = started(&["a", "b", "c", "d"]).await;
    let hole = memory.len() as u64 + 1;
    memory.punch(hole);
    memory.inject([Some(Fault::LoseAck)]);
    let writes = [running.write_soon("e"), running.write_soon("f")];
    let ended = tokio::time::timeout(Duration::from_secs(10), running.writer).await;
    let ended = ended.expect("it ends").unwrap();
    let message = anyhow::Error::new(ended.unwrap_err()).to_string();
    assert!(
        message.contains(&format!("sequence {hole}")) && message.contains("kine-nats repair"),
        "{message}"
    );
    for write in writes {
        assert_eq!(write.await.unwrap(), Err(RpcError::LeaderFailed));
    }
    assert!(!running.store.has_valid_lease());
}

#[tokio::test(start_paused = true)]
async fn lost_records_are_stored_again() {
    let (memory, running) = started(&["a", "b", "c"]).await;
    let before = memory.records();
    memory.truncate(2);
    assert_eq!(write(&running.store, "d").await, Ok(5));
    assert_eq!(memory.records()[..4], before);
    running.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_was_only_reported_shorter_is_continued() {
    let (memory, running) = started(&["a", "b"]).await;
    let mut records = memory.records();
    memory.truncate(1);
    let waiting = running.write_soon("c");
    tokio::time::sleep(Duration::from_millis(200)).await;
    records.drain(..1);
    records.into_iter().for_each(|record| memory.push(record));
    assert_eq!(waiting.await.unwrap(), Ok(4));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_lost_more_than_the_writer_remembers_is_never_continued() {
    let (memory, running) = started(&[]).await;
    for _ in 0..5 {
        running.store.submit(put_bytes("a", 1 << 20)).await.unwrap();
    }
    memory.truncate(1);
    assert_eq!(write(&running.store, "c").await, Err(RpcError::LeaderFailed));
    let ended = running.writer.await.unwrap();
    assert!(
        matches!(
            ended,
            Err(WriterError::Lost {
                last: 1,
                acknowledged: 6,
                revision: 6
            })
        ),
        "{ended:?}"
    );
    let refused = open(&memory, &identity(2, 1)).await.map(|_| ());
    assert!(
        matches!(refused, Err(RecoverError::Behind { last: 1, known: 6, .. })),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_suspended_writer_answers_no_earlier_request() {
    // Enough records that two may be in flight.
    let (memory, running) = started(&["a", "b", "c", "d", "e"]).await;
    memory.delay_acks();
    let put = running.write_soon("f");
    tokio::time::sleep(Duration::from_millis(1)).await;
    // The writer is suspended, with an ack in its queue. Another one starts, and a client that has
    // seen that reads from the old one.
    succeed(&memory, 1).await;
    let store = Arc::clone(&running.store);
    let keep_alive = tokio::spawn(async move { store.submit(Command::KeepAlive(7)).await });
    tokio::time::advance(LEASE).await;
    memory.release_acks().await;
    let answer = keep_alive.await.unwrap();
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(put.await.unwrap(), Ok(7), "it was stored before");
    let ended = running.writer.await.unwrap();
    assert!(matches!(ended, Err(WriterError::Fenced { epoch: 2 })), "{ended:?}");
}
