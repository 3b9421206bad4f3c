//! Semantics that etcd's clients rely on.

use crate::harness::{Client, Kine, Nats, Watching, create_request, decode, events, eventually, prefix};
use tonic::Code;
use yoke_kine_nats::proto::etcdserverpb as pb;

#[tokio::test]
async fn a_new_store_has_the_revisions_of_etcd_on_both_kinds_of_socket() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "fresh", &[]).await;
    let mut client = Client::unix(&kine.socket()).await;
    assert_eq!(client.revision().await, 1);
    assert_eq!(client.create("/r/a", b"1").await.unwrap(), Some(2));
    assert_eq!(client.create("/r/a", b"2").await.unwrap(), None);
    assert_eq!(client.put("/r/a", b"3").await.unwrap(), 3);
    assert_eq!(client.delete("/r/none").await, 3);
    let mut client = kine.client().await;
    let kv = client.get("/r/a").await.unwrap();
    assert_eq!(
        (kv.create_revision, kv.mod_revision, kv.version, kv.value.as_ref()),
        (2, 3, 2, &b"3"[..])
    );
    assert_eq!(client.delete("/r/a").await, 4);
    let old = client.range("/r/", "/r0", 2).await.unwrap();
    assert_eq!(
        (
            decode(&old.kvs[0]).value.as_ref(),
            old.count,
            old.header.unwrap().revision
        ),
        (&b"1"[..], 1, 4)
    );
    let status = client
        .maintenance
        .status(pb::StatusRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(status.version.starts_with("3.6.") && status.leader == status.header.unwrap().member_id);

    let error = client.range("a", "", 5).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange);
    assert_eq!(
        error.message(),
        "etcdserver: mvcc: required revision is a future revision"
    );
    let large = vec![7u8; 1 << 20];
    client.put("/r/large", &large).await.unwrap();
    assert_eq!(client.get("/r/large").await.unwrap().value, large);
    let error = client.put("/r/large", &vec![7u8; 3 << 19]).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::InvalidArgument, "etcdserver: request is too large")
    );
}

#[tokio::test]
async fn a_compaction_survives_a_restart() {
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "compact", &[]).await;
    let mut client = kine.client().await;
    for value in 0..10u8 {
        client.put("/r/a", &[value]).await.unwrap();
    }
    let future = client.compact(12).await.unwrap_err();
    assert_eq!(
        future.message(),
        "etcdserver: mvcc: required revision is a future revision"
    );
    client.compact(8).await.unwrap();
    println!("it ends in {:?}", kine.terminate().await);
    kine.restart().await;
    let mut client = kine.client().await;
    let again = client.compact(8).await.unwrap_err();
    assert_eq!(
        again.message(),
        "etcdserver: mvcc: required revision has been compacted"
    );
    assert_eq!(
        client.range("/r/a", "", 7).await.unwrap_err().message(),
        again.message()
    );
    assert_eq!(
        decode(&client.range("/r/a", "", 8).await.unwrap().kvs[0])
            .value
            .as_ref(),
        [6]
    );

    let mut watching = Watching::open(&mut client, prefix("/r/", 7)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    let gone = watching.next().await.unwrap();
    assert!(gone.canceled && gone.compact_revision == 8);
    watching.requests.send(create_request(prefix("/r/", 8))).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    let events = events(&watching.next().await.unwrap());
    assert_eq!(
        events
            .iter()
            .map(|event| event.kv.as_ref().unwrap().mod_revision)
            .collect::<Vec<_>>(),
        [8, 9, 10, 11]
    );
    assert!(
        events[0].prev_kv.is_none(),
        "what was there before the compact revision is gone"
    );
    assert_eq!(events[1].prev_kv.as_ref().unwrap().mod_revision, 8);
}

