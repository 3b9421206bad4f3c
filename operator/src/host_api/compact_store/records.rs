//! Records in order of their keys, in a few large blocks. There are hundreds of thousands of
//! records: allocated one by one, each would need an allocator header and an entry in a tree. Pure.
//!
//! ```text
//!  "" ─▶ │ a/x │ a/y │ b/x │      "c/x" ─▶ │ c/x │ d/x │      ...
//! ```

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::host_api::compact_store::record::Record;

/// Maximum size of a block in bytes, unless a single record is larger.
const MOST: usize = 16 << 10;
/// Spare bytes that a block gets when it grows.
const SLACK: usize = 1 << 10;

/// Blocks of records, each under a lower bound of its keys. The first bound is the empty key.
#[derive(Debug, Default)]
pub(crate) struct Records {
    blocks: BTreeMap<Box<str>, Vec<u8>>,
    count: usize,
}

impl Records {
    /// Returns the number of records.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the record of a key.
    pub(crate) fn get(&self, key: &str) -> Option<Record<'_>> {
        let (_, block) = self.blocks.range::<str, _>(up_to(key)).next_back()?;
        list(block).find(|record| record.key() == key)
    }

    /// Returns the records from a key on, in order.
    pub(crate) fn from<'l>(&'l self, key: &'l str) -> impl Iterator<Item = Record<'l>> {
        let bound = self.blocks.range::<str, _>(up_to(key)).next_back();
        let bound = bound.map_or("", |(bound, _)| bound);
        let blocks = self.blocks.range::<str, _>((Bound::Included(bound), Bound::Unbounded));
        blocks
            .flat_map(|(_, block)| list(block))
            .skip_while(move |record| record.key() < key)
    }

    /// Inserts a record, or replaces the one with the same key.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let Some((record, _)) = Record::split(bytes) else {
            return;
        };
        if self.blocks.is_empty() {
            self.blocks.insert("".into(), Vec::with_capacity(MOST));
        }
        let mut before = self.blocks.range_mut::<str, _>(up_to(record.key()));
        let (_, block) = before.next_back().expect("the empty key is before all others");
        let (at, length) = find(block, record.key());
        if block.capacity() - block.len() < bytes.len() {
            block.reserve_exact(bytes.len().max(SLACK));
        }
        block.splice(at..at + length, bytes.iter().copied());
        self.count += usize::from(length == 0);
        if block.len() <= MOST {
            return;
        }
        // A list arrives in order: a split at the end fills each block.
        let is_last = at + bytes.len() == block.len();
        let middle = if is_last { at } else { find_middle(block) };
        if middle == 0 {
            return;
        }
        let mut rest = Vec::with_capacity(if is_last { MOST.max(bytes.len()) } else { 0 });
        rest.extend(block.drain(middle..));
        block.shrink_to_fit();
        if let Some((first, _)) = Record::split(&rest) {
            let bound = first.key().into();
            self.blocks.insert(bound, rest);
        }
    }

    /// Removes the record of a key.
    pub(crate) fn remove(&mut self, key: &str) {
        let Some((bound, block)) = self.blocks.range_mut::<str, _>(up_to(key)).next_back() else {
            return;
        };
        let (at, length) = find(block, key);
        block.drain(at..at + length);
        self.count -= usize::from(length > 0);
        if block.is_empty() && !bound.is_empty() {
            let bound = bound.clone();
            self.blocks.remove(&bound);
        } else if block.len() < block.capacity() / 2 {
            block.shrink_to(block.len() + SLACK);
        }
    }
}

fn up_to(key: &str) -> (Bound<&str>, Bound<&str>) {
    (Bound::Unbounded, Bound::Included(key))
}

fn list(mut block: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let (record, rest) = Record::split(block)?;
        block = rest;
        Some(record)
    })
}

/// Returns the offset of a key's record, and its length. If there is none, the offset is where it
/// belongs, and the length is 0.
fn find(block: &[u8], key: &str) -> (usize, usize) {
    let mut at = 0;
    for record in list(block) {
        if record.key() >= key {
            return (at, if record.key() == key { record.length() } else { 0 });
        }
        at += record.length();
    }
    (at, 0)
}

/// Returns the offset of the second half of a block.
fn find_middle(block: &[u8]) -> usize {
    let mut at = 0;
    for record in list(block) {
        if at > 0 && at + record.length() > block.len() / 2 {
            break;
        }
        at += record.length();
    }
    // A record that is larger than all others together stays alone.
    if at == block.len() { 0 } else { at }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;
    use crate::host_api::compact_store::record::build_record;

    fn check(records: &Records, expected: &BTreeMap<String, usize>) {
        let all: Vec<_> = records
            .from("")
            .map(|record| (record.key().to_owned(), record.packed().1.len()))
            .collect();
        let wanted: Vec<_> = expected.iter().map(|(key, length)| (key.clone(), *length)).collect();
        assert_eq!((all, records.len()), (wanted, expected.len()));
        for (bound, block) in &records.blocks {
            // A block with a large record is split further by the next insert.
            let largest = list(block).map(Record::length).max().unwrap_or_default();
            assert!(block.len() <= MOST + largest, "{bound}: {}", block.len());
            assert!(list(block).all(|record| record.key() >= &**bound), "{bound}");
        }
    }

    /// Compares random inserts and removals with a `BTreeMap`. Keys repeat, and lengths vary.
    fn run(seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut records, mut expected) = (Records::default(), BTreeMap::new());
        for _ in 0..2000 {
            let key = format!("{}/{}", random.random_range(0..30), random.random_range(0..30));
            if random.random_range(0..3) == 0 {
                records.remove(&key);
                expected.remove(&key);
            } else {
                let length = if random.random_range(0..50) == 0 {
                    20_000
                } else {
                    random.random_range(0..300)
                };
                records.put(&build_record(&key, None, 0, &vec![1; length]));
                expected.insert(key, length);
            }
            let key = format!("{}/{}", random.random_range(0..30), random.random_range(0..30));
            let found = records.get(&key).map(|record| record.packed().1.len());
            assert_eq!(found, expected.get(&key).copied(), "seed {seed}");
            let next = records.from(&key).next().map(Record::key);
            let wanted = expected.range(key.clone()..).next().map(|(key, _)| key.as_str());
            assert_eq!(next, wanted, "seed {seed}");
        }
        check(&records, &expected);
        for key in expected.keys() {
            records.remove(key);
        }
        check(&records, &BTreeMap::new());
    }

    #[test]
    fn records_behave_as_in_a_map() {
        let seed = rand::random();
        println!("seed {seed}");
        for seed in [1, 2, 3, seed] {
            run(seed);
        }
    }

    #[test]
    fn sorted_inserts_fill_the_blocks() {
        let (mut records, mut expected) = (Records::default(), BTreeMap::new());
        for number in 0..5000 {
            let key = format!("n/{number:05}");
            records.put(&build_record(&key, None, 0, &[1; 100]));
            expected.insert(key, 100);
        }
        check(&records, &expected);
        let (used, allocated) = records.blocks.values().fold((0, 0), |(used, allocated), block| {
            (used + block.len(), allocated + block.capacity())
        });
        assert!(allocated < used + used / 20 + MOST, "{allocated} for {used}");
    }
}
