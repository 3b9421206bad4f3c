//! Recovering from the log and becoming its writer, while other processes truncate it.

use super::*;

/// Stores a snapshot of the log's end, as its writer does.
async fn snapshot(memory: &Memory) {
    let snapshots = snapshots(memory);
    let Replica { tail, state } = Replica::load(&memory.open().0, &snapshots).await.unwrap();
    let leases = state.leases.terms();
    let state = std::sync::RwLock::new(state);
    let pin = crate::snapshot::SnapshotPoint::new(&state, tail.fencing, leases);
    snapshots.store_and_purge(&state, &pin).await.unwrap();
}

async fn load(memory: &Memory) -> Result<Replica, RecoverError> {
    let (log, snapshots) = (memory.open().0, snapshots(memory));
    let loading = Replica::load(&log, &snapshots);
    tokio::time::timeout(Duration::from_secs(30), loading)
        .await
        .expect("it ends")
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_snapshot_is_not_ahead_of_the_log() {
    let (memory, running) = started(&["a"]).await;
    let (copy, store) = (memory.clone(), Arc::clone(&running.store));
    memory.at_info(async move {
        write(&store, "b").await.unwrap();
        snapshot(&copy).await;
    });
    load(&memory).await.unwrap();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_concurrently_purged_log_is_read_from_the_next_snapshot() {
    let (memory, running) = started(&["a"]).await;
    let (copy, store) = (memory.clone(), Arc::clone(&running.store));
    memory.at_info(async move {
        for key in ["b", "c"] {
            write(&store, key).await.unwrap();
            snapshot(&copy).await;
        }
    });
    assert_eq!(load(&memory).await.unwrap().state.mvcc.visible(), 4);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_behind_the_purged_log_reads_the_snapshot() {
    let (memory, running) = started(&["a"]).await;
    let (log, mut acks) = memory.open();
    let mut follower = follow(load(&memory).await.unwrap());
    for key in ["b", "c", "d"] {
        write(&running.store, key).await.unwrap();
        snapshot(&memory).await;
    }
    assert!(memory.first() > follower.tail.fencing.sequence + 1);
    running.stop().await;
    follower
        .take_over(&log, &snapshots(&memory), &mut acks, &identity(2, 1))
        .await
        .unwrap();
    assert_eq!(follower.store.revision(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_log_with_a_gap_is_an_error() {
    let (memory, running) = started(&["a", "b", "c"]).await;
    running.stop().await;
    memory.purge(3);
    let refused = load(&memory).await.unwrap_err();
    assert!(matches!(refused, RecoverError::NoSnapshot { first: 3 }), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_epoch_record_is_retried_with_pauses() {
    let memory = Memory::new();
    memory.fail_publish(50);
    let started_at = Instant::now();
    start(&memory, identity(1, 1)).await.stop().await;
    assert!(
        started_at.elapsed() > Duration::from_secs(3),
        "{:?}",
        started_at.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_writer_has_one_record_in_flight_until_old_ones_cannot_arrive() {
    let (memory, running) = started(&[]).await;
    let mut tasks = JoinSet::new();
    let mut in_flight = Vec::new();
    for round in 0..6 {
        let before = memory.records().len();
        memory.delay_acks();
        for number in 0..6 {
            let store = Arc::clone(&running.store);
            tasks.spawn(async move { write(&store, &format!("{round}-{number}")).await.unwrap() });
            // Each is a record of its own if the pipeline allows it.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        in_flight.push(memory.records().len() - before);
        memory.release_acks().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Each round ends with one more record for all waiting requests.
    assert_eq!(in_flight, [1, 1, PIPELINE, PIPELINE, PIPELINE, PIPELINE]);
    tasks.join_all().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_retains_compacted_revisions_for_its_watches() {
    let (memory, running) = started(&["a"]).await;
    let follower = follow(load(&memory).await.unwrap());
    let store = Arc::clone(&follower.store);
    let following = tokio::spawn({
        let memory = memory.clone();
        async move {
            let ((log, mut acks), mut follower) = (memory.open(), follower);
            let snapshots = snapshots(&memory);
            follower.take_over(&log, &snapshots, &mut acks, &identity(2, 1)).await
        }
    });
    for _ in 0..3 {
        write(&running.store, "a").await.unwrap();
    }
    running.store.submit(Command::Compact(5)).await.unwrap();
    while store.read().mvcc.compacted() < 5 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(store.read().mvcc.remembers(3), "watches get the changes first");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!store.read().mvcc.remembers(3), "the history is freed later");
    following.abort();
    running.stop().await;
}
