//! Tests which snapshots are retained, found and purged, whatever order they were stored in.

use super::*;
use crate::log::memory::{Memory, MemoryLog};
use crate::mvcc::Mvcc;
use crate::snapshot::memory::MemoryMessages;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::{Instant, sleep};

type Stored = Snapshots<MemoryMessages, MemoryLog>;

/// A log of some records, and the state at its end.
fn bench(records: u64) -> (Memory, Stored, RwLock<State>) {
    let memory = Memory::new();
    for _ in 0..records {
        memory.push(Bytes::from_static(b"record"));
    }
    let snapshots = Snapshots::new(memory.messages(), "snap".into(), Arc::new(memory.open().0));
    let mut state = State::new(Mvcc::new());
    state.mvcc.advance();
    state.put(b"a", b"1", 0);
    state.mvcc.publish(2);
    (memory, snapshots, RwLock::new(state))
}

fn pin(state: &RwLock<State>, sequence: u64, epoch: u64) -> SnapshotPoint {
    let fencing = FencingState {
        sequence,
        epoch,
        writer: epoch,
        ..FencingState::default()
    };
    SnapshotPoint::new(state, fencing, Vec::new())
}

async fn newest(snapshots: &Stored) -> (u64, u64) {
    let fencing = snapshots.newest().await.unwrap().unwrap().fencing;
    (fencing.sequence, fencing.epoch)
}

/// Sequences of the snapshots that have chunks.
fn chunks(memory: &Memory) -> Vec<u64> {
    let counts = memory.messages().counts();
    let names = counts.keys().filter_map(|subject| subject.strip_prefix("snap.c."));
    let mut sequences: Vec<u64> = names
        .map(|name| name.split('.').next().unwrap().parse().unwrap())
        .collect();
    sequences.sort_unstable();
    sequences
}

#[tokio::test]
async fn two_snapshots_and_the_log_behind_the_older_stay() {
    let (memory, snapshots, state) = bench(40);
    for sequence in [10, 20, 30] {
        snapshots
            .store_and_purge(&state, &pin(&state, sequence, 1))
            .await
            .unwrap();
    }
    assert_eq!(chunks(&memory), [20, 30]);
    assert_eq!(memory.first(), 21);
    memory.messages().corrupt("snap.m");
    assert_eq!(newest(&snapshots).await, (20, 1));
}

#[tokio::test]
async fn a_late_snapshot_of_a_suspended_writer_does_no_harm() {
    let (memory, snapshots, state) = bench(40);
    snapshots.store_and_purge(&state, &pin(&state, 5, 1)).await.unwrap();
    // The first writer is suspended before its manifest; the next writer stores a snapshot
    // meanwhile.
    let late = pin(&state, 10, 1);
    snapshots.store_and_purge(&state, &pin(&state, 20, 2)).await.unwrap();
    let refused = snapshots.store_and_purge(&state, &late).await.unwrap_err();
    assert!(matches!(refused, SnapshotError::Stale { newest: 20 }), "{refused:?}");
    assert_eq!(newest(&snapshots).await, (20, 2));
    assert_eq!(memory.first(), 6, "the log is retained that no older snapshot contains");
    snapshots.store_and_purge(&state, &pin(&state, 30, 2)).await.unwrap();
    assert_eq!((newest(&snapshots).await, memory.first()), ((30, 2), 21));
    memory.messages().corrupt("snap.m");
    assert_eq!(newest(&snapshots).await, (20, 2), "the other snapshot is complete");
}

#[tokio::test]
async fn chunks_of_a_failed_snapshot_are_removed() {
    let (memory, snapshots, state) = bench(40);
    // The chunk is stored, the manifest is not.
    memory.messages().set_left(Some(1));
    snapshots
        .store_and_purge(&state, &pin(&state, 10, 1))
        .await
        .unwrap_err();
    assert_eq!(chunks(&memory), [0; 0]);
    // A leftover of a process that was killed.
    memory.messages().set_left(None);
    for name in ["snap.c.7.1-a", "snap.c.20.1-b", "snap.c.30.1-c"] {
        memory.messages().store(name.into(), Bytes::new()).await.unwrap();
    }
    snapshots.store_and_purge(&state, &pin(&state, 20, 2)).await.unwrap();
    assert_eq!(
        chunks(&memory),
        [20, 20, 30],
        "only what lies below is known to be dead"
    );
}

