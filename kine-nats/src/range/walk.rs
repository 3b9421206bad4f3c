//! Reads a range in pages at one revision, for RangeStream. Between two pages neither the store nor
//! the read data is held. Together the pages equal a Range at the start of the walk.
//!
//! ```text
//! start ─► Step ─► step ─► Step ─► … ─► Last     each under the lock, for SLICE keys at most
//!                   │
//!                   └─► Compacted: the rest can no longer be read
//! ```

use crate::error::RpcError;
use crate::mvcc::Mvcc;
use crate::proto::etcdserverpb::range_request::SortTarget;
use crate::proto::etcdserverpb::{RangeRequest, RangeResponse};
use crate::range::{check_revision, range, revision};
use bytes::Bytes;

/// Target bytes of a page. A client that lists everything has a stream for each resource, and each
/// stream holds about two pages.
const PAGE: usize = 128 * 1024;
/// Keys that are visited while the store is locked.
const SLICE: usize = 4096;

/// A range that is being read.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The first key that was not visited.
    from: Bytes,
    end: Bytes,
    revision: i64,
    /// Newest revision of the store when the walk started.
    visible: i64,
    /// 0 means no limit.
    limit: usize,
    keys_only: bool,
    /// Number of keys in the previous pages.
    sent_keys: usize,
    page: Vec<Bytes>,
    size: usize,
}

/// Progress of a walk.
#[derive(Debug)]
pub(crate) enum Step {
    /// The page is not full yet.
    Pending,
    /// Encoded keys; more follow.
    Page(Vec<Bytes>),
    /// The last keys, with the fields at the end of a Range. The response has no header.
    Last(RangeResponse),
}

impl Walk {
    /// Starts to read a range that `validate::check_range_stream` accepted.
    pub(crate) fn start(mvcc: &Mvcc, request: &RangeRequest) -> Result<(Self, Step), RpcError> {
        let visible = mvcc.visible();
        check_revision(request.revision, visible, mvcc.compacted())?;
        let mut walk = Self {
            from: request.key.clone(),
            end: request.range_end.clone(),
            revision: revision(request, visible),
            visible,
            limit: usize::try_from(request.limit).unwrap_or(0),
            keys_only: request.keys_only,
            sent_keys: 0,
            page: Vec::new(),
            size: 0,
        };
        // A range that is sorted by anything but the key, without a sort order, is returned in one
        // piece. etcd sorts each page by itself, and continues from the end of the sorted page.
        let in_one_piece = request.count_only || request.sort_target() != SortTarget::Key;
        let step = if in_one_piece {
            Step::Last(range(mvcc, request, walk.revision))
        } else {
            walk.step(mvcc)?
        };
        Ok((walk, step))
    }

    /// Newest revision of the store when the walk started.
    pub(crate) fn visible(&self) -> i64 {
        self.visible
    }

    /// Visits some more keys. [`Step::Last`] ends the walk.
    pub(crate) fn step(&mut self, mvcc: &Mvcc) -> Result<Step, RpcError> {
        check_revision(self.revision, mvcc.visible(), mvcc.compacted())?;
        let Self { page, size, .. } = self;
        let (left, keys_only) = (self.limit.saturating_sub(self.sent_keys), self.keys_only);
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
            return Ok(Step::Pending);
        }
        if cut {
            return Ok(self.last(mvcc.count(&self.from, &self.end, self.revision)));
        }
        self.size = 0;
        self.sent_keys += self.page.len();
        Ok(Step::Page(std::mem::take(&mut self.page)))
    }

    fn last(&mut self, behind: i64) -> Step {
        let sent_keys = (self.sent_keys + self.page.len()) as i64;
        Step::Last(RangeResponse {
            header: None,
            kvs: std::mem::take(&mut self.page),
            more: behind > 0,
            count: sent_keys + behind,
        })
    }
}

#[cfg(test)]
mod tests;