#[tokio::test]
async fn watches_report_complete_revisions_and_progress() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "watch", &["--progress-interval", "200ms"]).await;
    let mut client = kine.client().await;
    client.put("/a/1", b"old").await.unwrap();
    let mut watching = Watching::open(&mut client, prefix("/a/", 0)).await.unwrap();
    let created = watching.next().await.unwrap();
    assert!(created.created && created.events.is_empty() && created.header.unwrap().revision == 2);

    let op = |key: &str| {
        let put = pb::PutRequest {
            key: key.to_owned().into(),
            ..Default::default()
        };
        pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(put)),
        }
    };
    let success = vec![op("/a/1"), op("/b/1"), op("/a/2")];
    client
        .kv
        .txn(pb::TxnRequest {
            success,
            ..Default::default()
        })
        .await
        .unwrap();
    let answer = watching.next().await.unwrap();
    let seen: Vec<_> = events(&answer)
        .into_iter()
        .map(|event| (event.kv.unwrap(), event.prev_kv.map(|kv| kv.value)))
        .collect();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        (seen[0].0.key.as_ref(), seen[0].0.mod_revision, seen[0].1.as_deref()),
        (&b"/a/1"[..], 3, Some(&b"old"[..]))
    );
    assert_eq!(
        (seen[1].0.key.as_ref(), seen[1].0.create_revision, &seen[1].1),
        (&b"/a/2"[..], 3, &None)
    );

    client.put("/c", b"").await.unwrap();
    let ask = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::ProgressRequest(
            pb::WatchProgressRequest {},
        )),
    };
    watching.requests.send(ask.clone()).await.unwrap();
    let progress = watching.next().await.unwrap();
    assert_eq!(
        (
            progress.watch_id,
            progress.header.unwrap().revision,
            progress.events.len()
        ),
        (-1, 4, 0)
    );

    let quiet = pb::WatchCreateRequest {
        progress_notify: true,
        watch_id: 9,
        ..prefix("/q/", 0)
    };
    watching.requests.send(create_request(quiet)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    let told = watching.next().await.unwrap();
    assert_eq!((told.watch_id, told.header.unwrap().revision), (9, 4));

    let cancel = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CancelRequest(pb::WatchCancelRequest {
            watch_id: 9,
        })),
    };
    watching.requests.send(cancel).await.unwrap();
    let ended = loop {
        let answer = watching.next().await.unwrap();
        if answer.canceled {
            break answer;
        }
    };
    assert_eq!(ended.watch_id, 9);

    // A watch that starts at a future revision has no progress, nor has its stream.
    watching.requests.send(create_request(prefix("/a/", 6))).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    watching.requests.send(ask).await.unwrap();
    client.put("/a/1", b"5").await.unwrap();
    client.put("/a/1", b"6").await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < 3 {
        let answer = watching.next().await.unwrap();
        assert_ne!(answer.watch_id, -1);
        heard.extend(
            events(&answer)
                .into_iter()
                .map(|event| (answer.watch_id, event.kv.unwrap().mod_revision)),
        );
    }
    heard.sort_unstable();
    assert_eq!(
        heard.iter().map(|(_, revision)| *revision).collect::<Vec<_>>(),
        [5, 6, 6]
    );
}

#[tokio::test]
async fn a_current_watch_survives_a_compaction() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "compacted", &[]).await;
    hears_what_is_compacted(&kine, &kine).await;
}

/// Writes and compacts in one process, and watches in the same or another.
pub(crate) async fn hears_what_is_compacted(writer: &Kine, watched: &Kine) {
    let (mut client, mut watcher) = (writer.client().await, watched.client().await);
    let mut watching = Watching::open(&mut watcher, prefix("/", 2)).await.unwrap();
    let mut next = 2;
    for _ in 0..50 {
        for _ in 0..3 {
            client.put("/a", b"").await.unwrap();
        }
        let revision = client.put("/a", b"").await.unwrap();
        client.compact(revision).await.unwrap();
        while next <= revision {
            let answer = watching.next().await.unwrap();
            assert!(!answer.canceled, "{answer:?}");
            for event in events(&answer) {
                assert_eq!(event.kv.unwrap().mod_revision, next);
                next += 1;
            }
        }
    }
}

#[tokio::test]
async fn leases_survive_a_restart_and_end_as_one_revision() {
    // Longer than the interval of the check that would end it.
    const TTL: i64 = 8;
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "lease", &[]).await;
    let mut client = kine.client().await;
    let granted = client
        .lease
        .lease_grant(pb::LeaseGrantRequest { ttl: TTL, id: 0 })
        .await
        .unwrap()
        .into_inner();
    assert!(granted.id > 0 && granted.ttl == TTL && granted.header.unwrap().revision == 1);
    for key in ["/l/b", "/l/a"] {
        let request = pb::PutRequest {
            key: key.into(),
            lease: granted.id,
            ..Default::default()
        };
        client.kv.put(request).await.unwrap();
    }
    let unknown = pb::PutRequest {
        key: "x".into(),
        lease: 77,
        ..Default::default()
    };
    let error = client.kv.put(unknown).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::NotFound, "etcdserver: requested lease not found")
    );
    kine.kill();
    kine.restart().await;
    let mut client = kine.client().await;
    let ask = pb::LeaseTimeToLiveRequest {
        id: granted.id,
        keys: true,
    };
    let left = client.lease.lease_time_to_live(ask).await.unwrap().into_inner();
    assert_eq!(
        (left.granted_ttl, left.keys.as_slice()),
        (TTL, ["/l/a".into(), "/l/b".into()].as_slice())
    );
    let gone = eventually("the lease to end", || {
        let mut client = client.clone();
        async move { Some(client.range("/l/", "/l0", 0).await.unwrap()).filter(|answer| answer.count == 0) }
    })
    .await;
    assert_eq!(gone.header.unwrap().revision, 4);
    let left = client.lease.lease_time_to_live(ask).await.unwrap().into_inner();
    assert_eq!(left.ttl, -1);
}
