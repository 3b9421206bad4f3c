//! Limits of one request.

use super::*;

fn put_request(key: &str) -> pb::PutRequest {
    pb::PutRequest {
        ignore_value: true,
        ..put(key, "")
    }
}

#[test]
fn retained_values_count_for_the_record_size() {
    let mut bench = Bench::new();
    let value = "v".repeat(500_000);
    for key in ["a", "b", "c", "d"] {
        bench.put(key, &value);
    }
    let before = bench.state.mvcc.head();
    let all = |keys: &[&str]| {
        let success = keys
            .iter()
            .map(|key| op(Request::RequestPut(put_request(key))))
            .collect();
        Command::Txn(pb::TxnRequest {
            success,
            ..Default::default()
        })
    };
    assert_eq!(bench.run(all(&["a", "b", "c", "d"])).unwrap_err(), RpcError::TooLarge);
    let nested = pb::TxnRequest {
        success: vec![
            op(Request::RequestPut(put_request("a"))),
            op(Request::RequestTxn(pb::TxnRequest {
                success: ["b", "c", "d"]
                    .map(|key| op(Request::RequestPut(put_request(key))))
                    .to_vec(),
                ..Default::default()
            })),
        ],
        ..Default::default()
    };
    assert_eq!(bench.run(Command::Txn(nested)).unwrap_err(), RpcError::TooLarge);
    assert_eq!(bench.state.mvcc.head(), before, "nothing was changed");
    bench.run(all(&["a", "b", "c"])).unwrap();
}

#[test]
fn the_largest_request_fits() {
    let mut bench = Bench::new();
    let value = "v".repeat(crate::limits::MAX_REQUEST - 100);
    bench.put("a", &value);
    assert!(bench.run(Command::Put(put_request("a"))).is_ok());
}

#[test]
fn repeated_large_reads_of_a_transaction_are_limited() {
    let mut bench = Bench::new();
    for number in 0..2000 {
        bench.put(&format!("/a/{number}"), "");
    }
    let all = |revision: i64| pb::RangeRequest {
        key: text("/a/"),
        range_end: text("/a0"),
        revision,
        ..Default::default()
    };
    let read_by = |ranges: usize, range: pb::RangeRequest| {
        Command::Txn(pb::TxnRequest {
            success: vec![op(Request::RequestRange(range)); ranges],
            ..Default::default()
        })
    };
    let read = |ranges: usize, revision: i64| read_by(ranges, all(revision));
    bench.run(read(50, 0)).unwrap();
    assert_eq!(bench.run(read(51, 0)).err(), Some(RpcError::TooLarge));
    assert!(bench.run(read(50, 3)).is_ok());
    assert_eq!(
        bench.run(read(51, 3)).err(),
        Some(RpcError::TooLarge),
        "few keys are found, but all later versions are visited"
    );
    let counted = pb::RangeRequest {
        count_only: true,
        ..all(0)
    };
    let counted_then = pb::RangeRequest {
        count_only: true,
        ..all(3)
    };
    assert!(bench.run(read_by(50, counted_then.clone())).is_ok());
    assert_eq!(bench.run(read_by(51, counted_then)).err(), Some(RpcError::TooLarge));
    let mut first = pb::RangeRequest { limit: 1, ..all(0) };
    assert!(bench.run(read_by(51, counted)).is_ok());
    assert!(bench.run(read_by(51, first.clone())).is_ok());
    first.sort_target = pb::range_request::SortTarget::Mod.into();
    first.sort_order = pb::range_request::SortOrder::Ascend.into();
    assert_eq!(
        bench.run(read_by(51, first)).err(),
        Some(RpcError::TooLarge),
        "to know the first, all are read"
    );
    let mut exists = compare(
        "/a/",
        CompareTarget::Version,
        CompareResult::Greater,
        TargetUnion::Version(0),
    );
    exists.range_end = text("/a0");
    let compared = |ranges: usize| {
        Command::Txn(pb::TxnRequest {
            compare: vec![exists.clone(); ranges],
            ..Default::default()
        })
    };
    assert!(bench.run(compared(50)).is_ok());
    assert_eq!(bench.run(compared(51)).err(), Some(RpcError::TooLarge));
}

