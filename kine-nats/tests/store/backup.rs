//! `etcdctl snapshot save`: etcd's own tools accept the file as etcd's, and an etcd continues with
//! it.

use crate::etcd::{Etcd, save};
use crate::faults::{Load, serves};
use crate::harness::{Client, Kine, Nats, etcdctl, etcdutl, json};
use serde_json::Value;
use std::path::Path;
use yoke_kine_nats::proto::etcdserverpb as pb;

fn status(file: &Path) -> Value {
    json(&etcdutl(&["snapshot", "status", &file.display().to_string(), "-w", "json"]).unwrap())
}

/// The size of the history since the compaction, as etcd counts it.
async fn hash(client: &mut Client) -> (u32, i64, i64) {
    let request = pb::HashKvRequest { revision: 0 };
    let answer = client.maintenance.hash_kv(request).await.unwrap().into_inner();
    (answer.hash, answer.hash_revision, answer.compact_revision)
}

/// Some data of each kind: large and empty values, deletes, leases, and a compaction. The same on
/// every server.
async fn fill(client: &mut Client) {
    for (id, ttl) in [(77, 1000), (-5, 2000)] {
        client
            .lease
            .lease_grant(pb::LeaseGrantRequest { id, ttl })
            .await
            .unwrap();
    }
    for round in 0..3 {
        for key in 0..400usize {
            let name = format!("/registry/things/{key:04}");
            match (key + round) % 7 {
                0 => {
                    client.delete(&name).await;
                }
                1 => {
                    let request = pb::PutRequest {
                        key: name.into(),
                        value: vec![round as u8; key].into(),
                        lease: if key % 2 == 0 { 77 } else { -5 },
                        ..Default::default()
                    };
                    client.kv.put(request).await.unwrap();
                }
                _ => {
                    client.put(&name, &vec![key as u8; (key * 37) % 6000]).await.unwrap();
                }
            }
        }
        if round == 1 {
            let revision = client.revision().await - 100;
            client.compact(revision).await.unwrap();
        }
    }
    client.put("/large", &vec![1; 1_400_000]).await.unwrap();
    client.put("/empty", b"").await.unwrap();
}

#[tokio::test]
async fn an_etcd_continues_from_a_backup() {
    let (nats, etcd) = (Nats::start().await, Etcd::start().await);
    let kine = Kine::start(&nats, "backup", &[]).await;
    let (mut theirs, mut ours) = (etcd.client(), kine.client().await);
    tokio::join!(fill(&mut theirs), fill(&mut ours));
    let revision = ours.revision().await;
    assert_eq!(revision, theirs.revision().await);

    let file = save(&kine.url());
    let (status, reference) = (status(file.path()), status(save(&etcd.url()).path()));
    for field in ["revision", "totalKey", "version"] {
        assert_eq!(status[field], reference[field], "{field}");
    }
    assert_eq!(
        (&status["revision"], &status["version"]),
        (&revision.into(), &"3.6.0".into())
    );
    assert_eq!(
        status["totalSize"].as_u64().unwrap(),
        file.path().metadata().unwrap().len() - 32
    );

    let moved = Etcd::restore(file.path()).await;
    let mut client = moved.client();
    assert_eq!(hash(&mut client).await, hash(&mut theirs).await);
    for at in [revision, revision - 250, revision - 500] {
        let [moved, ours] = [client.range("/", "0", at).await, ours.range("/", "0", at).await];
        let (moved, ours) = (moved.unwrap(), ours.unwrap());
        assert!(moved.kvs == ours.kvs && moved.count == ours.count, "at {at}");
    }
    for id in [77, -5] {
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let mut moved = client.lease.lease_time_to_live(request).await.unwrap().into_inner();
        // etcd returns them in map order.
        moved.keys.sort();
        let ours = ours.lease.lease_time_to_live(request).await.unwrap().into_inner();
        assert_eq!((moved.granted_ttl, &moved.keys), (ours.granted_ttl, &ours.keys));
        assert!(moved.keys.len() > 20, "{id}");
    }
    assert_eq!(client.put("/new", b"").await.unwrap(), revision + 1);
    let revoked = pb::LeaseRevokeRequest { id: 77 };
    client.lease.lease_revoke(revoked).await.unwrap();
    let request = pb::LeaseLeasesRequest {};
    let left = client.lease.lease_leases(request).await.unwrap().into_inner().leases;
    assert_eq!(left.iter().map(|lease| lease.id).collect::<Vec<_>>(), [-5]);
    client.compact(revision).await.unwrap();
    assert_eq!(etcdctl(&moved.url(), &["alarm", "list"]).unwrap(), "");
    assert!(etcdctl(&moved.url(), &["defrag"]).unwrap().starts_with("Finished"));
    assert!(!moved.log().contains("\"level\":\"error\""), "{}", moved.log());
}

#[tokio::test]
async fn a_new_store_can_be_backed_up() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "new", &[]).await;
    let file = save(&kine.url());
    assert_eq!(status(file.path())["totalKey"], 0);
    let moved = Etcd::restore(file.path()).await;
    assert_eq!(moved.client().revision().await, 1);
    assert_eq!(moved.client().put("/a", b"").await.unwrap(), 2);
}

#[tokio::test]
async fn a_damaged_file_is_rejected() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "damaged", &[]).await;
    kine.client().await.put("/a", b"value").await.unwrap();
    let file = save(&kine.url());
    let mut bytes = std::fs::read(file.path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file.path(), bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let to = format!("--data-dir={}", dir.path().join("data").display());
    let error = etcdutl(&["snapshot", "restore", &file.path().display().to_string(), &to]).unwrap_err();
    assert!(error.contains("expected sha256"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_and_a_follower_are_backed_up_under_load() {
    let nats = Nats::start().await;
    let writer = Kine::start(&nats, "busy", &["--follow"]).await;
    let follower = Kine::start(&nats, "busy", &["--follow"]).await;
    let mut client = writer.client().await;
    let load = Load::named(&client, "", 4);
    for url in [writer.url(), follower.url(), writer.url()] {
        serves(&client).await;
        let file = save(&url);
        let revision = status(file.path())["revision"].as_i64().unwrap();
        let moved = Etcd::restore(file.path()).await;
        let answer = moved.client().range("/", "0", 0).await.unwrap();
        assert_eq!(answer.header.unwrap().revision, revision);
        assert!(answer.kvs == client.range("/", "0", revision).await.unwrap().kvs);
        client.compact(revision).await.unwrap();
    }
    load.stop().await;
}
