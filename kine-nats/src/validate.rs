//! Validates requests before they reach the store.

use crate::command::Command;
use crate::error::RpcError;
use crate::limits::MAX_REQUEST;
use crate::mvcc::contains;
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use crate::range::is_filtered;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;

/// etcd's limit for the operations of a transaction.
const MAX_OPERATIONS: usize = 128;
/// Limit for the comparisons and operations of a transaction, including nested ones. etcd limits
/// only the length of each path. Here no other read runs during a request.
const MAX_TOTAL: usize = 1024;

/// Validates a request that goes through the writer, from a client or from another process.
pub(crate) fn check(command: &Command) -> Result<(), RpcError> {
    match command {
        Command::Put(request) => check_put(request).and_then(|()| check_size(request)),
        Command::DeleteRange(request) => check_delete(request).and_then(|()| check_size(request)),
        Command::Txn(request) => check_txn(request).and_then(|()| check_size(request)),
        _ => Ok(()),
    }
}

fn check_size(request: &impl Message) -> Result<(), RpcError> {
    if request.encoded_len() > MAX_REQUEST {
        Err(RpcError::TooLarge)
    } else {
        Ok(())
    }
}

/// Validates a Range.
pub(crate) fn check_range(request: &RangeRequest) -> Result<(), RpcError> {
    if request.key.is_empty() {
        return Err(RpcError::EmptyKey);
    }
    if !(0..=2).contains(&request.sort_order) || !(0..=4).contains(&request.sort_target) {
        return Err(RpcError::InvalidSortOption);
    }
    Ok(())
}

/// Validates a RangeStream. As in etcd, keys must come in order and unfiltered, so that each page
/// is read separately.
pub(crate) fn check_range_stream(request: &RangeRequest) -> Result<(), RpcError> {
    check_range(request)?;
    match (request.sort_order(), request.sort_target()) {
        (SortOrder::None, _) | (SortOrder::Ascend, SortTarget::Key) => {}
        _ => return Err(RpcError::StreamOrder),
    }
    if is_filtered(request) {
        return Err(RpcError::StreamFilter);
    }
    check_size(request)
}

/// Validates a Put.
fn check_put(request: &PutRequest) -> Result<(), RpcError> {
    if request.key.is_empty() {
        Err(RpcError::EmptyKey)
    } else if request.ignore_value && !request.value.is_empty() {
        Err(RpcError::ValueProvided)
    } else if request.ignore_lease && request.lease != 0 {
        Err(RpcError::LeaseProvided)
    } else {
        Ok(())
    }
}

/// Validates a DeleteRange.
fn check_delete(request: &DeleteRangeRequest) -> Result<(), RpcError> {
    if request.key.is_empty() {
        Err(RpcError::EmptyKey)
    } else {
        Ok(())
    }
}

/// Validates a transaction with everything that is nested in it.
fn check_txn(request: &TxnRequest) -> Result<(), RpcError> {
    check_operations(request, MAX_OPERATIONS, &mut 0)?;
    check_intervals(&request.success)?;
    check_intervals(&request.failure)?;
    Ok(())
}

fn check_operations(request: &TxnRequest, most: usize, total: &mut usize) -> Result<(), RpcError> {
    let longest = request
        .compare
        .len()
        .max(request.success.len())
        .max(request.failure.len());
    *total += request.compare.len() + request.success.len() + request.failure.len();
    if longest > most || *total > MAX_TOTAL {
        return Err(RpcError::TooManyOps);
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(RpcError::EmptyKey);
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Request::RequestRange(request)) => check_range(request)?,
            Some(Request::RequestPut(request)) => check_put(request)?,
            Some(Request::RequestDeleteRange(request)) => check_delete(request)?,
            Some(Request::RequestTxn(request)) => check_operations(request, most - longest, total)?,
            None => return Err(RpcError::KeyNotFound),
        }
    }
    Ok(())
}

type Intervals = (BTreeSet<Bytes>, Vec<(Bytes, Bytes)>);

