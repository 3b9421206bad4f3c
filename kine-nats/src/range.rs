//! Answers a Range from the store, with etcd's rules for limits, filters, orders and counts.
//! [`gather`] reads piece by piece, and [`walk`] reads in pages.

pub(crate) mod gather;
pub(crate) mod walk;

use crate::error::RpcError;
use crate::mvcc::{Item, Mvcc};
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::{RangeRequest, RangeResponse};
use bytes::Bytes;
use std::borrow::Borrow;

/// Most keys that a Range reads in one piece; kube-apiserver requests no more at a time.
const PIECE_MAX: i64 = 10_000;

/// Checks that a requested revision can be read while the store is at `current`.
pub(crate) fn check_revision(requested: i64, current: i64, compacted: i64) -> Result<(), RpcError> {
    if requested <= 0 {
        Ok(())
    } else if requested > current {
        Err(RpcError::FutureRevision)
    } else if requested < compacted {
        Err(RpcError::Compacted)
    } else {
        Ok(())
    }
}

/// The revision that a request reads at while the store is at `visible`.
pub(crate) fn revision(request: &RangeRequest, visible: i64) -> i64 {
    if request.revision > 0 {
        request.revision
    } else {
        visible
    }
}

/// Number of keys and changes that [`range`] visits, give or take one. Stops counting above `most`.
pub(crate) fn visits(mvcc: &Mvcc, request: &RangeRequest, revision: i64, most: i64) -> i64 {
    let (start, end) = (request.key.as_ref(), request.range_end.as_ref());
    let counting = mvcc.counting(start, end, revision);
    if request.count_only || counting > most {
        return counting;
    }
    let count = mvcc.count(start, end, revision);
    let limit = Some(request.limit).filter(|limit| *limit > 0 && is_cut(request));
    counting + limit.map_or(count, |limit| count.min(limit))
}

/// Whether the limit ends the visit of keys, and not only shortens the answer.
fn is_cut(request: &RangeRequest) -> bool {
    request.sort_order() == SortOrder::None && !is_filtered(request)
}

/// Whether a request may visit so many keys that the store must not stay locked meanwhile.
pub(crate) fn is_long(request: &RangeRequest) -> bool {
    let bounded = (1..=PIECE_MAX).contains(&request.limit) && is_cut(request);
    !(request.range_end.is_empty() || request.count_only || bounded)
}

/// Reads a range at a revision. The response has no header.
pub(crate) fn range(mvcc: &Mvcc, request: &RangeRequest, revision: i64) -> RangeResponse {
    let (start, end) = (request.key.as_ref(), request.range_end.as_ref());
    if request.count_only {
        return RangeResponse {
            count: mvcc.count(start, end, revision),
            ..RangeResponse::default()
        };
    }
    let mut selection = Selection::new(request);
    mvcc.visit(start, end, revision, |item| selection.take(item));
    let count = if selection.cut {
        mvcc.count(start, end, revision)
    } else {
        selection.seen
    };
    selection.answer(count)
}

/// Selects the keys that a request wants. The keys of its range are offered in order.
#[derive(Debug)]
struct Selection<'r, I> {
    request: &'r RangeRequest,
    filtered: bool,
    most: Option<usize>,
    items: Vec<I>,
    seen: i64,
    /// The selection ended before the last key of the range.
    cut: bool,
}

impl<'r, I: Borrow<Item>> Selection<'r, I> {
    fn new(request: &'r RangeRequest) -> Self {
        // etcd reads one item more than it returns, to know whether more exist. Without a sort
        // order it sorts only these.
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let most = (limit > 0 && is_cut(request)).then(|| limit.saturating_add(1));
        Self {
            request,
            filtered: is_filtered(request),
            most,
            items: Vec::new(),
            seen: 0,
            cut: false,
        }
    }

    /// Offers a key. Returns whether the selection wants another one.
    fn take(&mut self, item: I) -> bool {
        self.seen += 1;
        if self.filtered && !passes(self.request, item.borrow()) {
            return true;
        }
        if self.most == Some(self.items.len()) {
            self.cut = true;
            return false;
        }
        self.items.push(item);
        true
    }

    /// Builds the response for a range with `count` keys.
    fn answer(mut self, count: i64) -> RangeResponse {
        let limit = usize::try_from(self.request.limit).unwrap_or(0);
        let (order, target) = (self.request.sort_order(), self.request.sort_target());
        if order == SortOrder::Descend || target != SortTarget::Key {
            sort(&mut self.items, target, order);
        }
        let more = limit > 0 && self.items.len() > limit;
        if limit > 0 {
            self.items.truncate(limit);
        }
        let bytes = |item: &I| -> Bytes {
            let item = item.borrow();
            if self.request.keys_only {
                item.without_value()
            } else {
                item.kv.clone()
            }
        };
        RangeResponse {
            header: None,
            kvs: self.items.iter().map(bytes).collect(),
            more,
            count,
        }
    }
}