#[tokio::test]
async fn a_snapshot_without_chunks_is_not_the_older_one() {
    let (memory, snapshots, state) = bench(40);
    snapshots.store_and_purge(&state, &pin(&state, 5, 1)).await.unwrap();
    snapshots.store_and_purge(&state, &pin(&state, 10, 1)).await.unwrap();
    let broken = memory
        .messages()
        .counts()
        .into_keys()
        .find(|name| name.starts_with("snap.c.10."));
    memory.messages().purge_subject(&broken.unwrap()).await.unwrap();
    snapshots.store_and_purge(&state, &pin(&state, 20, 2)).await.unwrap();
    assert_eq!((memory.first(), chunks(&memory)), (6, vec![5, 20]));
}

#[tokio::test]
async fn a_missing_manifest_does_not_hide_another() {
    let (memory, snapshots, state) = bench(60);
    for sequence in [10, 20] {
        snapshots
            .store_and_purge(&state, &pin(&state, sequence, 1))
            .await
            .unwrap();
    }
    memory.messages().hide("snap.m");
    assert_eq!(newest(&snapshots).await, (10, 1));
    snapshots.store_and_purge(&state, &pin(&state, 30, 1)).await.unwrap();
    assert_eq!((newest(&snapshots).await, memory.first()), ((30, 1), 11));
}

#[tokio::test]
async fn a_damaged_manifest_does_not_retain_the_log_or_chunks() {
    let (memory, snapshots, state) = bench(60);
    for sequence in [10, 20] {
        snapshots
            .store_and_purge(&state, &pin(&state, sequence, 1))
            .await
            .unwrap();
    }
    memory.messages().corrupt("snap.m");
    snapshots.store_and_purge(&state, &pin(&state, 30, 1)).await.unwrap();
    assert_eq!(
        (memory.first(), chunks(&memory)),
        (11, vec![10, 20, 30]),
        "whose chunks these are is not known"
    );
    snapshots.store_and_purge(&state, &pin(&state, 40, 1)).await.unwrap();
    assert_eq!((memory.first(), chunks(&memory)), (31, vec![30, 40]));
}

/// The chunk of the snapshot exists, but its content was changed.
#[tokio::test]
async fn an_unreadable_snapshot_is_not_the_older_one() {
    for spare in [false, true] {
        let (memory, mut snapshots, state) = bench(60);
        if spare {
            snapshots = snapshots.with_spare(memory.spare(), "spare".into());
        }
        snapshots.store_and_purge(&state, &pin(&state, 5, 1)).await.unwrap();
        snapshots.store_and_purge(&state, &pin(&state, 10, 1)).await.unwrap();
        let damaged = if spare { memory.spare() } else { memory.messages() };
        let chunk = damaged.counts().into_keys().find(|name| name.contains(".c.10."));
        damaged.corrupt(&chunk.unwrap());
        assert_eq!((newest(&snapshots).await, memory.first()), ((5, 1), 6));
        assert_eq!(snapshots.count(5).await.unwrap(), 1, "the log stands on one");
        snapshots.store_and_purge(&state, &pin(&state, 20, 2)).await.unwrap();
        assert_eq!((newest(&snapshots).await, memory.first()), ((20, 2), 6));
        snapshots.store_and_purge(&state, &pin(&state, 30, 2)).await.unwrap();
        assert_eq!((snapshots.count(u64::MAX).await.unwrap(), memory.first()), (2, 21));
    }
}

#[tokio::test]
async fn two_streams_alternate_and_either_is_sufficient() {
    let (memory, snapshots, state) = bench(60);
    let snapshots = snapshots.with_spare(memory.spare(), "spare".into());
    let sequences = |messages: MemoryMessages| {
        let counts = messages.counts();
        let names = counts.keys().filter_map(|subject| subject.split_once(".c."));
        let numbers = names.map(|(_, name)| name.split('.').next().unwrap().parse().unwrap());
        numbers.collect::<Vec<u64>>()
    };
    let stored = || (sequences(memory.messages()), sequences(memory.spare()), memory.first());
    for sequence in [10, 20, 30] {
        snapshots
            .store_and_purge(&state, &pin(&state, sequence, 1))
            .await
            .unwrap();
    }
    assert_eq!(stored(), (vec![30], vec![20], 21));
    // One stream is lost completely; the next two snapshots follow the usual order.
    for (messages, sequence, left) in [(memory.messages(), 40, 20), (memory.spare(), 50, 40)] {
        messages.purge_below(u64::MAX).await.unwrap();
        assert_eq!(newest(&snapshots).await, (left, 1));
        assert_eq!(snapshots.count(u64::MAX).await.unwrap(), 1);
        snapshots
            .store_and_purge(&state, &pin(&state, sequence, 1))
            .await
            .unwrap();
        assert_eq!(
            (snapshots.count(u64::MAX).await.unwrap(), memory.first()),
            (2, left + 1)
        );
    }
    assert_eq!(stored(), (vec![40], vec![50], 41));
}

