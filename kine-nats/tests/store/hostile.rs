//! Requests that no etcd client sends: each is answered or rejected, and the store stays intact.

use crate::fuzz::{fuzz_runs, mutate, seeded};
use crate::harness::{Kine, Nats, WAIT};
use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use rand::RngExt;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use yoke_kine_nats::proto::etcdserverpb as pb;

/// Passes messages on as raw bytes.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A request of each kind.
fn requests() -> Vec<(&'static str, Vec<u8>)> {
    use pb::request_op::Request;
    let put = pb::PutRequest {
        key: "/r/a".into(),
        value: "value".into(),
        prev_kv: true,
        ..Default::default()
    };
    let range = pb::RangeRequest {
        key: "/r".into(),
        range_end: "/s".into(),
        limit: 3,
        revision: 4,
        sort_order: 1,
        sort_target: 2,
        min_mod_revision: 1,
        max_create_revision: 1000,
        ..Default::default()
    };
    let listed = pb::RangeRequest {
        key: "/r".into(),
        range_end: "/s".into(),
        limit: 3,
        keys_only: true,
        ..Default::default()
    };
    let delete = pb::DeleteRangeRequest {
        key: "/r/b".into(),
        range_end: "/r/c".into(),
        prev_kv: true,
    };
    let operation = |request| pb::RequestOp { request: Some(request) };
    let inner = pb::TxnRequest {
        compare: vec![pb::Compare {
            key: "/r/a".into(),
            range_end: "/r/d".into(),
            target_union: Some(pb::compare::TargetUnion::Value("value".into())),
            target: 3,
            ..Default::default()
        }],
        success: vec![operation(Request::RequestPut(put.clone()))],
        failure: vec![operation(Request::RequestDeleteRange(delete.clone()))],
    };
    let txn = pb::TxnRequest {
        compare: inner.compare.clone(),
        success: vec![
            operation(Request::RequestRange(range.clone())),
            operation(Request::RequestTxn(inner.clone())),
        ],
        failure: vec![operation(Request::RequestTxn(inner))],
    };
    let watch = |request| pb::WatchRequest {
        request_union: Some(request),
    };
    use pb::watch_request::RequestUnion;
    let create = pb::WatchCreateRequest {
        key: "/r".into(),
        range_end: "/s".into(),
        start_revision: 2,
        prev_kv: true,
        progress_notify: true,
        fragment: true,
        watch_id: 3,
        filters: vec![0, 1],
    };
    let cancel = pb::WatchCancelRequest { watch_id: 3 };
    let health = HealthCheckRequest {
        service: "etcdserverpb.KV".into(),
    };
    vec![
        ("etcdserverpb.KV/Range", range.encode_to_vec()),
        ("etcdserverpb.KV/RangeStream", listed.encode_to_vec()),
        ("etcdserverpb.KV/Put", put.encode_to_vec()),
        ("etcdserverpb.KV/DeleteRange", delete.encode_to_vec()),
        ("etcdserverpb.KV/Txn", txn.encode_to_vec()),
        (
            "etcdserverpb.KV/Compact",
            pb::CompactionRequest {
                revision: 3,
                physical: true,
            }
            .encode_to_vec(),
        ),
        (
            "etcdserverpb.Watch/Watch",
            watch(RequestUnion::CreateRequest(create)).encode_to_vec(),
        ),
        (
            "etcdserverpb.Watch/Watch",
            watch(RequestUnion::CancelRequest(cancel)).encode_to_vec(),
        ),
        (
            "etcdserverpb.Watch/Watch",
            watch(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).encode_to_vec(),
        ),
        (
            "etcdserverpb.Lease/LeaseGrant",
            pb::LeaseGrantRequest { ttl: 60, id: 9 }.encode_to_vec(),
        ),
        (
            "etcdserverpb.Lease/LeaseRevoke",
            pb::LeaseRevokeRequest { id: 9 }.encode_to_vec(),
        ),
        (
            "etcdserverpb.Lease/LeaseKeepAlive",
            pb::LeaseKeepAliveRequest { id: 9 }.encode_to_vec(),
        ),
        (
            "etcdserverpb.Lease/LeaseTimeToLive",
            pb::LeaseTimeToLiveRequest { id: 9, keys: true }.encode_to_vec(),
        ),
        ("etcdserverpb.Lease/LeaseLeases", Vec::new()),
        (
            "etcdserverpb.Cluster/MemberList",
            pb::MemberListRequest { linearizable: true }.encode_to_vec(),
        ),
        (
            "etcdserverpb.Cluster/MemberAdd",
            pb::MemberAddRequest {
                peer_ur_ls: vec!["http://a:1".into()],
                is_learner: true,
            }
            .encode_to_vec(),
        ),
        (
            "etcdserverpb.Cluster/MemberRemove",
            pb::MemberRemoveRequest { id: 7 }.encode_to_vec(),
        ),
        (
            "etcdserverpb.Cluster/MemberUpdate",
            pb::MemberUpdateRequest {
                id: 7,
                peer_ur_ls: vec!["http://a:1".into()],
            }
            .encode_to_vec(),
        ),
        (
            "etcdserverpb.Cluster/MemberPromote",
            pb::MemberPromoteRequest { id: 7 }.encode_to_vec(),
        ),
        (
            "etcdserverpb.Maintenance/Alarm",
            pb::AlarmRequest::default().encode_to_vec(),
        ),
        ("etcdserverpb.Maintenance/Status", Vec::new()),
        ("etcdserverpb.Maintenance/Defragment", Vec::new()),
        ("etcdserverpb.Maintenance/Hash", Vec::new()),
        (
            "etcdserverpb.Maintenance/Downgrade",
            pb::DowngradeRequest {
                action: 1,
                version: "3.5.0".into(),
            }
            .encode_to_vec(),
        ),
        (
            "etcdserverpb.Maintenance/HashKV",
            pb::HashKvRequest { revision: 3 }.encode_to_vec(),
        ),
        ("etcdserverpb.Maintenance/Snapshot", Vec::new()),
        (
            "etcdserverpb.Maintenance/MoveLeader",
            pb::MoveLeaderRequest { target_id: 7 }.encode_to_vec(),
        ),
        ("grpc.health.v1.Health/Check", health.encode_to_vec()),
        ("grpc.health.v1.Health/Watch", health.encode_to_vec()),
    ]
}