/// Rejects a transaction that writes a key twice. The two branches of a nested transaction exclude
/// each other.
fn check_intervals(operations: &[RequestOp]) -> Result<Intervals, RpcError> {
    let mut puts: BTreeSet<Bytes> = BTreeSet::new();
    let mut deletes: Vec<(Bytes, Bytes)> = Vec::new();
    for operation in operations {
        if let Some(Request::RequestDeleteRange(request)) = &operation.request {
            deletes.push((request.key.clone(), request.range_end.clone()));
        }
    }
    let hits = |deletes: &[(Bytes, Bytes)], key: &[u8]| deletes.iter().any(|(start, end)| contains(start, end, key));
    for operation in operations {
        let Some(Request::RequestTxn(nested)) = &operation.request else {
            continue;
        };
        let (then_puts, then_deletes) = check_intervals(&nested.success)?;
        let (else_puts, else_deletes) = check_intervals(&nested.failure)?;
        for key in &then_puts {
            if hits(&deletes, key) || !puts.insert(key.clone()) {
                return Err(RpcError::DuplicateKey);
            }
        }
        for key in else_puts {
            if hits(&deletes, &key) || (!then_puts.contains(&key) && puts.contains(&key)) {
                return Err(RpcError::DuplicateKey);
            }
            puts.insert(key);
        }
        deletes.extend(then_deletes);
        deletes.extend(else_deletes);
    }
    for operation in operations {
        if let Some(Request::RequestPut(request)) = &operation.request
            && (hits(&deletes, &request.key) || !puts.insert(request.key.clone()))
        {
            return Err(RpcError::DuplicateKey);
        }
    }
    Ok((puts, deletes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::etcdserverpb::Compare;

    fn put(key: &str) -> RequestOp {
        let request = PutRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            ..PutRequest::default()
        };
        RequestOp {
            request: Some(Request::RequestPut(request)),
        }
    }

    fn delete(key: &str, end: &str) -> RequestOp {
        let (key, range_end) = (
            Bytes::copy_from_slice(key.as_bytes()),
            Bytes::copy_from_slice(end.as_bytes()),
        );
        RequestOp {
            request: Some(Request::RequestDeleteRange(DeleteRangeRequest {
                key,
                range_end,
                prev_kv: false,
            })),
        }
    }

    fn txn(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> TxnRequest {
        TxnRequest {
            compare: vec![],
            success,
            failure,
        }
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        RequestOp {
            request: Some(Request::RequestTxn(txn(success, failure))),
        }
    }

    #[test]
    fn transactions_are_validated() {
        let duplicate = Err(RpcError::DuplicateKey);
        for (name, request, expected) in [
            ("empty", txn(vec![], vec![]), Ok(())),
            (
                "the same key in both lists",
                txn(vec![put("a")], vec![put("a")]),
                Ok(()),
            ),
            (
                "a key twice",
                txn(vec![put("a"), put("b"), put("a")], vec![]),
                duplicate,
            ),
            (
                "a key twice in the second list",
                txn(vec![], vec![put("a"), put("a")]),
                duplicate,
            ),
            (
                "put in a deleted range",
                txn(vec![put("b"), delete("a", "c")], vec![]),
                duplicate,
            ),
            (
                "put of a deleted key",
                txn(vec![delete("a", ""), put("a")], vec![]),
                duplicate,
            ),
            (
                "put behind a deleted range",
                txn(vec![put("c"), delete("a", "c")], vec![]),
                Ok(()),
            ),
            (
                "nested lists exclude each other",
                txn(vec![nested(vec![put("a")], vec![put("a")])], vec![]),
                Ok(()),
            ),
            (
                "nested and outer",
                txn(vec![nested(vec![put("a")], vec![]), put("a")], vec![]),
                duplicate,
            ),
            (
                "two nested",
                txn(
                    vec![nested(vec![put("a")], vec![]), nested(vec![], vec![put("a")])],
                    vec![],
                ),
                duplicate,
            ),
            ("empty key", txn(vec![put("")], vec![]), Err(RpcError::EmptyKey)),
            (
                "empty operation",
                txn(vec![RequestOp { request: None }], vec![]),
                Err(RpcError::KeyNotFound),
            ),
            (
                "128 operations",
                txn((0..128).map(|n| put(&n.to_string())).collect(), vec![]),
                Ok(()),
            ),
            (
                "129 operations",
                txn((0..129).map(|n| put(&n.to_string())).collect(), vec![]),
                Err(RpcError::TooManyOps),
            ),
            (
                "nesting counts",
                txn(
                    (0..127)
                        .map(|n| put(&n.to_string()))
                        .chain([nested(vec![put("x")], vec![])])
                        .collect(),
                    vec![],
                ),
                Err(RpcError::TooManyOps),
            ),
            (
                "nesting multiplies",
                txn(
                    (0..64)
                        .map(|outer| {
                            let inner = (0..64).map(|n| put(&format!("{outer}-{n}")));
                            nested(inner.collect(), vec![])
                        })
                        .collect(),
                    vec![],
                ),
                Err(RpcError::TooManyOps),
            ),
        ] {
            assert_eq!(check_txn(&request), expected, "{name}");
        }
        let compare = TxnRequest {
            compare: vec![Compare::default()],
            ..TxnRequest::default()
        };
        assert_eq!(check_txn(&compare), Err(RpcError::EmptyKey));
    }

    #[test]
    fn single_requests_are_validated() {
        let put = PutRequest {
            key: "a".into(),
            ..PutRequest::default()
        };
        assert_eq!(check_put(&put), Ok(()));
        let value = PutRequest {
            ignore_value: true,
            value: "v".into(),
            ..put.clone()
        };
        assert_eq!(check_put(&value), Err(RpcError::ValueProvided));
        assert_eq!(
            check_put(&PutRequest {
                ignore_lease: true,
                lease: 1,
                ..put.clone()
            }),
            Err(RpcError::LeaseProvided)
        );
        assert_eq!(check_range(&RangeRequest::default()), Err(RpcError::EmptyKey));
        let order = RangeRequest {
            key: "a".into(),
            sort_order: 3,
            ..RangeRequest::default()
        };
        assert_eq!(check_range(&order), Err(RpcError::InvalidSortOption));
        assert_eq!(check_delete(&DeleteRangeRequest::default()), Err(RpcError::EmptyKey));
        let large = PutRequest {
            value: Bytes::from(vec![0; MAX_REQUEST]),
            ..put
        };
        assert_eq!(check_size(&large), Err(RpcError::TooLarge));
    }
}