#[test]
fn a_request_deletes_100000_keys_at_most() {
    let mut bench = Bench::new();
    bench.state.mvcc.advance();
    for number in 0..100_001 {
        bench.state.put(format!("/a/{number:06}").as_bytes(), b"", 0);
    }
    let before = bench.state.mvcc.head();
    let all = |key: &str| pb::DeleteRangeRequest {
        key: text(key),
        range_end: text("/a0"),
        prev_kv: false,
    };
    let (half, rest) = ("/a/050000", "/a/000001");
    let by_txn = |success: Vec<pb::RequestOp>| {
        Command::Txn(pb::TxnRequest {
            success,
            ..Default::default()
        })
    };
    let inner = pb::TxnRequest {
        success: vec![op(Request::RequestDeleteRange(all(half)))],
        ..Default::default()
    };
    let mut first_half = all("/a/");
    first_half.range_end = text(half);
    let nested = vec![
        op_put("b", "1"),
        op(Request::RequestDeleteRange(first_half)),
        op(Request::RequestTxn(inner.clone())),
    ];
    for command in [
        Command::DeleteRange(all("/a/")),
        by_txn(vec![op(Request::RequestDeleteRange(all("/a/")))]),
        by_txn(nested),
    ] {
        assert_eq!(bench.run(command).unwrap_err(), RpcError::TooManyDeletes);
    }
    assert_eq!(bench.state.mvcc.head(), before, "nothing was changed");
    assert!(bench.operations.is_empty());
    let Ok(Answer::DeleteRange(deleted)) = bench.run(Command::DeleteRange(all(rest))) else {
        panic!()
    };
    assert_eq!(deleted.deleted, 100_000);
    assert!(bench.run(by_txn(inner.success)).is_ok());
}

/// The requests that kube-apiserver sends before it compacts.
fn kube_compaction(version: i64, revision: i64) -> pb::TxnRequest {
    let key = "compact_rev_key";
    pb::TxnRequest {
        compare: vec![pb::Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Version.into(),
            key: text(key),
            target_union: Some(TargetUnion::Version(version)),
            ..Default::default()
        }],
        success: vec![op(Request::RequestPut(put(key, &revision.to_string())))],
        failure: vec![op(Request::RequestRange(pb::RangeRequest {
            key: text(key),
            ..Default::default()
        }))],
    }
}

#[test]
fn a_full_store_can_be_compacted_by_kube_apiserver() {
    let mut bench = Bench::new();
    bench.quota = 100_000;
    let value = "v".repeat(10_000);
    while bench.run(Command::Put(put("a", &value))).is_ok() {}
    assert_eq!(bench.run(Command::Put(put("a", ""))).unwrap_err(), RpcError::NoSpace);
    let head = bench.state.mvcc.head();
    assert!(bench.txn(kube_compaction(0, head)).succeeded);
    bench.run(Command::Compact(head)).unwrap();
    let mvcc = &mut bench.state.mvcc;
    mvcc.publish(mvcc.head());
    mvcc.compact(head);
    while mvcc.trim(1000) {}
    assert_eq!(bench.put("a", &value), head + 2);
}

#[test]
fn a_full_store_accepts_only_the_put_of_a_compaction() {
    let mut bench = Bench::new();
    bench.put("a", "");
    bench.quota = 0;
    let mut both = kube_compaction(0, 5);
    both.success.push(op(Request::RequestPut(put("a", "1"))));
    let mut large = kube_compaction(0, 5);
    large.success = vec![op(Request::RequestPut(put("compact_rev_key", &"5".repeat(1000))))];
    for request in [both, large] {
        assert_eq!(bench.run(Command::Txn(request)).unwrap_err(), RpcError::NoSpace);
    }
}
