//! A snapshot holds what was pinned, whatever happens while it is cut, and corruption is detected.

use super::*;
use crate::fuzz::{fuzz_runs, mutate, seeded};
use crate::log::fencing::FencingState;
use crate::mvcc::Mvcc;
use crate::snapshot::error::SnapshotError;
use crate::snapshot::manifest::{Manifest, Written};
use crate::state::State;
use rand::rngs::StdRng;
use std::time::Duration;

fn filled() -> RwLock<State> {
    let mut state = State::new(Mvcc::new());
    state.leases.grant(5, 60, Duration::ZERO);
    for number in 0..6000 {
        state.mvcc.advance();
        state.put(
            format!("/k/{:04}", number % 4000).as_bytes(),
            &[b'v'; 200],
            i64::from(number % 7 == 0) * 5,
        );
        if number % 11 == 0 {
            state.mvcc.advance();
            state.delete(format!("/k/{:04}", (number * 3) % 4000).as_bytes());
        }
    }
    let head = state.mvcc.head();
    state.mvcc.publish(head);
    state.mvcc.compact(5000);
    while state.mvcc.trim(1000) {}
    RwLock::new(state)
}

fn load(manifest: &Manifest, chunks: &[Bytes]) -> State {
    let mut snapshot = manifest.empty_snapshot();
    for (number, bytes) in chunks.iter().enumerate() {
        let chunk = Chunk::decode(bytes).unwrap();
        assert_eq!(chunk.number as usize, number);
        snapshot.load(chunk);
    }
    snapshot.finish().state
}

fn dump(state: &State, revision: i64) -> Vec<Bytes> {
    let mut items = Vec::new();
    state.mvcc.visit(&[0], &[0], revision, |item| {
        items.push(item.kv.clone());
        true
    });
    items
}

#[test]
fn a_snapshot_contains_the_pinned_state_despite_later_writes() {
    let store = filled();
    let pin = SnapshotPoint::new(
        &store,
        FencingState {
            sequence: 9,
            epoch: 3,
            hash: 77,
            ..FencingState::default()
        },
        store.read().unwrap().leases.terms(),
    );
    let (before, leases) = {
        let state = store.read().unwrap();
        let keys: Vec<_> = state
            .leases
            .iter()
            .map(|(id, lease)| (id, lease.ttl, lease.keys.clone()))
            .collect();
        let changes: Vec<_> = state
            .mvcc
            .changes(0)
            .map(|change| (change.revision, change.kv.clone()))
            .collect();
        ((dump(&state, pin.revision), dump(&state, 5500), changes), keys)
    };
    let mut chunks = Vec::new();
    for (chunk, _) in Chunks::new(&store, &pin) {
        chunks.push(chunk);
        let mut state = store.write().unwrap();
        for number in 0..300 {
            state.mvcc.advance();
            state.put(format!("/k/{:04}", number * 13).as_bytes(), b"later", 0);
        }
        let head = state.mvcc.head();
        state.mvcc.publish(head);
        state.mvcc.compact(head - 10);
    }
    assert!(chunks.len() > 3, "{}", chunks.len());
    let manifest = Manifest::new(
        &pin,
        Written {
            chunks: chunks.len() as u32,
            ..Written::default()
        },
    );
    let manifest = Manifest::decode(&manifest.encode().unwrap()).unwrap();
    assert_eq!(manifest.empty_snapshot().fencing, pin.fencing);
    let copy = load(&manifest, &chunks);
    let changes: Vec<_> = copy
        .mvcc
        .changes(0)
        .map(|change| (change.revision, change.kv.clone()))
        .collect();
    assert_eq!((dump(&copy, pin.revision), dump(&copy, 5500), changes), before);
    let copied: Vec<_> = copy
        .leases
        .iter()
        .map(|(id, lease)| (id, lease.ttl, lease.keys.clone()))
        .collect();
    assert_eq!(copied, leases);
    assert_eq!((copy.mvcc.visible(), copy.mvcc.compacted()), (pin.revision, 5000));
}

