//! Expiry of leases, and the answers about them.

use super::*;
use crate::grpc::node::Node;
use pb::lease_server::Lease;
use tonic::Request;

#[tokio::test(start_paused = true)]
async fn an_unstored_lease_is_not_reported() {
    let (memory, running) = started(&[]).await;
    let (_sender, receiver) = watch::channel(Some(Arc::clone(&running.store)));
    let node = Node::new(receiver, Duration::from_secs(60), Vec::new());
    write(&running.store, "a").await.unwrap();
    memory.delay_acks();
    let store = Arc::clone(&running.store);
    let granting = tokio::spawn(async move { store.submit(Command::Grant { id: 7, ttl: 60 }).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    let soon = Duration::from_millis(500);
    let early = tokio::time::timeout(soon, node.lease_leases(Request::new(pb::LeaseLeasesRequest {}))).await;
    assert!(early.is_err(), "{early:?}");
    let one = pb::LeaseTimeToLiveRequest { id: 7, keys: true };
    let early = tokio::time::timeout(soon, node.lease_time_to_live(Request::new(one))).await;
    assert!(early.is_err(), "{early:?}");
    memory.release_acks().await;
    granting.await.unwrap().unwrap();
    let answer = node
        .lease_leases(Request::new(pb::LeaseLeasesRequest {}))
        .await
        .unwrap();
    assert_eq!(answer.into_inner().leases, [pb::LeaseStatus { id: 7 }]);
    let answer = node.lease_time_to_live(Request::new(one)).await.unwrap().into_inner();
    assert_eq!((answer.granted_ttl, answer.header.unwrap().revision), (60, 2));
    let none = pb::LeaseTimeToLiveRequest { id: 8, keys: true };
    assert_eq!(
        node.lease_time_to_live(Request::new(none))
            .await
            .unwrap()
            .into_inner()
            .ttl,
        -1
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn leases_expire_and_restart_with_a_new_writer() {
    let (memory, running) = started(&[]).await;
    running.store.submit(Command::Grant { id: 7, ttl: 2 }).await.unwrap();
    for key in ["b", "a"] {
        put_with_lease(&running.store, key.into(), 7).await;
    }
    running.stop().await;
    let running = start(&memory, identity(2, 1)).await;
    assert_eq!(running.store.revision(), 3);
    let started_at = Instant::now();
    while running.store.revision() == 3 {
        assert!(started_at.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        started_at.elapsed() > Duration::from_millis(1500),
        "{:?}",
        started_at.elapsed()
    );
    assert_eq!(running.store.revision(), 4, "all keys of a lease go at one revision");
    running.stop().await;
    assert_eq!(stored(&memory).await, ["b", "a", "a", "b"]);
}

/// Busy writers fill the pipeline as soon as it has room.
#[tokio::test(start_paused = true)]
async fn expired_leases_end_before_waiting_writes() {
    let (memory, running) = started(&["a", "b", "c", "d"]).await;
    running.store.submit(Command::Grant { id: 7, ttl: 2 }).await.unwrap();
    put_with_lease(&running.store, "leased".into(), 7).await;
    // The remaining lease is shorter than the time after which a record is in doubt.
    tokio::time::sleep(Duration::from_secs(1)).await;
    memory.delay_acks();
    let mut writes = Vec::new();
    for number in 0..PIPELINE + 2 {
        writes.push(running.write_soon(format!("k{number}")));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(1300)).await;
    memory.release_acks().await;
    for write in writes {
        write.await.unwrap().unwrap();
    }
    running.stop().await;
    let stored = stored(&memory).await;
    assert_eq!(stored[4..], ["leased", "k0", "k1", "leased", "k2", "k3"]);
}

async fn put_with_lease(store: &Store, key: String, lease: i64) {
    let request = pb::PutRequest {
        key: key.into(),
        lease,
        ..Default::default()
    };
    store.submit(Command::Put(request)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn leases_keep_their_ttl_after_an_outage() {
    let (memory, running) = started(&[]).await;
    running.store.submit(Command::Grant { id: 7, ttl: 5 }).await.unwrap();
    put_with_lease(&running.store, "a".into(), 7).await;
    memory.set_connected(false);
    tokio::time::sleep(Duration::from_secs(20)).await;
    memory.set_connected(true);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(running.store.revision(), 2, "the lease could not be renewed");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(running.store.revision(), 3);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn leases_keep_their_ttl_after_a_suspend() {
    let (_memory, running) = started(&[]).await;
    running.store.submit(Command::Grant { id: 7, ttl: 5 }).await.unwrap();
    put_with_lease(&running.store, "a".into(), 7).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    // All tasks stand still meanwhile, but the clock runs.
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(running.store.revision(), 2, "the lease could not be renewed");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(running.store.revision(), 3);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn leases_with_many_keys_end_in_several_records() {
    let (memory, running) = started(&[]).await;
    for lease in 1..=30 {
        running
            .store
            .submit(Command::Grant { id: lease, ttl: 5 })
            .await
            .unwrap();
        for key in 0..100 {
            put_with_lease(&running.store, format!("{lease}-{key}"), lease).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    running.stop().await;
    let revoked = memory.records().into_iter().map(|record| {
        let operations = codec::decode(&record).unwrap().operations;
        let ends = |operation: &&Operation| matches!(operation, Operation::Revoke { .. });
        operations.iter().filter(ends).count()
    });
    let revoked: Vec<usize> = revoked.filter(|count| *count > 0).collect();
    assert_eq!(revoked.iter().sum::<usize>(), 30);
    assert!(revoked.iter().all(|count| *count <= 10), "{revoked:?}");
}
