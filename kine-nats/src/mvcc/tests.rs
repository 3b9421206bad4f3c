//! Compares the store with a list of all changes.

use super::*;
use crate::fuzz::seeds;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

type Version = (Vec<u8>, i64, i64, i64, i64);

/// Value and lease; `None` is a delete.
type Written = Option<(Vec<u8>, i64)>;

/// The naive store: all changes in order. Answers walk the list.
#[derive(Default)]
struct Model {
    changes: Vec<(i64, Vec<u8>, Written)>,
}

impl Model {
    fn at(&self, revision: i64) -> BTreeMap<Vec<u8>, Version> {
        let mut keys: BTreeMap<Vec<u8>, Version> = BTreeMap::new();
        for (modified, key, change) in self.changes.iter().take_while(|(at, ..)| *at <= revision) {
            match change {
                None => {
                    keys.remove(key);
                }
                Some((value, lease)) => {
                    let (created, version) = keys
                        .get(key)
                        .map_or((*modified, 1), |(_, created, _, version, _)| (*created, version + 1));
                    keys.insert(key.clone(), (value.clone(), created, *modified, version, *lease));
                }
            }
        }
        keys
    }
}

fn run(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut store, mut model) = (Mvcc::new(), Model::default());
    let width = random.random_range(2..400u32);
    let key = |random: &mut StdRng| format!("/k/{:03}", random.random_range(0..width)).into_bytes();
    for _ in 0..random.random_range(50..700) {
        match random.random_range(0..20) {
            0..12 => {
                let revision = store.advance();
                let mut done: Vec<Vec<u8>> = Vec::new();
                for _ in 0..random.random_range(1..3) {
                    let key = key(&mut random);
                    if !done.contains(&key) {
                        let value = vec![b'v'; random.random_range(0..40)];
                        let lease = random.random_range(0..3);
                        store.put(&key, &value, lease);
                        model.changes.push((revision, key.clone(), Some((value, lease))));
                        done.push(key);
                    }
                }
            }
            12..17 => {
                let key = key(&mut random);
                if store.latest(&key).is_some() {
                    let revision = store.advance();
                    store.delete(&key).unwrap();
                    model.changes.push((revision, key, None));
                }
            }
            17 => {
                let at = random.random_range(store.compacted().max(1)..=store.head());
                store.compact(at);
                store.trim(random.random_range(1..50));
            }
            _ => {}
        }
        if random.random_ratio(1, 8) {
            compare(&store, &model, &mut random, seed);
        }
    }
    while store.trim(7) {}
    compare(&store, &model, &mut random, seed);
    reload(&store, &model, &mut random, seed);
}

fn compare(store: &Mvcc, model: &Model, random: &mut StdRng, seed: u64) {
    let low = store.compacted().max(1);
    let revision = random.random_range(low..=store.head());
    let (a, b) = (random.random_range(0..450), random.random_range(0..450));
    let start = format!("/k/{a:03}").into_bytes();
    let end = match random.random_range(0..4) {
        0 => Vec::new(),
        1 => vec![0],
        _ => format!("/k/{b:03}").into_bytes(),
    };
    let expected: Vec<_> = model
        .at(revision)
        .into_iter()
        .filter(|(key, _)| contains(&start, &end, key))
        .collect();
    let mut found = Vec::new();
    store.visit(&start, &end, revision, |item| {
        let version = (
            item.value().to_vec(),
            item.created,
            item.modified,
            item.version,
            item.lease,
        );
        found.push((item.key().to_vec(), version));
        true
    });
    assert_eq!(found, expected, "seed {seed}, range {a}..{b} at {revision}");
    assert_eq!(
        store.count(&start, &end, revision),
        expected.len() as i64,
        "seed {seed}, count at {revision}"
    );

    let from = random.random_range(low..=store.head() + 1);
    let found: Vec<_> = store
        .changes(from)
        .map(|c| (c.revision, c.key().to_vec(), c.delete))
        .collect();
    let expected: Vec<_> = model
        .changes
        .iter()
        .filter(|(revision, ..)| *revision >= from)
        .map(|(revision, key, change)| (*revision, key.clone(), change.is_none()))
        .collect();
    assert_eq!(found, expected, "seed {seed}, changes from {from}");
    for change in store.changes(low + 1).filter(|_| random.random_ratio(1, 50)) {
        let before = model.at(change.revision - 1);
        let previous = change.previous.as_deref().map(|kv| Item::decode(kv).unwrap().modified);
        assert_eq!(
            previous,
            before.get(change.key()).map(|(_, _, modified, ..)| *modified),
            "seed {seed}"
        );
    }
}