/// Two snapshots at the end of a full log free space, whichever stream had the last one.
#[tokio::test]
async fn two_snapshots_at_the_end_of_the_log_free_space() {
    for earlier in [&[][..], &[10], &[10, 20], &[10, 20, 30]] {
        let (memory, snapshots, state) = bench(60);
        let snapshots = snapshots.with_spare(memory.spare(), "spare".into());
        for sequence in earlier {
            snapshots
                .store_and_purge(&state, &pin(&state, *sequence, 1))
                .await
                .unwrap();
        }
        for _ in 0..2 {
            snapshots.store_and_purge(&state, &pin(&state, 40, 1)).await.unwrap();
        }
        assert_eq!((newest(&snapshots).await, memory.first()), ((40, 1), 41), "{earlier:?}");
        assert_eq!(snapshots.count(u64::MAX).await.unwrap(), 2, "{earlier:?}");
    }
}

#[tokio::test]
async fn a_second_stream_is_optional() {
    let (memory, snapshots, state) = bench(60);
    snapshots.store_and_purge(&state, &pin(&state, 10, 1)).await.unwrap();
    snapshots.store_and_purge(&state, &pin(&state, 20, 1)).await.unwrap();
    let two = snapshots.clone().with_spare(memory.spare(), "spare".into());
    two.store_and_purge(&state, &pin(&state, 30, 1)).await.unwrap();
    assert_eq!((newest(&two).await, memory.first()), ((30, 1), 21));
    // The older one is sufficient for the retained log.
    assert_eq!(newest(&snapshots).await, (20, 1));
    snapshots.store_and_purge(&state, &pin(&state, 40, 1)).await.unwrap();
    assert_eq!((newest(&two).await, memory.first()), ((40, 1), 21));
}

/// A store of some chunks, whose stream needs a while for each message.
fn slow() -> (Memory, Stored, RwLock<State>) {
    let (memory, snapshots, state) = bench(60);
    {
        let mut state = state.write().unwrap();
        for number in 0..20 {
            let revision = state.mvcc.advance();
            state.put(format!("/large/{number}").as_bytes(), &vec![b'v'; 400_000], 0);
            state.mvcc.publish(revision);
        }
    }
    memory.messages().set_slowness(SLOWNESS);
    (memory, snapshots, state)
}

const SLOWNESS: Duration = Duration::from_millis(10);

async fn time_to_keep(snapshots: &Stored, state: &RwLock<State>, sequence: u64) -> Duration {
    let start = Instant::now();
    snapshots
        .store_and_purge(state, &pin(state, sequence, 1))
        .await
        .unwrap();
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn writing_and_checking_a_snapshot_is_throttled() {
    let (_memory, snapshots, state) = slow();
    let hurried = watch::Sender::new(false);
    let with_throttle = snapshots.with_throttle(hurried.subscribe());
    // The first snapshot writes 20 chunks. The others also read one back. No pause follows lists
    // and manifests.
    let unrested = time_to_keep(&snapshots, &state, 10).await;
    let rested = time_to_keep(&with_throttle, &state, 20).await;
    assert!(unrested < 30 * SLOWNESS, "{unrested:?}");
    assert!(rested > 80 * SLOWNESS && rested < 120 * SLOWNESS, "{rested:?}");
    hurried.send_replace(true);
    let awaited = time_to_keep(&with_throttle, &state, 30).await;
    assert!(awaited < 40 * SLOWNESS, "{awaited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_throttled_snapshot_continues_at_once_when_needed() {
    let (memory, snapshots, state) = slow();
    let hurried = watch::Sender::new(false);
    let with_throttle = snapshots.with_throttle(hurried.subscribe());
    let start = Instant::now();
    let keep = time_to_keep(&with_throttle, &state, 10);
    let hurry = async {
        while memory.messages().stored() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
        hurried.send_replace(true);
        start.elapsed()
    };
    let (stored, waited) = tokio::join!(keep, hurry);
    assert!(waited > 4 * SLOWNESS, "{waited:?}");
    assert!(stored < waited + 25 * SLOWNESS, "{stored:?}");
}
