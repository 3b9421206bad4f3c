//! A log that is gone while its snapshots exist: no process starts from a guess, and `kine-nats
//! repair` continues.

use crate::harness::{Kine, Nats, Servers, Watching, eventually, prefix, repair};
use tonic::Code;

/// Repairs a store, which requires that the loss is accepted, and serves it again.
pub(crate) async fn accept_loss(nats: &impl Servers, kine: &mut Kine, stream: &str, more: &[&str]) {
    let refused = repair(nats, stream, more).unwrap_err();
    assert!(refused.contains("run again with --accept-loss"), "{refused}");
    let said = repair(nats, stream, &[&["--accept-loss"], more].concat()).unwrap();
    assert!(said.contains("Repaired the store"), "{said}");
    kine.restart().await;
}

#[tokio::test]
async fn a_store_continues_after_the_loss_of_its_log_is_accepted() {
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "lost", &["--snapshot-bytes=20000"]).await;
    let mut client = kine.client().await;
    let (mut stored, mut enough, mut newest) = (0.0, f64::INFINITY, 0);
    while stored < enough {
        for number in 0..50 {
            newest = client.put(&format!("/r/{number}"), &[b'v'; 1000]).await.unwrap();
        }
        stored = kine.metric("yoke_kine_snapshots_total").await;
        // The second one from here on started when all keys existed.
        enough = enough.min(stored + 2.0);
    }
    let refused = repair(&nats, "lost", &["--accept-loss"]).unwrap_err();
    assert!(refused.contains("a process writes to it"), "{refused}");
    kine.terminate().await;
    let said = repair(&nats, "lost", &["--accept-loss"]).unwrap();
    assert!(said.contains("The store is complete"), "{said}");

    let direct = async_nats::connect(nats.url()).await.unwrap();
    direct
        .request("$JS.API.STREAM.DELETE.KINE_lost", "".into())
        .await
        .unwrap();
    kine.respawn();
    let status = eventually("kine-nats to exit", || std::future::ready(kine.exited())).await;
    let log = kine.log();
    assert!(
        !status.success() && log.contains("the log has lost the records behind sequence 0"),
        "{log}"
    );
    assert!(
        log.contains("continue without these records with `kine-nats repair`"),
        "{log}"
    );

    accept_loss(&nats, &mut kine, "lost", &["--bump=5000000"]).await;
    let answer = client.range("/r/", "/r0", 0).await.unwrap();
    assert_eq!(answer.count, 50);
    let revision = answer.header.unwrap().revision;
    // The newest snapshot may be older than the newest write.
    assert!(revision > 5_000_000 && revision <= 5_000_000 + newest, "{revision}");
    let error = client.range("/r/", "/r0", newest).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    let mut watching = Watching::open(&mut client, prefix("/r/", newest)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    assert_eq!(watching.next().await.unwrap().compact_revision, revision);
    assert_eq!(client.put("/r/new", b"1").await.unwrap(), revision + 1);

    // From here on it is a store like any other.
    kine.kill();
    kine.restart().await;
    assert_eq!(client.get("/r/new").await.unwrap().mod_revision, revision + 1);
    kine.terminate().await;
    let said = repair(&nats, "lost", &[]).unwrap();
    assert!(said.contains("The store is complete"), "{said}");
}
