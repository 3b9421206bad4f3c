//! Table tests of requests. The expected answers were read from etcd's source.

mod limits;

use super::*;
use crate::lease::LONGEST;
use crate::mvcc::Mvcc;
use bytes::Bytes;
use prost::Message;

struct Bench {
    state: State,
    operations: Operations,
    quota: u64,
}

impl Bench {
    fn new() -> Self {
        Self {
            state: State::new(Mvcc::new()),
            operations: Operations::default(),
            quota: u64::MAX,
        }
    }

    fn run(&mut self, command: Command) -> Result<Answer, RpcError> {
        let Self {
            state,
            operations,
            quota,
        } = self;
        evaluate(
            &mut Evaluation {
                state,
                operations,
                now: Duration::ZERO,
                quota: *quota,
            },
            &command,
        )
    }

    fn txn(&mut self, request: pb::TxnRequest) -> pb::TxnResponse {
        match self.run(Command::Txn(request)) {
            Ok(Answer::Txn(answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, key: &str, value: &str) -> i64 {
        match self.run(Command::Put(put(key, value))) {
            Ok(Answer::Put(answer)) => answer.header.unwrap().revision,
            other => panic!("{other:?}"),
        }
    }

    fn value(&self, key: &str) -> Option<String> {
        let item = self.state.mvcc.latest(key.as_bytes())?;
        Some(String::from_utf8(item.value().to_vec()).unwrap())
    }

    /// Replaying the same operations into an empty store must lead to the same state.
    fn check_replay(&self) {
        let mut copy = State::new(Mvcc::new());
        let bytes = crate::codec::operation_bytes(&self.operations);
        for operation in crate::codec::decode_operations(bytes, self.operations.count()).unwrap() {
            copy.apply(&operation, Duration::ZERO).unwrap();
        }
        let dump = |state: &State| {
            let changes: Vec<_> = state
                .mvcc
                .changes(0)
                .map(|c| (c.revision, c.kv.clone(), c.previous.clone()))
                .collect();
            let leases: Vec<_> = state
                .leases
                .iter()
                .map(|(id, lease)| (id, lease.ttl, lease.keys.clone()))
                .collect();
            (state.mvcc.head(), changes, leases)
        };
        assert_eq!(dump(&copy), dump(&self.state));
    }
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest {
        key: text(key),
        value: text(value),
        ..Default::default()
    }
}

fn op(request: Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn op_put(key: &str, value: &str) -> pb::RequestOp {
    op(Request::RequestPut(put(key, value)))
}

fn op_get(key: &str) -> pb::RequestOp {
    op(Request::RequestRange(pb::RangeRequest {
        key: text(key),
        ..Default::default()
    }))
}

fn op_delete(key: &str, end: &str) -> pb::RequestOp {
    let request = pb::DeleteRangeRequest {
        key: text(key),
        range_end: text(end),
        prev_kv: true,
    };
    op(Request::RequestDeleteRange(request))
}

fn modified(key: &str, revision: i64) -> pb::Compare {
    compare(
        key,
        CompareTarget::Mod,
        CompareResult::Equal,
        TargetUnion::ModRevision(revision),
    )
}

fn compare(key: &str, target: CompareTarget, result: CompareResult, union: TargetUnion) -> pb::Compare {
    pb::Compare {
        result: result as i32,
        target: target as i32,
        key: text(key),
        target_union: Some(union),
        range_end: Bytes::new(),
    }
}

fn revision(answer: &pb::TxnResponse) -> i64 {
    answer.header.as_ref().unwrap().revision
}

#[test]
fn transactions_of_kubernetes_are_executed() {
    let mut bench = Bench::new();
    let create = |value| pb::TxnRequest {
        compare: vec![modified("a", 0)],
        success: vec![op_put("a", value)],
        failure: vec![],
    };
    let update = |at, value| pb::TxnRequest {
        compare: vec![modified("a", at)],
        success: vec![op_put("a", value)],
        failure: vec![op_get("a")],
    };
    let created = bench.txn(create("1"));
    assert!(created.succeeded && revision(&created) == 2);
    let again = bench.txn(create("2"));
    assert!(!again.succeeded && revision(&again) == 2 && again.responses.is_empty());
    let updated = bench.txn(update(2, "2"));
    assert!(updated.succeeded && revision(&updated) == 3);
    let stale = bench.txn(update(2, "3"));
    assert!(!stale.succeeded && revision(&stale) == 3);
    let Some(Response::ResponseRange(found)) = &stale.responses[0].response else {
        panic!()
    };
    let kv = crate::proto::mvccpb::KeyValue::decode(found.kvs[0].clone()).unwrap();
    assert_eq!(
        (kv.value.as_ref(), kv.mod_revision, kv.create_revision, kv.version),
        (&b"2"[..], 3, 2, 2)
    );
    let delete = pb::TxnRequest {
        compare: vec![modified("a", 3)],
        success: vec![op_delete("a", "")],
        failure: vec![op_get("a")],
    };
    let deleted = bench.txn(delete.clone());
    assert!(deleted.succeeded && revision(&deleted) == 4);
    let deleted = bench.txn(delete);
    assert!(!deleted.succeeded && revision(&deleted) == 4);
    bench.check_replay();
}

#[test]
fn comparisons_follow_etcd() {
    use CompareResult::{Equal, Greater, Less, NotEqual};
    use CompareTarget::{Create, Lease, Mod, Value, Version};
    let mut bench = Bench::new();
    bench.put("a", "5");
    bench.put("a", "6");
    for (name, compare, expected) in [
        ("version", compare("a", Version, Equal, TargetUnion::Version(2)), true),
        (
            "version, less",
            compare("a", Version, Less, TargetUnion::Version(2)),
            false,
        ),
        (
            "create",
            compare("a", Create, Equal, TargetUnion::CreateRevision(2)),
            true,
        ),
        (
            "mod, greater",
            compare("a", Mod, Greater, TargetUnion::ModRevision(2)),
            true,
        ),
        (
            "mod, not equal",
            compare("a", Mod, NotEqual, TargetUnion::ModRevision(3)),
            false,
        ),
        (
            "value",
            compare("a", Value, Equal, TargetUnion::Value("6".into())),
            true,
        ),
        (
            "value, greater",
            compare("a", Value, Greater, TargetUnion::Value("5".into())),
            true,
        ),
        ("lease", compare("a", Lease, Equal, TargetUnion::Lease(0)), true),
        (
            "missing key counts as zeros",
            compare("b", Version, Equal, TargetUnion::Version(0)),
            true,
        ),
        (
            "missing key has no value",
            compare("b", Value, NotEqual, TargetUnion::Value("6".into())),
            false,
        ),
        (
            "union of another kind counts as zero",
            compare("a", Version, Greater, TargetUnion::Lease(9)),
            true,
        ),
        (
            "every key of a range",
            pb::Compare {
                range_end: "z".into(),
                ..compare("a", Version, Equal, TargetUnion::Version(2))
            },
            true,
        ),
    ] {
        let request = pb::TxnRequest {
            compare: vec![compare],
            ..Default::default()
        };
        assert_eq!(bench.txn(request).succeeded, expected, "{name}");
    }
}

#[test]
fn a_transaction_has_one_revision_and_reads_its_own_writes() {
    let mut bench = Bench::new();
    bench.put("x1", "");
    bench.put("x2", "");
    let nested = pb::TxnRequest {
        compare: vec![compare(
            "a",
            CompareTarget::Version,
            CompareResult::Equal,
            TargetUnion::Version(0),
        )],
        success: vec![op_put("n", "1")],
        failure: vec![op_put("n", "2")],
    };
    let answer = bench.txn(pb::TxnRequest {
        compare: vec![],
        success: vec![
            op_get("a"),
            op_put("a", "1"),
            op_get("a"),
            op_delete("x", "y"),
            op(Request::RequestTxn(nested)),
        ],
        failure: vec![],
    });
    assert_eq!(revision(&answer), 4);
    let responses: Vec<_> = answer
        .responses
        .iter()
        .map(|response| response.response.as_ref().unwrap())
        .collect();
    let [
        Response::ResponseRange(before),
        Response::ResponsePut(put),
        Response::ResponseRange(after),
        Response::ResponseDeleteRange(deleted),
        Response::ResponseTxn(inner),
    ] = responses.as_slice()
    else {
        panic!("{responses:?}")
    };
    assert_eq!((before.count, before.header.as_ref().unwrap().revision), (0, 3));
    assert_eq!(put.header.as_ref().unwrap().revision, 4);
    assert_eq!((after.count, after.header.as_ref().unwrap().revision), (1, 4));
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (2, 2));
    assert!(inner.succeeded, "comparisons are made before anything is written");
    assert_eq!(bench.value("n").as_deref(), Some("1"));
    bench.check_replay();
}

#[test]
fn a_rejected_transaction_changes_nothing() {
    let mut bench = Bench::new();
    bench.put("a", "1");
    let bad_lease = pb::PutRequest {
        lease: 9,
        ..put("a", "2")
    };
    let keep_missing = pb::PutRequest {
        ignore_value: true,
        ..put("b", "")
    };
    let future = op(Request::RequestRange(pb::RangeRequest {
        key: "a".into(),
        revision: 9,
        ..Default::default()
    }));
    let late = pb::TxnRequest {
        success: vec![op_put("a", "2"), future],
        ..Default::default()
    };
    let with_lease = op(Request::RequestPut(bad_lease.clone()));
    let late_lease = pb::TxnRequest {
        success: vec![op_put("b", "2"), with_lease],
        ..Default::default()
    };
    for (name, command, expected) in [
        ("unknown lease", Command::Put(bad_lease), RpcError::LeaseNotFound),
        (
            "keep the value of nothing",
            Command::Put(keep_missing),
            RpcError::KeyNotFound,
        ),
        ("future read behind a put", Command::Txn(late), RpcError::FutureRevision),
        (
            "unknown lease behind a put",
            Command::Txn(late_lease),
            RpcError::LeaseNotFound,
        ),
        ("compact the future", Command::Compact(3), RpcError::FutureRevision),
        ("revoke nothing", Command::Revoke(9), RpcError::LeaseNotFound),
        (
            "a lease too long",
            Command::Grant {
                id: 1,
                ttl: LONGEST + 1,
            },
            RpcError::LeaseTtlTooLarge,
        ),
    ] {
        assert_eq!(bench.run(command).unwrap_err(), expected, "{name}");
        assert_eq!((bench.state.mvcc.head(), bench.operations.count()), (2, 1), "{name}");
    }
    bench.run(Command::Compact(2)).unwrap();
    assert_eq!(bench.run(Command::Compact(2)).unwrap_err(), RpcError::Compacted);
}

#[test]
fn only_puts_are_rejected_over_the_quota() {
    let mut bench = Bench::new();
    bench.put("a", "1");
    bench.quota = 1;
    assert_eq!(bench.run(Command::Put(put("b", ""))).unwrap_err(), RpcError::NoSpace);
    let txn = pb::TxnRequest {
        success: vec![op_put("b", "")],
        ..Default::default()
    };
    assert_eq!(bench.run(Command::Txn(txn)).unwrap_err(), RpcError::NoSpace);
    let grant = Command::Grant { id: 1, ttl: 5 };
    assert_eq!(bench.run(grant).unwrap_err(), RpcError::NoSpace);
    bench.txn(pb::TxnRequest {
        success: vec![op_get("a"), op_delete("a", "")],
        ..Default::default()
    });
    bench.run(Command::Compact(3)).unwrap();
}

#[test]
fn leases_count_for_the_quota_until_they_end() {
    let mut bench = Bench::new();
    bench.quota = 2560;
    for id in 1..=10 {
        bench.run(Command::Grant { id, ttl: 5 }).unwrap();
    }
    let one_more = || Command::Grant { id: 11, ttl: 5 };
    assert_eq!(bench.run(one_more()).unwrap_err(), RpcError::NoSpace);
    assert_eq!(bench.run(Command::Put(put("a", ""))).unwrap_err(), RpcError::NoSpace);
    assert!(matches!(bench.run(Command::KeepAlive(1)), Ok(Answer::KeepAlive(answer)) if answer.ttl == 5));
    bench.run(Command::Revoke(1)).unwrap();
    bench.run(one_more()).unwrap();
}

#[test]
fn a_revoked_lease_deletes_its_keys_at_one_revision() {
    let mut bench = Bench::new();
    bench.run(Command::Grant { id: 7, ttl: 5 }).unwrap();
    assert_eq!(
        bench.run(Command::Grant { id: 7, ttl: 5 }).unwrap_err(),
        RpcError::LeaseExists
    );
    for key in ["b", "a", "c"] {
        bench
            .run(Command::Put(pb::PutRequest {
                lease: 7,
                ..put(key, "")
            }))
            .unwrap();
    }
    bench.put("c", "without");
    bench
        .run(Command::Put(pb::PutRequest {
            ignore_lease: true,
            ..put("a", "kept")
        }))
        .unwrap();
    assert_eq!(bench.state.mvcc.head(), 6);
    bench.run(Command::Revoke(7)).unwrap();
    assert_eq!(
        (bench.state.mvcc.head(), bench.value("a"), bench.value("b")),
        (7, None, None)
    );
    assert_eq!(bench.value("c").as_deref(), Some("without"));
    let last: Vec<_> = bench
        .state
        .mvcc
        .changes(7)
        .map(|change| change.key().to_vec())
        .collect();
    assert_eq!(last, [b"a", b"b"]);
    bench.run(Command::Grant { id: 8, ttl: 1 }).unwrap();
    bench.run(Command::Revoke(8)).unwrap();
    assert_eq!(bench.state.mvcc.head(), 7, "an empty lease ends without a revision");
    bench.check_replay();
}

#[test]
fn puts_and_deletes_return_previous_values() {
    let mut bench = Bench::new();
    let with_previous = |value| {
        Command::Put(pb::PutRequest {
            prev_kv: true,
            ..put("a", value)
        })
    };
    let Ok(Answer::Put(first)) = bench.run(with_previous("1")) else {
        panic!()
    };
    let Ok(Answer::Put(second)) = bench.run(with_previous("2")) else {
        panic!()
    };
    let value = |kv: &Bytes| crate::proto::mvccpb::KeyValue::decode(kv.clone()).unwrap().value;
    assert_eq!((first.prev_kv, value(&second.prev_kv.unwrap())), (None, "1".into()));
    let keep = Command::Put(pb::PutRequest {
        ignore_value: true,
        ..put("a", "")
    });
    bench.run(keep).unwrap();
    assert_eq!(bench.value("a").as_deref(), Some("2"));
    let request = pb::DeleteRangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        prev_kv: true,
    };
    let Ok(Answer::DeleteRange(deleted)) = bench.run(Command::DeleteRange(request.clone())) else {
        panic!()
    };
    assert_eq!((deleted.deleted, value(&deleted.prev_kvs[0])), (1, "2".into()));
    let Ok(Answer::DeleteRange(none)) = bench.run(Command::DeleteRange(request)) else {
        panic!()
    };
    assert_eq!((none.deleted, none.header.unwrap().revision), (0, 5));
    bench.check_replay();
}