#[test]
fn every_flipped_byte_is_found() {
    let mut state = State::new(Mvcc::new());
    state.mvcc.advance();
    state.put(b"a", b"1", 0);
    state.mvcc.publish(2);
    let store = RwLock::new(state);
    let pin = SnapshotPoint::new(&store, FencingState::default(), Vec::new());
    let chunks: Vec<_> = Chunks::new(&store, &pin).map(|(bytes, _)| bytes).collect();
    let [chunk] = chunks.as_slice() else {
        panic!("{chunks:?}")
    };
    let manifest = Manifest::new(&pin, Written::default()).encode().unwrap();
    for at in 0..chunk.len() {
        let mut bad = chunk.to_vec();
        bad[at] ^= 0x10;
        assert!(Chunk::decode(&bad).is_err(), "byte {at}");
    }
    for at in 0..manifest.len() {
        let mut bad = manifest.clone();
        bad[at] ^= 0x10;
        assert!(Manifest::decode(&bad).is_err(), "byte {at}");
    }
}

#[test]
fn any_number_of_leases_fits() {
    let mut state = State::new(Mvcc::new());
    for id in 1..=100_000 {
        state.leases.grant(id << 40, 60, Duration::ZERO);
    }
    state.mvcc.advance();
    state.put(b"a", b"1", 5 << 40);
    state.mvcc.publish(2);
    let before = state.leases.terms();
    let store = RwLock::new(state);
    let pin = SnapshotPoint::new(&store, FencingState::default(), before.clone());
    let chunks: Vec<_> = Chunks::new(&store, &pin).map(|(bytes, _)| bytes).collect();
    let manifest = Manifest::new(&pin, Written::default());
    let longest = chunks.iter().map(Bytes::len).max();
    assert!(longest < Some(1 << 20) && manifest.encode().unwrap().len() < 1000);
    let copy = load(&manifest, &chunks);
    assert_eq!(copy.leases.terms(), before);
    assert_eq!(copy.leases.get(5 << 40).unwrap().keys.len(), 1);
}

#[test]
fn impossible_revisions_are_rejected() {
    let store = filled();
    let terms = store.read().unwrap().leases.terms();
    let pin = SnapshotPoint::new(&store, FencingState::default(), terms);
    let good = Manifest::new(&pin, Written::default());
    assert_eq!(Manifest::decode(&good.encode().unwrap()).unwrap(), good);
    for (revision, compacted) in [(0, -1), (i64::MIN, -1), (i64::MAX, 5000), (7, 8), (7, -2)] {
        let bad = Manifest {
            revision,
            compacted,
            ..good.clone()
        };
        let error = Manifest::decode(&bad.encode().unwrap()).unwrap_err();
        assert!(matches!(error, SnapshotError::Numbers { .. }), "{revision} {compacted}");
    }
}

/// Every chunk and manifest that can be decoded can be loaded, whatever its content.
#[test]
fn hostile_bytes_with_a_valid_hash_do_not_panic() {
    let mut random = seeded();
    let mut state = State::new(Mvcc::new());
    state.leases.grant(5, 60, Duration::ZERO);
    for (key, lease) in [(b"a", 0), (b"b", 5), (b"a", 5)] {
        state.mvcc.advance();
        state.put(key, b"value", lease);
    }
    state.mvcc.advance();
    state.delete(b"a");
    state.mvcc.publish(5);
    state.mvcc.compact(3);
    let store = RwLock::new(state);
    let terms = store.read().unwrap().leases.terms();
    let pin = SnapshotPoint::new(&store, FencingState::default(), terms);
    let chunks: Vec<_> = Chunks::new(&store, &pin).map(|(bytes, _)| bytes).collect();
    assert_eq!(chunks.len(), 3, "leases, base and history");
    let manifest = Manifest::new(&pin, Written::default()).encode().unwrap();
    let sealed = |bytes: &[u8], random: &mut StdRng| {
        let mut bad = bytes[..bytes.len() - 8].to_vec();
        mutate(&mut bad, random);
        seal(&mut bad);
        bad
    };
    let mut loaded = 0;
    for _ in 0..fuzz_runs(20_000) {
        let bad = sealed(&manifest, &mut random);
        let manifest = Manifest::decode(&bad).or_else(|_| Manifest::decode(&manifest)).unwrap();
        let mut snapshot = manifest.empty_snapshot();
        for chunk in &chunks {
            let bad = sealed(chunk, &mut random);
            if let Ok(chunk) = Chunk::decode(&bad) {
                snapshot.load(chunk);
                loaded += 1;
            }
        }
        let state = snapshot.finish().state;
        dump(&state, state.mvcc.visible());
        state.mvcc.count(&[0], &[0], state.mvcc.visible());
    }
    assert!(loaded > 1000, "{loaded} could be decoded");
}
