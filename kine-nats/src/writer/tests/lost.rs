//! Logs that lose acknowledged records, by seed: at any time, by any number of records, with and
//! without a report of the server, while the writer is alive and when it is not.
//!
//! - While the writer is alive, it stores the acknowledged records again at their sequences, or
//!   leaves them in a snapshot.
//! - When no process is alive, the store is refused, and a repair continues above every revision
//!   that a client has seen.
//! - The store is not refused if the server reports nothing and the lost records were written in
//!   the last seconds. No more than that is ever lost silently.
//!
//! `SEED=n` runs one seed.

use super::*;
use crate::fuzz::chosen;
use crate::process::repair::{Repaired, repair_store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use tokio::time::sleep;

const SEEDS: u64 = 300;
/// Time of writes that may be lost silently: the interval of low watermarks, and the time to store
/// them.
const BOUND: Duration = Duration::from_millis(5500);

/// Statistics of the runs.
#[derive(Debug, Default)]
struct Tally {
    /// Writers that stored lost records again.
    restored: u32,
    /// Writers that could not, and left a snapshot.
    left: u32,
    refused: u32,
    /// Stores that were truncated and not refused.
    unnoticed: u32,
    complete: u32,
}

/// Acknowledged keys, with their revisions and times.
type Acknowledged = BTreeMap<String, (i64, Instant)>;

/// The keys in a log, and how many of the others were acknowledged before a time.
async fn missing(memory: &Memory, acknowledged: &mut Acknowledged, before: Instant) -> usize {
    let replica = Replica::load(&memory.open().0, &snapshots(memory)).await.unwrap();
    let total = acknowledged.len();
    let mut old = 0;
    acknowledged.retain(|key, (revision, at)| {
        let found = replica.state.mvcc.latest(key.as_bytes()).map(|item| item.modified);
        assert!(found.is_none_or(|found| found == *revision), "{key}");
        old += usize::from(found.is_none() && *at < before);
        found.is_some()
    });
    println!("{} of {total} keys are there", acknowledged.len());
    old
}

async fn newest(memory: &Memory) -> usize {
    let newest = snapshots(memory).newest().await.unwrap();
    newest.map_or(0, |snapshot| snapshot.fencing.sequence as usize)
}

async fn simulate(seed: u64, tally: &mut Tally) {
    let mut random = StdRng::seed_from_u64(seed);
    let memory = Memory::new();
    memory.let_purge_ahead();
    let thresholds = SnapshotThresholds {
        records: [8, 40, u64::MAX][random.random_range(0..3)],
        ..NEVER
    };
    let mut running = start_with(&memory, identity(1, 1), thresholds).await;
    let (mut acknowledged, mut highest, mut count) = (Acknowledged::new(), 1, 0);
    // The writer started from this record; it remembers the ones behind it.
    let mut snapshot = 0;
    for round in 2..8 {
        let pause = [0, 300, 2000][random.random_range(0..3)];
        for _ in 0..random.random_range(1..20) {
            sleep(Duration::from_millis(random.random_range(0..=pause))).await;
            count += 1;
            let key = format!("k{count}");
            highest = write(&running.store, &key).await.unwrap();
            acknowledged.insert(key, (highest, Instant::now()));
        }
        sleep(Duration::from_millis(random.random_range(0..4000) / (1 + pause))).await;
        let lives = random.random_bool(0.4);
        if !lives {
            if random.random_bool(0.2) {
                let _ = running.stop.send(true);
            } else {
                running.writer.abort();
            }
            let _ = (&mut running.writer).await;
        }
        let died = Instant::now();
        let (length, purged) = (memory.len(), memory.first() as usize - 1);
        // A store without a record and a snapshot has nothing to repair.
        let cut = (length - random.random_range(0..=(length - purged).min(20))).max(1);
        let reported = random.random_bool(0.5);
        if reported {
            memory.lose(cut);
        } else {
            memory.truncate(cut);
        }
        println!("round {round}: {cut} of {length} records, {purged} purged, lives {lives}, reported {reported}");
        if lives {
            count += 1;
            let key = format!("k{count}");
            if let Ok(revision) = write(&running.store, &key).await {
                highest = revision;
                acknowledged.insert(key, (highest, Instant::now()));
                tally.restored += u32::from(cut < length);
                continue;
            }
            let ended = running.writer.await.unwrap();
            assert!(matches!(ended, Err(WriterError::Lost { .. })), "{ended:?}");
            assert!(cut <= snapshot, "it remembers what it read behind {snapshot}");
        }
        let before = acknowledged.len();
        snapshot = newest(&memory).await;
        running = match try_start(&memory, identity(round, 1), thresholds).await {
            Ok(running) => {
                assert!(
                    !lives && (!reported || cut == length),
                    "a loss that is known of is not refused"
                );
                let old = missing(&memory, &mut acknowledged, died - BOUND).await;
                assert_eq!(old, 0, "lost without a word");
                tally.unnoticed += u32::from(acknowledged.len() < before);
                tally.complete += u32::from(acknowledged.len() == before);
                running
            }
            Err(error) => {
                println!("{error}");
                assert!(error.to_string().contains("`kine-nats repair`"), "{error}");
                assert!(cut < length, "the log is complete: {error}");
                let repaired = repair_store(&memory.open().0, &snapshots(&memory), 1000, true)
                    .await
                    .unwrap();
                let Repaired::Bumped { revision, .. } = repaired else {
                    panic!("{repaired:?}")
                };
                assert!(revision > highest, "{revision}, and {highest} was acknowledged");
                missing(&memory, &mut acknowledged, died).await;
                assert!(
                    !lives || acknowledged.len() == before,
                    "it is in the snapshot that the writer left"
                );
                tally.left += u32::from(lives);
                tally.refused += u32::from(!lives);
                snapshot = newest(&memory).await;
                start_with(&memory, identity(round, 1), thresholds).await
            }
        };
    }
    let _ = running.stop.send(true);
    running.writer.await.unwrap().unwrap();
    assert_eq!(missing(&memory, &mut acknowledged, Instant::now()).await, 0);
}

#[test]
fn every_loss_is_detected() {
    let mut tally = Tally::default();
    on_each_seed(SEEDS, async |seed| simulate(seed, &mut tally).await);
    println!("{tally:?}");
    let enough = tally.restored > 100 && tally.refused > 100 && tally.unnoticed > 0 && tally.complete > 20;
    assert!(chosen().is_some() || enough, "{tally:?}");
}

#[tokio::test(start_paused = true)]
async fn a_living_writer_restores_missing_records() {
    let (memory, running) = started(&["a", "b", "c", "d"]).await;
    let hole = memory.len() as u64 - 2;
    memory.punch(hole);
    memory.set_connected(false);
    sleep(Duration::from_secs(1)).await;
    memory.set_connected(true);
    sleep(Duration::from_secs(10)).await;
    assert!(memory.first() > hole, "the log starts at {}", memory.first());
    running.writer.abort();
    let _ = running.writer.await;
    assert_eq!(stored(&memory).await, ["a", "b", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn a_repair_keeps_records_before_a_gap() {
    let (memory, running) = started(&["a", "b", "c", "d"]).await;
    running.stop().await;
    memory.let_purge_ahead();
    let hole = memory.len() as u64 - 2;
    memory.punch(hole);
    let (log, _acks) = memory.open();
    let refused = Replica::load(&log, &snapshots(&memory)).await.unwrap_err();
    assert!(
        matches!(refused, RecoverError::Missing { sequence } if sequence == hole),
        "{refused:?}"
    );
    repair_store(&log, &snapshots(&memory), 1000, true).await.unwrap();
    let mvcc = Replica::load(&log, &snapshots(&memory)).await.unwrap().state.mvcc;
    let there = ["a", "b", "c", "d"].map(|key| mvcc.latest(key.as_bytes()).is_some());
    assert_eq!(there, [true, true, false, false]);
}
