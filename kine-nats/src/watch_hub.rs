//! Notifies watches of changes. Every watch registers a cursor here. A commit sets the cursors of
//! the watches that match, and each stream then reads the history from its cursor on. No event is
//! queued per watch: a slow stream has one cursor, however far it lags behind.
//!
//! ```text
//! writer: stored ──► visible ──► WatchHub::commit ──► WatchCursor::set ──► stream wakes ──► reads history from the cursor on
//! ```

use crate::mvcc::{Change, contains};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The revision from which a watch has to read.
#[derive(Debug)]
pub(crate) struct WatchCursor {
    from: AtomicI64,
    stream: Arc<Notify>,
}

impl WatchCursor {
    pub(crate) fn new(stream: Arc<Notify>) -> Self {
        Self {
            from: AtomicI64::new(0),
            stream,
        }
    }

    /// Sets the cursor and wakes the stream, unless an older revision is set.
    pub(crate) fn set(&self, revision: i64) {
        if self
            .from
            .compare_exchange(0, revision, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            self.stream.notify_one();
        }
    }

    /// Sets the cursor to a revision that is older than any commit could have set, and wakes the
    /// stream.
    pub(crate) fn rewind(&self, revision: i64) {
        self.from.store(revision, Ordering::Release);
        self.stream.notify_one();
    }

    /// Takes the revision and clears the cursor; 0 means that nothing is to be read.
    pub(crate) fn take(&self) -> i64 {
        self.from.swap(0, Ordering::AcqRel)
    }

    /// Whether there is nothing to read.
    pub(crate) fn is_clear(&self) -> bool {
        self.from.load(Ordering::Acquire) == 0
    }
}

type Cursors = Vec<(u64, Arc<WatchCursor>)>;

/// Cursors by the range that they watch.
#[derive(Debug, Default)]
struct Index {
    keys: HashMap<Bytes, Cursors>,
    /// Ranges that are a prefix, by its length: a change costs one lookup per length, not one per
    /// watch.
    prefixes: BTreeMap<usize, HashMap<Bytes, Cursors>>,
    ranges: Vec<(Bytes, Bytes, u64, Arc<WatchCursor>)>,
}

/// All watches of a store.
#[derive(Debug)]
pub(crate) struct WatchHub {
    index: Mutex<Index>,
    /// All changes up to this revision have set their cursors.
    marked: AtomicI64,
    next: AtomicU64,
    everyone: Notify,
}

/// The registration of one watch.
#[derive(Debug)]
pub(crate) struct Registration {
    id: u64,
    start: Bytes,
    end: Bytes,
}

impl WatchHub {
    pub(crate) fn new(revision: i64) -> Self {
        Self {
            index: Mutex::default(),
            marked: AtomicI64::new(revision),
            next: AtomicU64::new(1),
            everyone: Notify::new(),
        }
    }

    /// The revision up to which a watch with a clear cursor has read everything.
    pub(crate) fn marked(&self) -> i64 {
        self.marked.load(Ordering::Acquire)
    }

    /// Adds a watch; every change that is committed after the call sets its cursor.
    pub(crate) fn register(&self, start: Bytes, end: Bytes, cursor: Arc<WatchCursor>) -> Registration {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut index = self.lock();
        if end.is_empty() {
            index.keys.entry(start.clone()).or_default().push((id, cursor));
        } else if is_prefix_range(&start, &end) {
            index
                .prefixes
                .entry(start.len())
                .or_default()
                .entry(start.clone())
                .or_default()
                .push((id, cursor));
        } else {
            index.ranges.push((start.clone(), end.clone(), id, cursor));
        }
        Registration { id, start, end }
    }

    /// Removes a watch.
    pub(crate) fn unregister(&self, registration: &Registration) {
        let Registration { id, start, end } = registration;
        let mut guard = self.lock();
        let index = &mut *guard;
        let remove = |map: &mut HashMap<Bytes, Cursors>| {
            if let Some(cursors) = map.get_mut(start) {
                cursors.retain(|(other, _)| other != id);
                if cursors.is_empty() {
                    map.remove(start);
                }
            }
        };
        if end.is_empty() {
            remove(&mut index.keys);
        } else if is_prefix_range(start, end) {
            if let Some(map) = index.prefixes.get_mut(&start.len()) {
                remove(map);
                if map.is_empty() {
                    index.prefixes.remove(&start.len());
                }
            }
        } else {
            index.ranges.retain(|(_, _, other, _)| other != id);
        }
    }

