//! Keys at revisions, in memory.
//!
//! The writer changes the head. Readers see up to `visible`, the newest stored revision. One
//! structure holds both; the revisions in between are in flight. Besides the ordered index there is
//! the history with one entry per change. Watches read it, and counts at older revisions use it:
//!
//! ```text
//! put, delete ──► index (latest and older versions) ◄── range, count
//!             └─► history (changes since the compact revision) ◄── watches, snapshots
//! ```

mod index;
mod item;
mod pin;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use index::Index;
pub(crate) use item::{InvalidItem, Item, encode_event, key_of};
pub(crate) use pin::Pin;
use pin::Pins;
use std::collections::VecDeque;
use std::sync::Arc;

/// Quota bytes of a version besides its content: index entry, history entry, allocations. Measured
/// with values of 1 KiB (docs/benchmarks). A lower value would not bound the memory of small
/// values.
const ITEM_OVERHEAD: u64 = 400;

/// One change of one key.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) delete: bool,
    /// The encoded version that the change created.
    pub(crate) kv: Bytes,
    /// The encoded version before the change.
    pub(crate) previous: Option<Bytes>,
}

impl Change {
    pub(crate) fn key(&self) -> &[u8] {
        key_of(&self.kv)
    }

    /// How the change affects the number of live keys.
    fn delta(&self) -> i64 {
        match (self.delete, &self.previous) {
            (false, None) => 1,
            (false, Some(_)) => 0,
            (true, Some(_)) => -1,
            (true, None) => 0,
        }
    }
}

/// The keys of a store.
#[derive(Debug)]
pub(crate) struct Mvcc {
    index: Index,
    history: VecDeque<Change>,
    head: i64,
    visible: i64,
    compacted: i64,
    trimmed: i64,
    /// The highest revision whose changes are no longer in the history.
    dropped: i64,
    bytes: u64,
    /// Pins of readers that read a revision piece by piece.
    pins: Arc<Pins>,
}

impl Mvcc {
    /// A new store: like etcd it starts at revision 1.
    pub(crate) fn new() -> Self {
        Self::restored(1, -1)
    }

    /// An empty store into which a snapshot is loaded.
    pub(crate) fn restored(revision: i64, compacted: i64) -> Self {
        Self {
            index: Index::default(),
            history: VecDeque::new(),
            head: revision,
            visible: revision,
            compacted,
            trimmed: i64::MIN,
            dropped: compacted - 1,
            bytes: 0,
            pins: Arc::default(),
        }
    }

    /// Pins a revision that can be read now: it and all later ones stay readable.
    pub(crate) fn pin(&self, revision: i64) -> Pin {
        Pin::new(&self.pins, revision)
    }

    /// Whether a pin belongs to this store, and not to one that this store replaced.
    pub(crate) fn owns_pin(&self, pin: &Pin) -> bool {
        pin.belongs_to(&self.pins)
    }

    /// Whether there is history to trim that is not pinned.
    pub(crate) fn may_trim(&self) -> bool {
        self.trimmed < self.compacted && self.trimmed < self.floor()
    }

    /// Trim may drop what lies below this revision: the compact revision, or the lowest pin if that
    /// is lower.
    fn floor(&self) -> i64 {
        self.pins
            .lowest()
            .map_or(self.compacted, |pinned| pinned.min(self.compacted))
    }

    /// Newest revision, stored or in flight.
    pub(crate) fn head(&self) -> i64 {
        self.head
    }

    /// Newest stored revision.
    pub(crate) fn visible(&self) -> i64 {
        self.visible
    }

    /// Lowest revision that can be read; -1 before the first compaction.
    pub(crate) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Quota bytes of all versions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of keys in the index, including deleted keys with history.
    pub(crate) fn keys(&self) -> usize {
        self.index.keys()
    }

    /// Number of changes in the history.
    pub(crate) fn history_len(&self) -> usize {
        self.history.len()
    }

    /// Makes everything up to `revision` visible.
    pub(crate) fn publish(&mut self, revision: i64) {
        debug_assert!(revision >= self.visible && revision <= self.head);
        self.visible = revision;
    }

    /// Increments the head; the changes of the new revision follow.
    pub(crate) fn advance(&mut self) -> i64 {
        self.head += 1;
        self.head
    }

