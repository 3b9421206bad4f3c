//! A store with more keys than one request may delete, or one piece of a list holds.

use crate::harness::{Client, Kine, Nats, decode};
use pb::request_op::Request;
use tonic::Code;
use yoke_kine_nats::proto::etcdserverpb as pb;

const KEYS: usize = 100_001;
/// Keys of a transaction.
const TOGETHER: usize = 128;

fn name(key: usize) -> String {
    format!("/m/{key:06}")
}

async fn fill(client: &Client) {
    let writes = (0..KEYS).step_by(TOGETHER).map(|first| {
        let mut client = client.clone();
        let puts = (first..KEYS.min(first + TOGETHER)).map(|key| {
            let put = pb::PutRequest {
                key: name(key).into(),
                value: key.to_string().into(),
                ..Default::default()
            };
            let request = Some(Request::RequestPut(put));
            pb::RequestOp { request }
        });
        let txn = pb::TxnRequest {
            success: puts.collect(),
            ..Default::default()
        };
        async move { client.kv.txn(txn).await.unwrap() }
    });
    futures::future::join_all(writes).await;
}

fn delete(from: &str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key: from.to_owned().into(),
        range_end: "/m0".into(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_are_listed_and_deleted_in_parts() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "many", &[]).await;
    let mut client = kine.client().await;
    fill(&client).await;
    let before = client.revision().await;
    let deleting = Some(Request::RequestDeleteRange(delete("/m/")));
    let txn = pb::TxnRequest {
        success: vec![pb::RequestOp { request: deleting }],
        ..Default::default()
    };
    for refused in [
        client.kv.delete_range(delete("/m/")).await.unwrap_err(),
        client.kv.txn(txn).await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(
            refused.message(),
            "kine-nats: too many keys to delete in one request: delete them in parts of at most 100000"
        );
    }
    assert_eq!(client.revision().await, before, "nothing was changed");
    // Keys that are written, deleted and compacted meanwhile are not in the list, wherever it is at
    // that time.
    let mut lister = client.clone();
    let listing = tokio::spawn(async move { lister.range("/m/", "/m0", 0).await.unwrap() });
    let mut written = before;
    while !listing.is_finished() {
        client.put(&name(KEYS - 1), b"new").await.unwrap();
        client.delete(&name(0)).await;
        written = client.put(&name(0), b"new").await.unwrap();
        client.compact(written).await.unwrap();
    }
    let list = listing.await.unwrap();
    let at = list.header.unwrap().revision;
    assert!((before..=written).contains(&at), "{before} {at} {written}");
    assert!(list.kvs.len() >= KEYS - 1 && list.count == list.kvs.len() as i64);
    assert!(list.kvs.iter().all(|kv| decode(kv).mod_revision <= at));
    let deleted = client.kv.delete_range(delete(&name(1))).await.unwrap().into_inner();
    assert_eq!(deleted.deleted, 100_000);
    assert_eq!(client.range("/m/", "/m0", 0).await.unwrap().count, 1);
}
