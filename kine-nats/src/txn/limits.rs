//! Limits of one request: what it may add to the log, and read under the writer's lock.

use crate::error::RpcError;
use crate::limits::MAX_REQUEST;
use crate::mvcc::Item;
use crate::proto::etcdserverpb as pb;
use crate::range;
use crate::txn::{Path, PathStep, Request, Step};

/// Most bytes that one request may add to a record: its own, the numbers of its operations, and
/// values that it preserves. With its other content, the record stays below the 2 MiB that every
/// server accepts.
const MAX_WRITTEN: usize = MAX_REQUEST + 64 * 1024;
/// Most keys that the ranges of one transaction may visit, and most that its comparisons may visit.
const MAX_READ: i64 = 100_000;
/// Most keys that one request may delete. During the deletion no other request is answered, and the
/// lease is not renewed.
const MAX_DELETED: i64 = 100_000;
/// Bytes of an operation besides its key and value.
const OPERATION: usize = 64;

/// Key and largest value with which kube-apiserver records a revision before it compacts.
const COMPACTION: (&[u8], usize) = (b"compact_rev_key", 32);

/// Whether a put is the one that kube-apiserver needs before each compaction. A full store must
/// accept it.
/// <https://github.com/kubernetes/kubernetes/blob/v1.35.0/staging/src/k8s.io/apiserver/pkg/storage/etcd3/compact.go>
pub(super) fn starts_compaction(request: &pb::PutRequest) -> bool {
    request.key == COMPACTION.0 && request.value.len() <= COMPACTION.1 && !request.ignore_value
}

impl Path<'_> {
    /// Whether the path puts anything besides the key with which kube-apiserver starts a compaction.
    pub(super) fn puts_more_than_a_compaction(&self) -> bool {
        self.steps.iter().any(|step| match step {
            PathStep::Single(Request::RequestPut(request)) => !starts_compaction(request),
            PathStep::Single(_) => false,
            PathStep::Nested(path) => path.puts_more_than_a_compaction(),
        })
    }
}

impl Step<'_, '_> {
    pub(super) fn check_size(&self, bytes: usize) -> Result<(), RpcError> {
        if bytes > MAX_WRITTEN {
            Err(RpcError::TooLarge)
        } else {
            Ok(())
        }
    }

    pub(super) fn put_size(&self, request: &pb::PutRequest) -> usize {
        let existing = request
            .ignore_value
            .then(|| self.evaluation.state.mvcc.latest(&request.key))
            .flatten();
        OPERATION + request.key.len() + existing.map_or(request.value.len(), |item| Item::value(item).len())
    }

    pub(super) fn path_size(&self, path: &Path<'_>) -> usize {
        let size = |step: &PathStep<'_>| match step {
            PathStep::Single(Request::RequestPut(request)) => self.put_size(request),
            PathStep::Single(Request::RequestDeleteRange(request)) => {
                OPERATION + request.key.len() + request.range_end.len()
            }
            PathStep::Single(_) => 0,
            PathStep::Nested(path) => self.path_size(path),
        };
        path.steps.iter().map(size).sum()
    }

    pub(super) fn check_reads(&self, path: &Path<'_>) -> Result<(), RpcError> {
        if self.reads(path, MAX_READ) > MAX_READ {
            Err(RpcError::TooLarge)
        } else {
            Ok(())
        }
    }

    /// Comparisons with ranges visit keys, too, before the operations of the transaction are known.
    pub(super) fn check_compares(&self, request: &pb::TxnRequest) -> Result<(), RpcError> {
        if self.compares(request) > MAX_READ {
            Err(RpcError::TooLarge)
        } else {
            Ok(())
        }
    }

    pub(super) fn check_deletes(&self, keys: i64) -> Result<(), RpcError> {
        if keys > MAX_DELETED {
            Err(RpcError::TooManyDeletes)
        } else {
            Ok(())
        }
    }

    /// Number of keys that a request deletes.
    pub(super) fn deletes(&self, request: &pb::DeleteRangeRequest) -> i64 {
        let mvcc = &self.evaluation.state.mvcc;
        mvcc.count(&request.key, &request.range_end, mvcc.head())
    }

    /// Number of keys that a path deletes. A key in several ranges counts once for each.
    pub(super) fn path_deletes(&self, path: &Path<'_>) -> i64 {
        let count = |step: &PathStep<'_>| match step {
            PathStep::Single(Request::RequestDeleteRange(request)) => self.deletes(request),
            PathStep::Single(_) => 0,
            PathStep::Nested(path) => self.path_deletes(path),
        };
        path.steps.iter().map(count).sum()
    }

    fn compares(&self, request: &pb::TxnRequest) -> i64 {
        let mvcc = &self.evaluation.state.mvcc;
        let ranges = request.compare.iter().filter(|compare| !compare.range_end.is_empty());
        let own: i64 = ranges
            .map(|compare| mvcc.count(&compare.key, &compare.range_end, mvcc.head()))
            .sum();
        let operations = request.success.iter().chain(&request.failure);
        let nested = operations.map(|operation| match &operation.request {
            Some(Request::RequestTxn(nested)) => self.compares(nested),
            _ => 0,
        });
        own + nested.sum::<i64>()
    }

    /// Number of keys that the ranges of a path visit. Stops counting above `most`.
    fn reads(&self, path: &Path<'_>, most: i64) -> i64 {
        let mvcc = &self.evaluation.state.mvcc;
        let count = |step: &PathStep<'_>, most: i64| match step {
            PathStep::Single(Request::RequestRange(request)) if !request.range_end.is_empty() => {
                let at = if request.revision > 0 {
                    request.revision
                } else {
                    mvcc.head()
                };
                range::visits(mvcc, request, at, most)
            }
            PathStep::Single(_) => 0,
            PathStep::Nested(path) => self.reads(path, most),
        };
        path.steps.iter().fold(
            0,
            |sum, step| {
                if sum > most { sum } else { sum + count(step, most - sum) }
            },
        )
    }
}