    /// Sets the cursors of the watches that match a change. The change is visible already.
    pub(crate) fn commit<'a>(&self, changes: impl Iterator<Item = &'a Change>, revision: i64) {
        let index = self.lock();
        for change in changes {
            index.set_cursors(change.key(), change.revision);
        }
        self.marked.fetch_max(revision, Ordering::AcqRel);
    }

    /// Makes every watch read from a revision on, whether or not a matching change is known.
    pub(crate) fn rewind_all(&self, revision: i64) {
        let index = self.lock();
        let set = |cursors: &Cursors| cursors.iter().for_each(|(_, cursor)| cursor.set(revision));
        index.keys.values().for_each(set);
        index.prefixes.values().flat_map(HashMap::values).for_each(set);
        index.ranges.iter().for_each(|(_, _, _, cursor)| cursor.set(revision));
    }

    /// Number of watches, and how many of them have something to read.
    pub(crate) fn watches(&self) -> (usize, usize) {
        let index = self.lock();
        let prefixes = index.prefixes.values().flat_map(HashMap::values);
        let cursors = index.keys.values().chain(prefixes).flatten().map(|(_, cursor)| cursor);
        let cursors = cursors.chain(index.ranges.iter().map(|(_, _, _, cursor)| cursor));
        cursors.fold((0, 0), |(all, marked), cursor| {
            (all + 1, marked + usize::from(!cursor.is_clear()))
        })
    }

    /// Makes every stream check the state of the store.
    pub(crate) fn wake_all(&self) {
        self.everyone.notify_waiters();
    }

    /// Waits for [`WatchHub::wake_all`], from the time of the call on.
    pub(crate) fn woken(&self) -> Notified<'_> {
        self.everyone.notified()
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn set_cursors(&self, key: &[u8], revision: i64) {
        let set = |cursors: &Cursors| cursors.iter().for_each(|(_, cursor)| cursor.set(revision));
        if let Some(cursors) = self.keys.get(key) {
            set(cursors);
        }
        for (length, prefixes) in self.prefixes.range(..=key.len()) {
            if let Some(cursors) = key.get(..*length).and_then(|prefix| prefixes.get(prefix)) {
                set(cursors);
            }
        }
        for (start, end, _, cursor) in &self.ranges {
            if contains(start, end, key) {
                cursor.set(revision);
            }
        }
    }
}

/// Whether a range holds exactly the keys with the prefix `start`.
fn is_prefix_range(start: &[u8], end: &[u8]) -> bool {
    let mut prefix_end = start.to_vec();
    match prefix_end.last_mut() {
        Some(last) if *last < 0xff => *last += 1,
        _ => return false,
    }
    prefix_end == end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::Item;

    #[test]
    fn only_matching_watches_are_marked() {
        let hub = WatchHub::new(1);
        let watch = |start: &'static str, end: &'static str| {
            let cursor = Arc::new(WatchCursor::new(Arc::new(Notify::new())));
            (hub.register(start.into(), end.into(), Arc::clone(&cursor)), cursor)
        };
        let watches = [
            watch("/a/x", ""),
            watch("/a/", "/a0"),
            watch("/", "0"),
            watch("/b/", "/b0"),
            watch("/a/w", "/a/y"),
            watch("/a/y", "\0"),
        ];
        assert_eq!(hub.watches(), (6, 0));
        let change = |key: &str, revision| Change {
            revision,
            delete: false,
            kv: Item::put(key.as_bytes(), b"", 2, 2, 1, 0).kv,
            previous: None,
        };
        let marks_after = |changes: &[Change]| {
            hub.commit(changes.iter(), changes.last().unwrap().revision);
            watches.each_ref().map(|(_, cursor)| cursor.take())
        };
        assert_eq!(marks_after(&[change("/a/x", 2)]), [2, 2, 2, 0, 2, 0]);
        assert_eq!(
            marks_after(&[change("/a/xx", 3), change("/a/z", 4)]),
            [0, 3, 3, 0, 3, 4]
        );
        assert_eq!(marks_after(&[change("/b/", 5)]), [0, 0, 5, 5, 0, 5]);
        watches[2].1.set(5);
        assert_eq!(hub.watches(), (6, 1));
        watches[2].1.take();
        assert_eq!(hub.marked(), 5);
        watches
            .iter()
            .for_each(|(registration, _)| hub.unregister(registration));
        assert_eq!(hub.watches(), (0, 0));
        assert_eq!(marks_after(&[change("/a/x", 6)]), [0; 6]);
    }
}
