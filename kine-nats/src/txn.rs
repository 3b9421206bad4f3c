//! Evaluates a request against the head of the store: decides, changes the state, collects the
//! operations for the log, and builds the answer. A rejected request changes nothing.

mod leases;
mod limits;

use crate::codec::Operations;
use crate::command::{Answer, Command};
use crate::error::RpcError;
use crate::mvcc::Item;
use crate::proto::etcdserverpb as pb;
use crate::range;
use crate::state::State;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request;
use pb::response_op::Response;
use std::cmp::Ordering;
use std::time::Duration;

/// The inputs and outputs of an evaluation.
#[derive(Debug)]
pub(crate) struct Evaluation<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) operations: &'a mut Operations,
    pub(crate) now: Duration,
    /// Bytes above which puts are rejected.
    pub(crate) quota: u64,
}

/// Evaluates one request.
pub(crate) fn evaluate(evaluation: &mut Evaluation<'_>, command: &Command) -> Result<Answer, RpcError> {
    let mut step = Step {
        begin: evaluation.state.mvcc.head(),
        evaluation,
    };
    match command {
        Command::Put(request) => {
            // The order of checks is etcd's.
            step.check_space()?;
            step.check_lease(request)?;
            step.check_key(request)?;
            step.check_size(step.put_size(request))?;
            Ok(Answer::Put(step.put(request)))
        }
        Command::DeleteRange(request) => {
            step.check_deletes(step.deletes(request))?;
            Ok(Answer::DeleteRange(step.delete_range(request)))
        }
        Command::Txn(request) => {
            step.check_compares(request)?;
            let path = step.compare(request);
            step.check(&path)?;
            step.check_size(step.path_size(&path))?;
            step.check_reads(&path)?;
            step.check_deletes(step.path_deletes(&path))?;
            if path.puts_more_than_a_compaction() {
                step.check_space()?;
            }
            let mut answer = step.txn(&path);
            answer.header = step.header();
            Ok(Answer::Txn(answer))
        }
        Command::Compact(revision) => step.compact(*revision).map(Answer::Compact),
        Command::Grant { id, ttl } => step.grant(*id, *ttl).map(Answer::Grant),
        Command::Revoke(id) => step.revoke(*id).map(Answer::Revoke),
        Command::KeepAlive(id) => Ok(Answer::KeepAlive(step.keep_alive(*id))),
        Command::TimeToLive { id, keys } => Ok(Answer::TimeToLive(step.time_to_live(*id, *keys))),
        Command::Leases => Ok(Answer::Leases(step.leases())),
        Command::Barrier => Ok(Answer::Barrier {
            revision: step.begin,
            compacted: step.evaluation.state.compacting,
        }),
    }
}

/// The operations that a transaction executes, including nested ones. All comparisons precede the
/// first write.
struct Path<'a> {
    succeeded: bool,
    steps: Vec<PathStep<'a>>,
}

