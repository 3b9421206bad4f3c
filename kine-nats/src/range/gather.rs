//! Reads a range at one revision, some keys at a time. Between two steps the store may be written,
//! and even compacted as long as the revision is pinned.

use crate::mvcc::{Item, Mvcc};
use crate::proto::etcdserverpb::{RangeRequest, RangeResponse};
use crate::range::Selection;
use bytes::Bytes;

/// Keys that are visited while the store is locked.
pub(crate) const SLICE: usize = 4096;

/// A range that is being read.
#[derive(Debug)]
pub(crate) struct Gathering<'r> {
    selection: Selection<'r, Item>,
    /// The first key that was not visited.
    from: Bytes,
    revision: i64,
    /// Number of keys in the range, if not all were visited.
    count: Option<i64>,
}

impl<'r> Gathering<'r> {
    pub(crate) fn new(request: &'r RangeRequest, revision: i64) -> Self {
        Self {
            selection: Selection::new(request),
            from: request.key.clone(),
            revision,
            count: None,
        }
    }

    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Visits some more keys. Returns whether more remain.
    pub(crate) fn step(&mut self, mvcc: &Mvcc) -> bool {
        let request = self.selection.request;
        let next = mvcc.visit_part(&self.from, &request.range_end, self.revision, SLICE, |item| {
            self.selection.take(item.clone())
        });
        let Some(next) = next else { return false };
        if self.selection.cut {
            self.count = Some(mvcc.count(&request.key, &request.range_end, self.revision));
            return false;
        }
        self.from = next.clone();
        true
    }

    /// Builds the response; it has no header.
    pub(crate) fn finish(self) -> RangeResponse {
        let count = self.count.unwrap_or(self.selection.seen);
        self.selection.answer(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::seeded;
    use crate::range::{range, revision};
    use rand::RngExt;

    #[test]
    fn slices_form_a_range() {
        let mut random = seeded();
        let mut mvcc = Mvcc::new();
        for _ in 0..100 {
            let revision = mvcc.advance();
            for _ in 0..300 {
                let key = format!("k{:05}", random.random_range(0..3 * SLICE));
                if random.random_ratio(1, 5) {
                    mvcc.delete(key.as_bytes());
                } else {
                    let value = random.random_range(0..1000u32).to_string();
                    mvcc.put(key.as_bytes(), value.as_bytes(), 0);
                }
            }
            mvcc.publish(revision);
        }
        let mut most = 0;
        for _ in 0..150 {
            let request = RangeRequest {
                key: format!("k{:05}", random.random_range(0..SLICE)).into(),
                range_end: ["\0", "z", "k06000", "k0"][random.random_range(0..4usize)].into(),
                limit: [0, -1, 1, 5000, i64::MAX][random.random_range(0..5usize)],
                revision: random.random_range(0..=101),
                keys_only: random.random_ratio(1, 4),
                sort_order: random.random_range(0..3),
                sort_target: [0, 0, 0, 1, 2, 3, 4][random.random_range(0..7usize)],
                min_mod_revision: [0, 0, 50][random.random_range(0..3usize)],
                max_create_revision: [0, 0, 60][random.random_range(0..3usize)],
                ..RangeRequest::default()
            };
            let at = revision(&request, mvcc.visible());
            let (mut gathering, mut steps) = (Gathering::new(&request, at), 1);
            while gathering.step(&mvcc) {
                steps += 1;
            }
            assert!(gathering.finish() == range(&mvcc, &request, at), "{request:?}");
            most = most.max(steps);
        }
        assert!(most > 2, "{most} steps");
    }
}