    /// Writes a key at the head. Returns the new version and the previous one.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> (Item, Option<Item>) {
        let previous = self.latest(key);
        let (created, version) = previous.map_or((self.head, 1), |item| (item.created, item.version + 1));
        let item = Item::put(key, value, created, self.head, version, lease);
        let previous = self.push(item.clone());
        (item, previous)
    }

    /// Deletes a key at the head. Returns the tombstone and the previous version; `None` if the key
    /// did not exist.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Option<(Item, Item)> {
        self.latest(key)?;
        let item = Item::tombstone(key, self.head);
        let previous = self.push(item.clone())?;
        Some((item, previous))
    }

    /// Applies a change from the log. The head must already be at its revision.
    pub(crate) fn replay(&mut self, item: Item) -> Option<Item> {
        self.push(item)
    }

    /// Loads a version from a snapshot that is older than the history.
    pub(crate) fn load(&mut self, item: Item) {
        self.bytes += item.kv.len() as u64 + ITEM_OVERHEAD;
        self.index.push(item);
    }

    /// Sets the head while changes are applied from the log or a snapshot.
    pub(crate) fn set_head(&mut self, revision: i64) {
        self.head = revision;
    }

    /// The live version of a key at the head.
    pub(crate) fn latest(&self, key: &[u8]) -> Option<&Item> {
        self.index.get(key)?.latest().filter(|item| !item.is_tombstone())
    }

    /// Calls `visit` with the live versions of the range at a revision, in key order, until it
    /// returns `false`.
    pub(crate) fn visit<'a>(
        &'a self,
        start: &[u8],
        end: &[u8],
        revision: i64,
        mut visit: impl FnMut(&'a Item) -> bool,
    ) {
        // Fast path: most reads are for one key.
        if end.is_empty() {
            if let Some(item) = self.index.get(start).and_then(|chain| chain.at(revision)) {
                visit(item);
            }
            return;
        }
        for chain in self.index.range(start, end) {
            if let Some(item) = chain.at(revision)
                && !visit(item)
            {
                return;
            }
        }
    }

    /// Like [`Mvcc::visit`], but visits at most `most` keys, including those that are not live.
    /// Returns the key to continue from: the one for which `visit` returned `false`, or the first
    /// that was not visited.
    pub(crate) fn visit_part<'a>(
        &'a self,
        start: &[u8],
        end: &[u8],
        revision: i64,
        most: usize,
        mut visit: impl FnMut(&'a Item) -> bool,
    ) -> Option<&'a Bytes> {
        for (seen, chain) in self.index.range(start, end).enumerate() {
            if seen == most || chain.at(revision).is_some_and(|item| !visit(item)) {
                return Some(&chain.key);
            }
        }
        None
    }

    /// How many keys or changes [`Mvcc::count`] visits; 0 at the newest revision.
    pub(crate) fn counting(&self, start: &[u8], end: &[u8], revision: i64) -> i64 {
        let later = self.history.len() - self.position(revision + 1);
        i64::try_from(later.min(4 * self.index.span(start, end))).unwrap_or(i64::MAX)
    }

    /// Number of keys in the range that are live at a revision.
    pub(crate) fn count(&self, start: &[u8], end: &[u8], revision: i64) -> i64 {
        let since = self.position(revision + 1);
        if self.history.len() - since > 4 * self.index.span(start, end) {
            let mut count = 0;
            self.visit(start, end, revision, |_| {
                count += 1;
                true
            });
            return count;
        }
        let later: i64 = self
            .history
            .range(since..)
            .filter(|change| contains(start, end, change.key()))
            .map(Change::delta)
            .sum();
        self.index.count(start, end) - later
    }

    /// The changes at `from` and later, oldest first; those above `visible` are in flight.
    pub(crate) fn changes(&self, from: i64) -> impl Iterator<Item = &Change> {
        self.history.range(self.position(from)..)
    }

    /// Whether the history has every change from a revision on. It may reach further back than
    /// reads may.
    pub(crate) fn remembers(&self, from: i64) -> bool {
        from > self.dropped
    }

    /// Makes `revision` the lowest that can be read. [`Mvcc::trim`] frees the space.
    pub(crate) fn compact(&mut self, revision: i64) {
        self.compacted = self.compacted.max(revision);
    }

    /// Drops history below the compact revision that is not pinned, at most `limit` changes.
    /// Returns whether more remains.
    pub(crate) fn trim(&mut self, limit: usize) -> bool {
        if !self.may_trim() {
            return false;
        }
        let floor = self.floor();
        for _ in 0..limit {
            let Some(change) = self.history.front() else { break };
            if change.revision >= floor {
                break;
            }
            let kv = change.kv.clone();
            self.dropped = change.revision;
            self.history.pop_front();
            self.trim_key(key_of(&kv), floor);
        }
        if self.history.front().is_some_and(|change| change.revision < floor) {
            return true;
        }
        let at: Vec<Bytes> = self
            .changes(floor)
            .take_while(|c| c.revision == floor)
            .map(|c| c.kv.clone())
            .collect();
        for kv in at {
            self.trim_key(key_of(&kv), floor);
        }
        self.trimmed = floor;
        if self.history.capacity() > 4 * self.history.len() + 1024 {
            self.history.shrink_to_fit();
        }
        false
    }

    /// A page of the versions that a reader of `floor` and later needs besides the changes since
    /// `floor`: for each key the newest version below it. Returns the key to continue from, or
    /// `None` at the end.
    pub(crate) fn base_page(&self, from: &[u8], limit: usize, floor: i64) -> (Vec<Item>, Option<Bytes>) {
        let mut page = Vec::new();
        for (seen, chain) in self.index.range(from, &[0]).enumerate() {
            if seen == limit {
                return (page, Some(chain.key.clone()));
            }
            if let Some(item) = chain.at(floor - 1) {
                page.push(item.clone());
            }
        }
        (page, None)
    }

    fn push(&mut self, item: Item) -> Option<Item> {
        let (revision, delete, kv) = (item.modified, item.is_tombstone(), item.kv.clone());
        self.bytes += kv.len() as u64 + ITEM_OVERHEAD;
        let previous = self.index.push(item).filter(|item| !item.is_tombstone());
        let before = previous.as_ref().map(|item| item.kv.clone());
        self.history.push_back(Change {
            revision,
            delete,
            kv,
            previous: before,
        });
        previous
    }

    fn trim_key(&mut self, key: &[u8], floor: i64) {
        let bytes = &mut self.bytes;
        self.index.trim(key, |versions| {
            let below = versions.iter().take_while(|item| item.modified <= floor).count();
            let mut drop = below.saturating_sub(1);
            if below > 0 && versions.get(below - 1).is_some_and(Item::is_tombstone) {
                drop = below;
            }
            for item in versions.drain(..drop) {
                *bytes = bytes.saturating_sub(item.kv.len() as u64 + ITEM_OVERHEAD);
            }
        });
    }

    fn position(&self, revision: i64) -> usize {
        self.history.partition_point(|change| change.revision < revision)
    }
}

/// Whether a key lies in a range in etcd's notation: an empty end means only the start, and a zero
/// byte means no end.
pub(crate) fn contains(start: &[u8], end: &[u8], key: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        end => key >= start && key < end,
    }
}
