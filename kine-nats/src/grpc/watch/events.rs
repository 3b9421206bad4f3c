//! The events of one watch: finds them in the history, and cuts them into responses.

use crate::mvcc::{Change, contains, encode_event};
use crate::watch_hub::{Registration, WatchCursor};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// A response that has reached this size takes no further events. It never splits a revision.
const ANSWER: usize = 1 << 20;
/// Changes that are visited while the store is locked.
pub(super) const PAGE: usize = 4096;

pub(super) struct OpenWatch {
    pub(super) start: Bytes,
    pub(super) end: Bytes,
    pub(super) cursor: Arc<WatchCursor>,
    pub(super) registration: Registration,
    /// First revision that the client requested.
    pub(super) begin: i64,
    /// Compact revision at the start of the watch. The version before a change at or below it could
    /// no longer be read.
    pub(super) compacted: i64,
    /// First revision that was not sent.
    pub(super) next: i64,
    pub(super) previous: bool,
    pub(super) no_put: bool,
    pub(super) no_delete: bool,
    pub(super) progress: bool,
    pub(super) fragment: bool,
    /// Events were sent since the last progress tick.
    pub(super) active: bool,
}

/// Events that one pass over the history found for a watch.
pub(super) struct Found {
    pub(super) events: Vec<Bytes>,
    /// Last revision that was visited.
    pub(super) through: i64,
    /// More revisions remain.
    pub(super) more: bool,
}

impl OpenWatch {
    /// Visits a page of changes. Only complete revisions are returned.
    pub(super) fn find<'a>(&self, changes: impl Iterator<Item = &'a Change>, from: i64, visible: i64) -> Found {
        let mut found = Found {
            events: Vec::new(),
            through: from - 1,
            more: false,
        };
        let (mut size, mut looked, mut revision) = (0, 0, from - 1);
        let mut puts: HashMap<&[u8], &Change> = HashMap::new();
        for change in changes {
            if change.revision > visible {
                break;
            }
            if change.revision > revision {
                if looked >= PAGE || size >= ANSWER {
                    found.through = revision;
                    found.more = true;
                    return found;
                }
                revision = change.revision;
                puts.clear();
            }
            looked += 1;
            // The previous version is the one before the revision, even for a key that the revision
            // put and then deleted.
            let put = puts.get(change.key());
            let previous = put.map_or(&change.previous, |put| &put.previous);
            if self.previous && !change.delete {
                puts.entry(change.key()).or_insert(change);
            }
            if self.includes(change) {
                let previous = previous
                    .as_deref()
                    .filter(|_| self.previous && change.revision > self.compacted);
                let event = encode_event(change.delete, &change.kv, previous);
                size += event.len();
                found.events.push(event);
            }
        }
        found.through = visible.max(from - 1);
        found
    }

    fn includes(&self, change: &Change) -> bool {
        let filtered = if change.delete { self.no_delete } else { self.no_put };
        !filtered && contains(&self.start, &self.end, change.key())
    }
}

/// Cuts events into pieces of about the size of a response.
pub(super) fn split(events: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let (mut pieces, mut size) = (vec![Vec::new()], 0);
    for event in events {
        if size > 0 && size + event.len() > ANSWER {
            pieces.push(Vec::new());
            size = 0;
        }
        size += event.len();
        if let Some(piece) = pieces.last_mut() {
            piece.push(event);
        }
    }
    pieces
}