/// The content of a snapshot is sufficient to answer every read from the compact revision on.
fn reload(store: &Mvcc, model: &Model, random: &mut StdRng, seed: u64) {
    let floor = store.compacted();
    let mut copy = Mvcc::restored(store.head(), floor);
    let mut from = Some(Bytes::from_static(&[0]));
    while let Some(key) = from {
        let (page, next) = store.base_page(&key, 5, floor);
        page.iter().for_each(|item| copy.load(Item::decode(&item.kv).unwrap()));
        from = next;
    }
    for change in store.changes(floor) {
        copy.replay(Item::decode(&change.kv).unwrap());
    }
    while copy.trim(1000) {}
    for _ in 0..20 {
        compare(&copy, model, random, seed);
    }
    assert_eq!(copy.keys(), store.keys(), "seed {seed}");
}

#[test]
fn results_equal_the_model() {
    seeds(150).into_iter().for_each(run);
}

#[test]
fn a_key_reads_as_the_newest_version_at_the_compact_revision() {
    let mut store = Mvcc::new();
    for value in [b"1", b"2", b"3"] {
        store.advance();
        store.put(b"a", value, 0);
    }
    store.publish(4);
    store.compact(3);
    assert!(!store.trim(100));
    let read = |revision| {
        let mut value = None;
        store.visit(b"a", b"", revision, |item| {
            value = Some(item.value().to_vec());
            true
        });
        value
    };
    assert_eq!((read(3), read(4)), (Some(b"2".to_vec()), Some(b"3".to_vec())));
    assert_eq!(
        store.changes(0).map(|change| change.revision).collect::<Vec<_>>(),
        [3, 4]
    );
}

#[test]
fn a_compaction_frees_space() {
    let mut store = Mvcc::new();
    for number in 0..1000 {
        store.advance();
        store.put(format!("{number}").as_bytes(), &[0; 100], 0);
    }
    for number in 0..1000 {
        store.advance();
        store.delete(format!("{number}").as_bytes());
    }
    assert_eq!(
        (
            store.keys(),
            store.count(&[0], &[0], 1001),
            store.count(&[0], &[0], 2001)
        ),
        (1000, 1000, 0)
    );
    store.compact(2001);
    while store.trim(64) {}
    assert_eq!((store.keys(), store.bytes(), store.history_len()), (0, 0, 1));
}

#[test]
fn a_pinned_revision_is_not_trimmed() {
    let mut store = Mvcc::new();
    for _ in 0..10 {
        store.advance();
        store.put(b"a", b"", 0);
    }
    store.compact(5);
    let (one, two, later) = (store.pin(5), store.pin(5), store.pin(8));
    let other = Mvcc::new();
    assert!(store.owns_pin(&one) && !other.owns_pin(&one));
    store.compact(11);
    let found = |store: &Mvcc, revision| {
        let mut modified = None;
        store.visit(b"a", b"", revision, |item| {
            modified = Some(item.modified);
            true
        });
        (modified, store.count(b"a", b"", revision))
    };
    assert!(store.may_trim() && !store.trim(100) && !store.may_trim());
    assert_eq!((store.history_len(), found(&store, 5)), (7, (Some(5), 1)));
    drop(one);
    assert!(!store.may_trim() && store.remembers(5));
    drop(two);
    assert!(store.trim(2) && !store.trim(100));
    assert_eq!((store.history_len(), found(&store, 8)), (4, (Some(8), 1)));
    drop(later);
    assert!(store.may_trim() && !store.trim(100));
    assert_eq!(store.history_len(), 1);
    assert!(store.remembers(11) && !store.remembers(10));
    assert!(!store.may_trim(), "there is nothing left to trim");
    // A pin of the newest revision delays no trim.
    let _newest = store.pin(11);
    store.advance();
    store.put(b"a", b"", 0);
    store.compact(12);
    assert!(!store.trim(100));
    assert_eq!(store.history_len(), 2, "the pinned revision and the next");
}
