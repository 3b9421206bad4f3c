//! Reads a range in pages at one revision, for RangeStream: between two pages nothing is held, neither the store nor what
//! was read. Put together, the pages say what a Range at the beginning would have said.
//!
//! ```text
//! begin ─► Step ─► step ─► Step ─► … ─► Last     each under the lock, for SLICE keys at most
//!                   │
//!                   └─► Compacted: what is left cannot be read any more
//! ```

use super::{check_revision, range, revision};
use crate::mvcc::Mvcc;
use crate::proto::etcdserverpb::range_request::SortTarget;
use crate::proto::etcdserverpb::{RangeRequest, RangeResponse};
use crate::refusal::Refusal;
use bytes::Bytes;

/// A page takes no more keys from this size on. A client that lists everything has a stream for each kind of objects, and
/// each holds about two pages.
const PAGE: usize = 128 * 1024;
/// Keys that are looked at while the store is locked.
const SLICE: usize = 4096;

/// A range on its way.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The first key that was not looked at.
    from: Bytes,
    end: Bytes,
    revision: i64,
    /// What the store was at when the walk began.
    visible: i64,
    /// 0 for none.
    limit: usize,
    keys_only: bool,
    /// Keys in the pages before.
    told: usize,
    page: Vec<Bytes>,
    size: usize,
}

/// How far a walk came.
#[derive(Debug)]
pub(crate) enum Step {
    /// The page is not full yet.
    Looking,
    /// Encoded keys, and more behind them.
    Page(Vec<Bytes>),
    /// The last keys, with what is said at the end of a Range. It has no header.
    Last(RangeResponse),
}

impl Walk {
    /// Begins to read what `validate::check_range_stream` let pass.
    pub(crate) fn begin(mvcc: &Mvcc, request: &RangeRequest) -> Result<(Self, Step), Refusal> {
        let visible = mvcc.visible();
        check_revision(request.revision, visible, mvcc.compacted())?;
        let mut walk = Self {
            from: request.key.clone(),
            end: request.range_end.clone(),
            revision: revision(request, visible),
            visible,
            limit: usize::try_from(request.limit).unwrap_or(0),
            keys_only: request.keys_only,
            told: 0,
            page: Vec::new(),
            size: 0,
        };
        // What is sorted by something else than the keys, without a word about the order, comes in one piece. etcd sorts
        // each page by itself, and goes on from where the sorted page ends.
        let whole = request.count_only || request.sort_target() != SortTarget::Key;
        let step = if whole {
            Step::Last(range(mvcc, request, walk.revision))
        } else {
            walk.step(mvcc)?
        };
        Ok((walk, step))
    }

    /// What the store was at when the walk began.
    pub(crate) fn visible(&self) -> i64 {
        self.visible
    }

    /// Looks at some more keys. There is nothing to step to behind [`Step::Last`].
    pub(crate) fn step(&mut self, mvcc: &Mvcc) -> Result<Step, Refusal> {
        check_revision(self.revision, mvcc.visible(), mvcc.compacted())?;
        let Self { page, size, .. } = self;
        let (left, keys_only) = (self.limit.saturating_sub(self.told), self.keys_only);
        let is_cut = |page: &Vec<Bytes>| self.limit > 0 && page.len() == left;
        let mut full = false;
        let next = mvcc.visit_part(&self.from, &self.end, self.revision, SLICE, |item| {
            full = *size >= PAGE || is_cut(page);
            if !full {
                let kv = if keys_only {
                    item.without_value()
                } else {
                    item.kv.clone()
                };
                *size += kv.len();
                page.push(kv);
            }
            !full
        });
        let cut = is_cut(page);
        let Some(next) = next.cloned() else {
            return Ok(self.last(0));
        };
        self.from = next;
        if !full {
            return Ok(Step::Looking);
        }
        if cut {
            return Ok(self.last(mvcc.count(&self.from, &self.end, self.revision)));
        }
        self.size = 0;
        self.told += self.page.len();
        Ok(Step::Page(std::mem::take(&mut self.page)))
    }

    fn last(&mut self, behind: i64) -> Step {
        let told = (self.told + self.page.len()) as i64;
        Step::Last(RangeResponse {
            header: None,
            kvs: std::mem::take(&mut self.page),
            more: behind > 0,
            count: told + behind,
        })
    }
}

#[cfg(test)]
mod tests;