enum PathStep<'a> {
    Single(&'a Request),
    Nested(Path<'a>),
}

struct Step<'a, 'b> {
    evaluation: &'a mut Evaluation<'b>,
    begin: i64,
}

impl Step<'_, '_> {
    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader {
            revision: self.evaluation.state.mvcc.head(),
            ..pb::ResponseHeader::default()
        })
    }

    /// The revision of the writes of this request: one above the revision before it, for all of
    /// them.
    fn write_revision(&mut self) -> i64 {
        let mvcc = &mut self.evaluation.state.mvcc;
        if mvcc.head() == self.begin {
            mvcc.advance()
        } else {
            mvcc.head()
        }
    }

    fn check_space(&self) -> Result<(), RpcError> {
        if self.evaluation.state.bytes() >= self.evaluation.quota {
            Err(RpcError::NoSpace)
        } else {
            Ok(())
        }
    }

    fn check_key(&self, request: &pb::PutRequest) -> Result<(), RpcError> {
        let needs_existing = request.ignore_value || request.ignore_lease;
        if needs_existing && self.evaluation.state.mvcc.latest(&request.key).is_none() {
            return Err(RpcError::KeyNotFound);
        }
        Ok(())
    }

    fn check_lease(&self, request: &pb::PutRequest) -> Result<(), RpcError> {
        if request.lease != 0 && self.evaluation.state.leases.get(request.lease).is_none() {
            return Err(RpcError::LeaseNotFound);
        }
        Ok(())
    }

    fn put(&mut self, request: &pb::PutRequest) -> pb::PutResponse {
        self.write_revision();
        let Evaluation { state, operations, .. } = &mut *self.evaluation;
        let existing = if request.ignore_value || request.ignore_lease {
            state.mvcc.latest(&request.key).cloned()
        } else {
            None
        };
        let existing = existing.as_ref();
        let value = existing
            .filter(|_| request.ignore_value)
            .map_or(request.value.as_ref(), Item::value);
        let lease = existing
            .filter(|_| request.ignore_lease)
            .map_or(request.lease, |item| item.lease);
        let (item, previous) = state.put(&request.key, value, lease);
        operations.change(&item.kv);
        let prev_kv = previous.filter(|_| request.prev_kv).map(|item| item.kv);
        pb::PutResponse {
            header: self.header(),
            prev_kv,
        }
    }

    fn delete_range(&mut self, request: &pb::DeleteRangeRequest) -> pb::DeleteRangeResponse {
        let keys = self.evaluation.state.keys(&request.key, &request.range_end);
        let mut removed = Vec::with_capacity(keys.len());
        if !keys.is_empty() {
            let revision = self.write_revision();
            let Evaluation { state, operations, .. } = &mut *self.evaluation;
            for key in &keys {
                if let Some((item, previous)) = state.delete(key) {
                    if request.range_end.is_empty() {
                        operations.change(&item.kv);
                    }
                    removed.push(previous.kv);
                }
            }
            if !request.range_end.is_empty() {
                operations.delete_range(revision, &request.key, &request.range_end);
            }
        }
        let deleted = removed.len() as i64;
        let prev_kvs = if request.prev_kv { removed } else { Vec::new() };
        pb::DeleteRangeResponse {
            header: self.header(),
            deleted,
            prev_kvs,
        }
    }

    fn compare<'r>(&self, request: &'r pb::TxnRequest) -> Path<'r> {
        let succeeded = request.compare.iter().all(|compare| self.matches(compare));
        let list = if succeeded { &request.success } else { &request.failure };
        let steps = list
            .iter()
            .filter_map(|operation| operation.request.as_ref())
            .map(|request| match request {
                Request::RequestTxn(nested) => PathStep::Nested(self.compare(nested)),
                single => PathStep::Single(single),
            })
            .collect();
        Path { succeeded, steps }
    }

    fn matches(&self, compare: &pb::Compare) -> bool {
        let mvcc = &self.evaluation.state.mvcc;
        let (mut any, mut all) = (false, true);
        mvcc.visit(&compare.key, &compare.range_end, mvcc.head(), |item| {
            any = true;
            all = item_matches(compare, Some(item));
            all
        });
        if any {
            all
        } else {
            compare.target != CompareTarget::Value as i32 && item_matches(compare, None)
        }
    }

    fn check(&self, path: &Path<'_>) -> Result<(), RpcError> {
        for step in &path.steps {
            match step {
                // Like etcd, this order is the reverse of the order in a separate put.
                PathStep::Single(Request::RequestPut(request)) => {
                    self.check_key(request)?;
                    self.check_lease(request)?;
                }
                PathStep::Single(Request::RequestRange(request)) => {
                    // Outside of a transaction such a revision reads the newest one.
                    let compacting = self.evaluation.state.compacting;
                    if request.revision < compacting.min(0) {
                        return Err(RpcError::Compacted);
                    }
                    range::check_revision(request.revision, self.begin, compacting)?;
                }
                PathStep::Single(_) => {}
                PathStep::Nested(path) => self.check(path)?,
            }
        }
        Ok(())
    }

    fn txn(&mut self, path: &Path<'_>) -> pb::TxnResponse {
        let mut responses = Vec::with_capacity(path.steps.len());
        for step in &path.steps {
            let response = match step {
                PathStep::Single(Request::RequestRange(request)) => {
                    let mvcc = &self.evaluation.state.mvcc;
                    let at = if request.revision > 0 {
                        request.revision
                    } else {
                        mvcc.head()
                    };
                    let mut answer = range::range(mvcc, request, at);
                    answer.header = self.header();
                    Response::ResponseRange(answer)
                }
                PathStep::Single(Request::RequestPut(request)) => Response::ResponsePut(self.put(request)),
                PathStep::Single(Request::RequestDeleteRange(request)) => {
                    Response::ResponseDeleteRange(self.delete_range(request))
                }
                PathStep::Single(Request::RequestTxn(_)) => continue,
                PathStep::Nested(path) => Response::ResponseTxn(self.txn(path)),
            };
            responses.push(pb::ResponseOp {
                response: Some(response),
            });
        }
        pb::TxnResponse {
            header: Some(pb::ResponseHeader::default()),
            succeeded: path.succeeded,
            responses,
        }
    }

    fn compact(&mut self, revision: i64) -> Result<pb::CompactionResponse, RpcError> {
        let state = &mut *self.evaluation.state;
        if revision <= state.compacting {
            return Err(RpcError::Compacted);
        }
        if revision > state.mvcc.head() {
            return Err(RpcError::FutureRevision);
        }
        state.compacting = revision;
        self.evaluation.operations.compact(revision);
        Ok(pb::CompactionResponse { header: self.header() })
    }
}

fn item_matches(compare: &pb::Compare, item: Option<&Item>) -> bool {
    let (target, union) = (CompareTarget::try_from(compare.target), compare.target_union.as_ref());
    if target == Ok(CompareTarget::Value) {
        let wanted = match union {
            Some(TargetUnion::Value(wanted)) => wanted.as_ref(),
            _ => &[],
        };
        return result_matches(compare, item.map(Item::value).unwrap_or_default().cmp(wanted));
    }
    let number = item.map_or(0, |item| match target {
        Ok(CompareTarget::Version) => item.version,
        Ok(CompareTarget::Create) => item.created,
        Ok(CompareTarget::Mod) => item.modified,
        Ok(CompareTarget::Lease) => item.lease,
        Ok(CompareTarget::Value) | Err(_) => 0,
    });
    // A number for another target counts as 0.
    let wanted = match (target, union) {
        (Ok(CompareTarget::Version), Some(TargetUnion::Version(wanted)))
        | (Ok(CompareTarget::Create), Some(TargetUnion::CreateRevision(wanted)))
        | (Ok(CompareTarget::Mod), Some(TargetUnion::ModRevision(wanted)))
        | (Ok(CompareTarget::Lease), Some(TargetUnion::Lease(wanted))) => *wanted,
        _ => 0,
    };
    result_matches(compare, number.cmp(&wanted))
}

fn result_matches(compare: &pb::Compare, order: Ordering) -> bool {
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => order.is_eq(),
        Ok(CompareResult::NotEqual) => order.is_ne(),
        Ok(CompareResult::Greater) => order.is_gt(),
        Ok(CompareResult::Less) => order.is_lt(),
        // etcd, too, treats an unknown result as true.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests;