/// Whether keys are filtered by their revisions.
pub(crate) fn is_filtered(request: &RangeRequest) -> bool {
    [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ]
    .iter()
    .any(|revision| *revision != 0)
}

fn passes(request: &RangeRequest, item: &Item) -> bool {
    let within = |low: i64, high: i64, number: i64| (low == 0 || number >= low) && (high == 0 || number <= high);
    within(request.min_mod_revision, request.max_mod_revision, item.modified)
        && within(request.min_create_revision, request.max_create_revision, item.created)
}

/// Equal items stay in key order, whichever way the others are sorted.
fn sort<I: Borrow<Item>>(items: &mut [I], target: SortTarget, order: SortOrder) {
    let compare = |a: &Item, b: &Item| match target {
        SortTarget::Key => a.key().cmp(b.key()),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.created.cmp(&b.created),
        SortTarget::Mod => a.modified.cmp(&b.modified),
        SortTarget::Value => a.value().cmp(b.value()),
    };
    match order {
        SortOrder::Descend => items.sort_by(|a, b| compare(b.borrow(), a.borrow())),
        SortOrder::None | SortOrder::Ascend => items.sort_by(|a, b| compare(a.borrow(), b.borrow())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Mvcc {
        let mut mvcc = Mvcc::new();
        for (key, value) in [("b", "3"), ("a", "9"), ("c", "1"), ("a", "2")] {
            mvcc.advance();
            mvcc.put(key.as_bytes(), value.as_bytes(), 0);
        }
        mvcc
    }

    fn all() -> RangeRequest {
        RangeRequest {
            key: "a".into(),
            range_end: "z".into(),
            ..RangeRequest::default()
        }
    }

    fn keys(request: &RangeRequest) -> (String, bool, i64) {
        let answer = range(&store(), request, 5);
        let names = answer
            .kvs
            .iter()
            .map(|kv| String::from_utf8_lossy(crate::mvcc::key_of(kv)).into_owned())
            .collect();
        (names, answer.more, answer.count)
    }

    #[test]
    fn ranges_are_answered_like_etcd() {
        let descend = SortOrder::Descend as i32;
        for (name, request, expected) in [
            ("all", all(), ("abc", false, 3)),
            (
                "one key",
                RangeRequest {
                    range_end: Bytes::new(),
                    ..all()
                },
                ("a", false, 1),
            ),
            (
                "from a key on",
                RangeRequest {
                    key: "b".into(),
                    range_end: "\0".into(),
                    ..all()
                },
                ("bc", false, 2),
            ),
            ("limit counts all", RangeRequest { limit: 2, ..all() }, ("ab", true, 3)),
            (
                "limit that is exact",
                RangeRequest { limit: 3, ..all() },
                ("abc", false, 3),
            ),
            (
                "count only",
                RangeRequest {
                    count_only: true,
                    limit: 1,
                    ..all()
                },
                ("", false, 3),
            ),
            (
                "descending",
                RangeRequest {
                    sort_order: descend,
                    limit: 1,
                    ..all()
                },
                ("c", true, 3),
            ),
            (
                "by value",
                RangeRequest {
                    sort_target: SortTarget::Value as i32,
                    ..all()
                },
                ("cab", false, 3),
            ),
            (
                "by creation",
                RangeRequest {
                    sort_target: SortTarget::Create as i32,
                    ..all()
                },
                ("bac", false, 3),
            ),
            (
                "by write",
                RangeRequest {
                    sort_target: SortTarget::Mod as i32,
                    ..all()
                },
                ("bca", false, 3),
            ),
            (
                "a limit cuts before it is sorted without an order",
                RangeRequest {
                    sort_target: SortTarget::Value as i32,
                    limit: 1,
                    ..all()
                },
                ("a", true, 3),
            ),
            (
                "by version, equals by key",
                RangeRequest {
                    sort_order: descend,
                    sort_target: SortTarget::Version as i32,
                    ..all()
                },
                ("abc", false, 3),
            ),
            (
                "filter, full count",
                RangeRequest {
                    min_mod_revision: 4,
                    ..all()
                },
                ("ac", false, 3),
            ),
            (
                "filter and limit",
                RangeRequest {
                    max_create_revision: 3,
                    limit: 1,
                    ..all()
                },
                ("a", true, 3),
            ),
            (
                "empty",
                RangeRequest {
                    range_end: "a".into(),
                    ..all()
                },
                ("", false, 0),
            ),
        ] {
            let (names, more, count) = keys(&request);
            assert_eq!((names.as_str(), more, count), expected, "{name}");
        }
    }

    #[test]
    fn revisions_are_checked() {
        assert_eq!(check_revision(0, 5, 3), Ok(()));
        assert_eq!(check_revision(3, 5, 3), Ok(()));
        assert_eq!(check_revision(2, 5, 3), Err(RpcError::Compacted));
        assert_eq!(check_revision(6, 5, 3), Err(RpcError::FutureRevision));
    }
}
