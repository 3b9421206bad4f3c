//! Keys at revisions, in memory.
//!
//! The writer changes the head; readers see up to `visible`, the newest revision that is stored. One structure holds
//! both: what is between them is in flight. Besides the ordered index there is the history, one entry a change, which
//! watches read and by which counts at older revisions are corrected:
//!
//! ```text
//! put, delete ──► index (latest and older versions) ◄── range, count
//!             └─► history (changes since the compact revision) ◄── watches, snapshots
//! ```

mod hold;
mod index;
mod item;
#[cfg(test)]
mod tests;

use bytes::Bytes;
pub(crate) use hold::Hold;
use hold::Holds;
use index::Index;
pub(crate) use item::{InvalidItem, Item, encode_event, key_of};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a version costs besides its bytes, for the quota: index entry, history entry, allocations. Measured with values of
/// 1 KiB (docs/benchmarks); with less the quota would not bound the memory of small values.
const ITEM_OVERHEAD: u64 = 400;

/// One change of one key.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) delete: bool,
    /// Encoded version that the change made.
    pub(crate) kv: Bytes,
    /// Encoded version before it.
    pub(crate) previous: Option<Bytes>,
}

impl Change {
    pub(crate) fn key(&self) -> &[u8] {
        key_of(&self.kv)
    }

    /// How the number of live keys changed.
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
    /// The highest revision of which the history has no changes any more.
    gone: i64,
    bytes: u64,
    /// Shared with everyone who reads a revision piece by piece.
    holds: Arc<Holds>,
}

impl Mvcc {
    /// A store in which nothing happened: etcd begins at revision 1.
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
            gone: compacted - 1,
            bytes: 0,
            holds: Arc::default(),
        }
    }

    /// Keeps a revision that can be read now, and all later ones, readable.
    pub(crate) fn hold(&self, revision: i64) -> Hold {
        Hold::new(&self.holds, revision)
    }

    /// Whether a hold is one of this store, and not of one that it took the place of.
    pub(crate) fn is_held_by(&self, hold: &Hold) -> bool {
        hold.is_one_of(&self.holds)
    }

    /// Whether there is something to trim that nobody holds.
    pub(crate) fn may_trim(&self) -> bool {
        self.trimmed < self.compacted && self.trimmed < self.floor()
    }

    /// What lies below it is not needed: the compact revision, unless a lower one is held.
    fn floor(&self) -> i64 {
        self.holds
            .lowest()
            .map_or(self.compacted, |held| held.min(self.compacted))
    }

    /// Newest revision, stored or in flight.
    pub(crate) fn head(&self) -> i64 {
        self.head
    }

    /// Newest revision that is stored.
    pub(crate) fn visible(&self) -> i64 {
        self.visible
    }

    /// Lowest revision that can be read; -1 before the first compaction.
    pub(crate) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// What is kept, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many keys have an entry, deleted ones with history included.
    pub(crate) fn keys(&self) -> usize {
        self.index.keys()
    }

    /// How many changes the history holds.
    pub(crate) fn history_len(&self) -> usize {
        self.history.len()
    }

    /// Makes everything up to `revision` visible.
    pub(crate) fn publish(&mut self, revision: i64) {
        debug_assert!(revision >= self.visible && revision <= self.head);
        self.visible = revision;
    }

    /// Counts the head up; the changes of the new revision follow.
    pub(crate) fn advance(&mut self) -> i64 {
        self.head += 1;
        self.head
    }

    /// Writes a key at the head. Answers the version made and the one before.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> (Item, Option<Item>) {
        let previous = self.latest(key);
        let (created, version) = previous.map_or((self.head, 1), |item| (item.created, item.version + 1));
        let item = Item::put(key, value, created, self.head, version, lease);
        let previous = self.push(item.clone());
        (item, previous)
    }

    /// Removes a key at the head. Answers what was made and what was there; `None` when there was nothing.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Option<(Item, Item)> {
        self.latest(key)?;
        let item = Item::tombstone(key, self.head);
        let previous = self.push(item.clone())?;
        Some((item, previous))
    }

    /// Takes over a change from the log. The head must have been advanced to its revision.
    pub(crate) fn replay(&mut self, item: Item) -> Option<Item> {
        self.push(item)
    }

    /// Takes over a version from a snapshot, older than the history.
    pub(crate) fn load(&mut self, item: Item) {
        self.bytes += item.kv.len() as u64 + ITEM_OVERHEAD;
        self.index.push(item);
    }

    /// Sets the head while changes are taken from the log or a snapshot.
    pub(crate) fn set_head(&mut self, revision: i64) {
        self.head = revision;
    }

    /// The live version of a key at the head.
    pub(crate) fn latest(&self, key: &[u8]) -> Option<&Item> {
        self.index.get(key)?.latest().filter(|item| !item.is_tombstone())
    }

    /// Calls `visit` with the live versions of the range at a revision, in key order, until it answers `false`.
    pub(crate) fn visit<'a>(
        &'a self,
        start: &[u8],
        end: &[u8],
        revision: i64,
        mut visit: impl FnMut(&'a Item) -> bool,
    ) {
        // Most reads are of one key.
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

    /// As [`Mvcc::visit`], but looks at `most` keys only, those that are not live included. Answers the key to go on from:
    /// the one for which `visit` answered `false`, or the first that was not looked at.
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

    /// How many keys or changes [`Mvcc::count`] goes over: at the newest revision none.
    pub(crate) fn counting(&self, start: &[u8], end: &[u8], revision: i64) -> i64 {
        let later = self.history.len() - self.position(revision + 1);
        i64::try_from(later.min(4 * self.index.span(start, end))).unwrap_or(i64::MAX)
    }

    /// How many keys of the range are live at a revision.
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

    /// Whether the history has every change from a revision on. It may have more than can be read.
    pub(crate) fn remembers(&self, from: i64) -> bool {
        from > self.gone
    }

    /// Makes `revision` the lowest that can be read. The space comes back by [`Mvcc::trim`].
    pub(crate) fn compact(&mut self, revision: i64) {
        self.compacted = self.compacted.max(revision);
    }

    /// Drops what lies below the compact revision and is not held, at most `limit` changes. Answers whether there is more.
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
            self.gone = change.revision;
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

    /// A page of the versions that a reader of `floor` and later needs besides the changes since `floor`: for each key the
    /// newest one below it. Answers the key to go on from, or `None` at the end.
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

/// Whether a key lies in a range as requests write it: an empty end means the start alone, a zero byte no end.
pub(crate) fn contains(start: &[u8], end: &[u8], key: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        end => key >= start && key < end,
    }
}
