//! What is too much for one request.

use super::*;

fn kept(key: &str) -> pb::PutRequest {
    pb::PutRequest {
        ignore_value: true,
        ..put(key, "")
    }
}

#[test]
fn values_that_are_kept_count_for_the_record() {
    let mut bench = Bench::new();
    let value = "v".repeat(500_000);
    for key in ["a", "b", "c", "d"] {
        bench.put(key, &value);
    }
    let before = bench.state.mvcc.head();
    let all = |keys: &[&str]| {
        let success = keys.iter().map(|key| op(Request::RequestPut(kept(key)))).collect();
        Command::Txn(pb::TxnRequest {
            success,
            ..Default::default()
        })
    };
    assert_eq!(bench.run(all(&["a", "b", "c", "d"])).unwrap_err(), Refusal::TooLarge);
    let nested = pb::TxnRequest {
        success: vec![
            op(Request::RequestPut(kept("a"))),
            op(Request::RequestTxn(pb::TxnRequest {
                success: ["b", "c", "d"].map(|key| op(Request::RequestPut(kept(key)))).to_vec(),
                ..Default::default()
            })),
        ],
        ..Default::default()
    };
    assert_eq!(bench.run(Command::Txn(nested)).unwrap_err(), Refusal::TooLarge);
    assert_eq!(bench.state.mvcc.head(), before, "nothing was changed");
    bench.run(all(&["a", "b", "c"])).unwrap();
}

#[test]
fn the_largest_request_fits() {
    let mut bench = Bench::new();
    let value = "v".repeat(crate::validate::MAX_REQUEST - 100);
    bench.put("a", &value);
    assert!(bench.run(Command::Put(kept("a"))).is_ok());
}

#[test]
fn a_transaction_does_not_read_the_whole_store_over_and_over() {
    let mut bench = Bench::new();
    for number in 0..2000 {
        bench.put(&format!("/a/{number}"), "");
    }
    let read = |ranges: usize, revision: i64| {
        let range = pb::RangeRequest {
            key: text("/a/"),
            range_end: text("/a0"),
            revision,
            ..Default::default()
        };
        Command::Txn(pb::TxnRequest {
            success: vec![op(Request::RequestRange(range)); ranges],
            ..Default::default()
        })
    };
    bench.run(read(50, 0)).unwrap();
    assert_eq!(bench.run(read(51, 0)).err(), Some(Refusal::TooLarge));
    assert!(bench.run(read(51, 3)).is_ok(), "what is read counts, not what is there");
}