/// Sends messages to a method, and reads a few responses.
async fn send(channel: Channel, method: &str, messages: Vec<Bytes>) -> Code {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = PathAndQuery::try_from(format!("/{method}")).unwrap();
    let request = Request::new(tokio_stream::iter(messages));
    let mut answers = match client.streaming(request, path, Raw).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return status.code(),
    };
    for _ in 0..4 {
        // A watch has no further response.
        match timeout(Duration::from_millis(20), answers.message()).await {
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None)) | Err(_) => break,
            Ok(Err(status)) => return status.code(),
        }
    }
    Code::Ok
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusual_requests_do_no_harm() {
    const AT_A_TIME: usize = 16;
    let mut random = seeded();
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "hostile", &["--follow"]).await;
    let mut client = kine.client().await;
    for key in ["/r/a", "/r/b", "/r/c"] {
        client.put(key, b"value").await.unwrap();
    }
    let requests = requests();
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..fuzz_runs(200) {
        let batch = (0..AT_A_TIME).map(|_| {
            let (method, good) = &requests[random.random_range(0..requests.len())];
            let messages = (0..random.random_range(1..3)).map(|_| {
                let mut bad = good.clone();
                mutate(&mut bad, &mut random);
                bad.into()
            });
            let sent = send(kine.channel(), method, messages.collect());
            async move {
                let code = timeout(WAIT, sent)
                    .await
                    .unwrap_or_else(|_| panic!("{method} does not end"));
                (method, code)
            }
        });
        for (method, code) in futures::future::join_all(batch).await {
            // A message that cannot be decoded is an internal error in tonic, as in etcd's gRPC.
            assert!(!matches!(code, Code::Unknown | Code::DataLoss), "{method}: {code}");
            answered += u64::from(code == Code::Ok);
            refused += u64::from(code != Code::Ok);
        }
        assert!(kine.exited().is_none(), "{}", kine.log());
    }
    assert!(
        answered > 300 && refused > 300,
        "{answered} answered, {refused} refused"
    );

    let before = client.range("\0", "\0", 0).await.unwrap();
    kine.terminate().await;
    kine.restart().await;
    let after = kine.client().await.range("\0", "\0", 0).await.unwrap();
    assert!(before.kvs == after.kvs);
    assert!(after.header.unwrap().revision >= before.header.unwrap().revision);
}

#[test]
fn every_method_is_covered() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/etcdserverpb/rpc.proto");
    let (mut service, mut methods) = ("", BTreeSet::from(["grpc.health.v1.Health/Check".to_owned()]));
    methods.insert("grpc.health.v1.Health/Watch".to_owned());
    let text = std::fs::read_to_string(file).unwrap();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("service ") {
            service = name.trim_end_matches(" {");
        }
        if let Some((name, _)) = line.trim().strip_prefix("rpc ").and_then(|rpc| rpc.split_once('(')) {
            methods.insert(format!("etcdserverpb.{service}/{name}"));
        }
    }
    let tried: BTreeSet<_> = requests().into_iter().map(|(method, _)| method.to_owned()).collect();
    assert_eq!(tried, methods);
}
