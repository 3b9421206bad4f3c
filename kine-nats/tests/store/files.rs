//! A process that has reached its limit of open files.

use crate::harness::{Kine, Nats, WAIT, eventually};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// The process needs about half of them for itself.
const FILES: u32 = 48;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_wait_without_free_file_descriptors() {
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "files", &[]).await;
    kine.terminate().await;
    kine.limit_files(FILES);
    kine.restart().await;
    let mut client = kine.client().await;
    client.put("/a", b"1").await.unwrap();

    let mut others = Vec::new();
    for _ in 0..2 * FILES {
        others.push(TcpStream::connect(kine.address()).await.unwrap());
    }
    eventually("a log line about refused connections", || async {
        kine.log().contains("cannot accept connections").then_some(())
    })
    .await;
    let before = kine.processor_time();
    sleep(Duration::from_secs(1)).await;
    let took = kine.processor_time() - before;
    assert!(took < Duration::from_millis(300), "{took:?} of a second");
    assert_eq!(kine.log().matches("cannot accept connections").count(), 1);
    // Connected clients are served.
    client.put("/a", b"2").await.unwrap();

    let mut waiting = kine.client().await;
    let read = tokio::spawn(async move { waiting.get("/a").await.unwrap() });
    drop(others);
    let read = timeout(WAIT, read).await.unwrap().unwrap();
    assert_eq!(read.value.as_ref(), b"2");
}
