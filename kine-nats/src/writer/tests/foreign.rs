//! Messages in the log that no process of this store wrote. NATS stores a reply under any reply
//! subject, so the reply to any client's request may end up in the log.

use super::*;

fn junk() -> Bytes {
    Bytes::from_static(br#"{"type":"io.nats.jetstream.api.v1.stream_info_response"}"#)
}

/// The first record of another store.
async fn another_store() -> Bytes {
    let other = Memory::new();
    start(&other, identity(77, 1)).await.stop().await;
    other.records().remove(0)
}

#[tokio::test(start_paused = true)]
async fn messages_of_other_stores_are_skipped() {
    let memory = Memory::new();
    memory.push(junk());
    let running = start(&memory, identity(1, 1)).await;
    write(&running.store, "a").await.unwrap();
    for number in 0..4 {
        write(&running.store, &format!("b{number}")).await.unwrap();
    }
    let foreign = [junk(), Bytes::new(), another_store().await, Bytes::from_static(b"KNL")];
    for message in foreign.clone() {
        memory.push(message);
        assert_eq!(running.write_in_turn(4).await.len(), 4);
    }
    running.stop().await;
    memory.push(junk());
    let running = start(&memory, identity(2, 1)).await;
    write(&running.store, "d").await.unwrap();
    running.stop().await;
    assert_eq!(stored(&memory).await.len(), 5 + 16 + 1);
}

#[tokio::test(start_paused = true)]
async fn copies_of_records_are_skipped() {
    let (memory, running) = started(&["a"]).await;
    running.store.submit(Command::Grant { id: 7, ttl: 600 }).await.unwrap();
    // A heartbeat.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    for record in memory.records() {
        memory.push(record);
    }
    assert_eq!(write(&running.store, "b").await, Ok(3));
    running.stop().await;
    let resign = memory.records().pop().unwrap();
    memory.push(resign);
    let running = start(&memory, identity(2, 1)).await;
    for record in memory.records() {
        memory.push(record);
    }
    assert_eq!(write(&running.store, "c").await, Ok(4));
    running.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_of_this_store_ends_the_writer() {
    let (memory, running) = started(&["a"]).await;
    let mut damaged = memory.records().pop().unwrap().to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    memory.push(damaged.into());
    assert_eq!(write(&running.store, "b").await, Err(RpcError::LeaderFailed));
    let ended = running.writer.await.unwrap();
    assert!(
        matches!(ended, Err(WriterError::Codec(codec::CodecError::Hash))),
        "{ended:?}"
    );
    let refused = open(&memory, &identity(2, 1)).await.map(|_| ());
    assert!(
        matches!(refused, Err(RecoverError::Codec { sequence: 3, .. })),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_ack_of_a_displaced_record_does_not_confirm_the_next_one() {
    let (memory, running) = started(&["a", "b", "c", "d", "e"]).await;
    memory.delay_acks();
    memory.push(another_late_record(&memory).await);
    let mut writes = Vec::new();
    for key in ["f", "g"] {
        writes.push(running.write_soon(key));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = writes.pop().unwrap();
    assert_eq!(writes.pop().unwrap().await.unwrap(), Ok(7));
    tokio::time::sleep(Duration::from_millis(100)).await;
    memory.release_acks().await;
    assert_eq!(second.await.unwrap(), Ok(8));
    running.stop().await;
    assert_eq!(stored(&memory).await, ["a", "b", "c", "d", "e", "f", "g"]);
}

/// A record of a replaced writer.
async fn another_late_record(memory: &Memory) -> Bytes {
    let template = codec::decode(memory.records().last().unwrap()).unwrap();
    let header = Header {
        epoch: 0,
        writer: 9,
        ..template.header
    };
    codec::encode(&header, &Operations::default()).0
}
