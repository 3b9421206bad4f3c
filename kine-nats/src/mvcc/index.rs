//! The ordered index: blocks of at most [`LEAF`] keys in order. An array holds the number of live
//! keys of each block. Counting a range therefore sums up a flat array and reads at most two
//! blocks.

use crate::mvcc::item::Item;
use bytes::Bytes;
use std::cmp::Ordering;

const LEAF: usize = 192;

/// A key with its retained versions, oldest first; never empty.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) key: Bytes,
    pub(super) versions: Vec<Item>,
}

impl Chain {
    pub(super) fn latest(&self) -> Option<&Item> {
        self.versions.last()
    }

    pub(super) fn is_live(&self) -> bool {
        self.latest().is_some_and(|item| !item.is_tombstone())
    }

    /// The version that a read at `revision` sees.
    pub(super) fn at(&self, revision: i64) -> Option<&Item> {
        self.versions
            .iter()
            .rev()
            .find(|item| item.modified <= revision)
            .filter(|item| !item.is_tombstone())
    }
}

/// The position of a key, whether or not it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    leaf: usize,
    slot: usize,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    leaves: Vec<Vec<Chain>>,
    live: Vec<u32>,
    keys: usize,
}

impl Index {
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Chain> {
        let (position, found) = self.find(key);
        if found {
            self.leaves.get(position.leaf)?.get(position.slot)
        } else {
            None
        }
    }

    /// Appends a version to the chain of its key; creates the chain if it is missing. Returns the
    /// version that was the latest before.
    pub(super) fn push(&mut self, item: Item) -> Option<Item> {
        let (position, found) = self.find(item.key());
        let now_live = !item.is_tombstone();
        if self.leaves.is_empty() {
            self.leaves.push(Vec::new());
            self.live.push(0);
        }
        let leaf = &mut self.leaves[position.leaf];
        let live = &mut self.live[position.leaf];
        let previous = if found {
            let chain = &mut leaf[position.slot];
            let previous = chain.latest().cloned();
            if chain.is_live() {
                *live -= 1;
            }
            chain.versions.push(item);
            previous
        } else {
            let key = Bytes::copy_from_slice(item.key());
            let versions = vec![item];
            leaf.insert(position.slot, Chain { key, versions });
            self.keys += 1;
            None
        };
        if now_live {
            *live += 1;
        }
        if leaf.len() > LEAF {
            self.split(position.leaf);
        }
        previous
    }

    /// Shortens a key's chain with `change`; removes a chain that is left empty. The latest version
    /// may be dropped only together with the chain.
    pub(super) fn trim(&mut self, key: &[u8], change: impl FnOnce(&mut Vec<Item>)) {
        let (position, found) = self.find(key);
        if !found {
            return;
        }
        let leaf = &mut self.leaves[position.leaf];
        let chain = &mut leaf[position.slot];
        let was_live = chain.is_live();
        change(&mut chain.versions);
        if chain.versions.capacity() > 4 * chain.versions.len() {
            chain.versions.shrink_to_fit();
        }
        if chain.versions.is_empty() {
            leaf.remove(position.slot);
            self.keys -= 1;
            if was_live {
                self.live[position.leaf] -= 1;
            }
            if leaf.is_empty() {
                self.leaves.remove(position.leaf);
                self.live.remove(position.leaf);
            }
        }
    }

    /// Number of keys in the range that are live at the head.
    pub(super) fn count(&self, start: &[u8], end: &[u8]) -> i64 {
        let (from, to) = self.bounds(start, end);
        if from >= to {
            return 0;
        }
        let live_in = |leaf: usize, slots: std::ops::Range<usize>| {
            let chains = self
                .leaves
                .get(leaf)
                .and_then(|leaf| leaf.get(slots))
                .unwrap_or_default();
            chains.iter().filter(|chain| chain.is_live()).count() as i64
        };
        if from.leaf == to.leaf {
            return live_in(from.leaf, from.slot..to.slot);
        }
        let first = live_in(from.leaf, from.slot..self.leaves[from.leaf].len());
        let between: i64 = self.live[from.leaf + 1..to.leaf]
            .iter()
            .map(|live| i64::from(*live))
            .sum();
        first + between + live_in(to.leaf, 0..to.slot)
    }

    /// An upper bound of the keys in the range, including dead ones, without visiting them.
    pub(super) fn span(&self, start: &[u8], end: &[u8]) -> usize {
        let (from, to) = self.bounds(start, end);
        if from >= to {
            0
        } else {
            (to.leaf - from.leaf + 1) * LEAF
        }
    }

    /// The chains of the range in key order.
    pub(super) fn range<'a>(&'a self, start: &[u8], end: &[u8]) -> impl Iterator<Item = &'a Chain> + use<'a> {
        let (from, to) = self.bounds(start, end);
        let last = if from >= to {
            from.leaf
        } else {
            (to.leaf + 1).min(self.leaves.len())
        };
        self.leaves[from.leaf.min(last)..last]
            .iter()
            .enumerate()
            .flat_map(move |(offset, leaf)| {
                let leaf_number = from.leaf + offset;
                let low = if leaf_number == from.leaf { from.slot } else { 0 };
                let high = if leaf_number == to.leaf { to.slot } else { leaf.len() };
                leaf.get(low..high).unwrap_or_default().iter()
            })
    }

    fn bounds(&self, start: &[u8], end: &[u8]) -> (Position, Position) {
        let from = self.find(start).0;
        let to = match end {
            [] => {
                let (position, found) = self.find(start);
                Position {
                    slot: position.slot + usize::from(found),
                    ..position
                }
            }
            [0] => Position {
                leaf: self.leaves.len(),
                slot: 0,
            },
            end => self.find(end).0,
        };
        (from, to)
    }

    /// Finds the position of a key. A key behind the last one of a block, but before the next
    /// block, belongs to the block before it.
    fn find(&self, key: &[u8]) -> (Position, bool) {
        let after = self
            .leaves
            .partition_point(|leaf| leaf.first().is_some_and(|chain| chain.key.as_ref() <= key));
        let leaf = after.saturating_sub(1);
        let Some(chains) = self.leaves.get(leaf) else {
            return (Position { leaf: 0, slot: 0 }, false);
        };
        match chains.binary_search_by(|chain| chain.key.as_ref().cmp(key)) {
            Ok(slot) => (Position { leaf, slot }, true),
            Err(slot) => (Position { leaf, slot }, false),
        }
    }

    fn split(&mut self, leaf: usize) {
        // Keys often arrive in order; a nearly full left half then keeps blocks dense.
        let at = match leaf.cmp(&(self.leaves.len() - 1)) {
            Ordering::Equal => LEAF * 7 / 8,
            _ => LEAF / 2,
        };
        let right = self.leaves[leaf].split_off(at);
        let right_live = right.iter().filter(|chain| chain.is_live()).count() as u32;
        self.live[leaf] -= right_live;
        self.leaves.insert(leaf + 1, right);
        self.live.insert(leaf + 1, right_live);
    }
}
