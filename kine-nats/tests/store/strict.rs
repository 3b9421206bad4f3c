//! Reads that trust no clock, on a NATS server that stands still.

use crate::harness::{Kine, Nats};
use std::time::Duration;
use tokio::time::timeout;

/// A read that does not wait for NATS would be answered within this time.
const SOON: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_read_waits_for_nats_despite_a_valid_lease() {
    let nats = Nats::start().await;
    let strict = Kine::start(&nats, "strict", &["--strict-reads"]).await;
    let plain = Kine::start(&nats, "plain", &[]).await;
    let (mut asks, mut trusts) = (strict.client().await, plain.client().await);
    for client in [&mut asks, &mut trusts] {
        client.put("/a", b"1").await.unwrap();
        assert_eq!(client.get("/a").await.unwrap().value.as_ref(), b"1");
    }
    nats.signal("STOP");
    let mut read = tokio::spawn(async move { asks.get("/a").await.unwrap() });
    // The lease is 1.9 s long, from the last write on.
    let trusted = trusts.get("/a").await.expect("the lease holds");
    let waits = timeout(SOON, &mut read).await;
    nats.signal("CONT");
    assert!(waits.is_err(), "answered without NATS: {waits:?}");
    assert_eq!(trusted.value.as_ref(), b"1");
    assert_eq!(read.await.unwrap().value.as_ref(), b"1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_reads_what_a_strict_writer_confirms() {
    let nats = Nats::start().await;
    let more = ["--strict-reads", "--follow"];
    let writer = Kine::start(&nats, "confirm", &more).await;
    let follower = Kine::start(&nats, "confirm", &more).await;
    let (mut writes, mut reads) = (writer.client().await, follower.client().await);
    for number in 0..20 {
        let value = format!("{number}");
        writes.put("/a", value.as_bytes()).await.unwrap();
        assert_eq!(reads.get("/a").await.unwrap().value.as_ref(), value.as_bytes());
    }
}
