//! Flips a bit anywhere in the log or in the snapshots. The corruption is detected, and then either
//! the store does not open, or the intact data is sufficient. A read returns only what was stored.

use super::*;
use crate::fuzz::{fuzz_runs, seeded};
use rand::RngExt;
use rand::rngs::StdRng;

/// All data that a reader shows.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    revisions: (i64, i64),
    items: Vec<Bytes>,
    history: Vec<Bytes>,
    leases: Vec<(i64, i64, BTreeSet<Bytes>)>,
}

async fn read(memory: &Memory) -> Result<Shown, RecoverError> {
    let state = Replica::load(&memory.open().0, &snapshots(memory)).await?.state;
    let (visible, compacted) = (state.mvcc.visible(), state.mvcc.compacted());
    let mut items = Vec::new();
    state.mvcc.visit(&[0], &[0], visible, |item| {
        items.push(item.kv.clone());
        true
    });
    let leases = state.leases.iter();
    Ok(Shown {
        revisions: (visible, compacted),
        items,
        history: state.mvcc.changes(compacted).map(|change| change.kv.clone()).collect(),
        leases: leases.map(|(id, lease)| (id, lease.ttl, lease.keys.clone())).collect(),
    })
}

/// Some records of each kind, most of them behind two snapshots. Returns how many the newer one
/// covers.
pub(super) async fn written() -> (Memory, usize) {
    let memory = Memory::new();
    let thresholds = SnapshotThresholds { records: 15, ..NEVER };
    let running = start_with(&memory, identity(1, 1), thresholds).await;
    let submit = async |command: Command| running.store.submit(command).await.unwrap();
    submit(Command::Grant { id: 7, ttl: 600 }).await;
    submit(Command::Grant { id: 8, ttl: 600 }).await;
    for number in 0..32 {
        submit(match number % 8 {
            3 => Command::DeleteRange(pb::DeleteRangeRequest {
                key: "k1".into(),
                range_end: "k3".into(),
                ..Default::default()
            }),
            5 => Command::Put(pb::PutRequest {
                key: format!("k{}", number % 5).into(),
                lease: 7 + number / 8 % 2,
                ..Default::default()
            }),
            _ => put_bytes(&format!("k{}", number % 5), 20),
        })
        .await;
        if number == 30 {
            submit(Command::Compact(15)).await;
            submit(Command::Revoke(8)).await;
        }
        // There is a minimum delay between snapshots.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    running.stop().await;
    let saved = snapshots(&memory).newest().await.unwrap().unwrap().fencing.sequence as usize;
    assert_eq!(
        memory.messages().counts().len(),
        4,
        "manifests, the chunks of two snapshots, and floors"
    );
    assert!(memory.first() > 1 && saved + 3 < memory.records().len());
    (memory, saved)
}

/// The bits to flip: one of each byte, or all with `FUZZ_TIMES`.
fn bits(bytes: usize, random: &mut StdRng) -> Vec<usize> {
    let all = fuzz_runs(1) > 1;
    let one = |byte: usize, random: &mut StdRng| byte * 8 + random.random_range(0..8);
    let few = |random: &mut StdRng| (0..bytes).map(|byte| one(byte, random)).collect();
    if all { (0..bytes * 8).collect() } else { few(random) }
}

fn flipped(bytes: &Bytes, bit: usize) -> Bytes {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes.into()
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_of_the_log_is_never_served() {
    let mut random = seeded();
    let (memory, saved) = written().await;
    let stored = read(&memory).await.unwrap();
    for (at, record) in memory
        .records()
        .into_iter()
        .enumerate()
        .skip(memory.first() as usize - 1)
    {
        for bit in bits(record.len(), &mut random) {
            memory.replace(at, flipped(&record, bit));
            match read(&memory).await {
                // Records that the snapshot covers are not read again.
                Ok(shown) => assert!(at < saved && shown == stored, "record {at}, bit {bit}"),
                Err(RecoverError::Codec { sequence, .. }) => assert_eq!(sequence, at as u64 + 1, "bit {bit}"),
                Err(error) => panic!("record {at}, bit {bit}: {error:?}"),
            }
        }
        memory.replace(at, record);
    }
    assert_eq!(read(&memory).await.unwrap(), stored);
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_of_a_snapshot_is_never_served() {
    let mut random = seeded();
    let (memory, _) = written().await;
    let (stored, messages) = (read(&memory).await.unwrap(), memory.messages());
    for (sequence, message) in messages.all() {
        for bit in bits(message.len(), &mut random) {
            messages.replace(sequence, flipped(&message, bit));
            // The other snapshot, and the log behind it.
            assert_eq!(read(&memory).await.unwrap(), stored, "message {sequence}, bit {bit}");
        }
        messages.replace(sequence, message);
    }
    for (sequence, message) in messages.all() {
        messages.replace(sequence, flipped(&message, 77));
    }
    let error = read(&memory).await.unwrap_err();
    assert!(matches!(error, RecoverError::NoSnapshot { .. }), "{error:?}");
}

/// Replaces a record completely, by bytes that do not resemble one.
#[tokio::test(start_paused = true)]
async fn an_overwritten_record_is_detected() {
    let (memory, saved) = written().await;
    let records = memory.records();
    // The last four records may just as well have been in flight and displaced.
    for (at, record) in records.iter().enumerate().take(records.len() - 4).skip(saved) {
        memory.replace(at, vec![0; record.len()].into());
        let error = read(&memory).await.unwrap_err();
        assert!(matches!(error, RecoverError::Fencing(_)), "record {at}: {error:?}");
        memory.replace(at, record.clone());
    }
}
