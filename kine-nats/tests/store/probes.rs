//! The plain HTTP endpoints for kubelets, load balancers and monitoring, in etcd and in kine-nats.

use crate::etcd::Etcd;
use crate::harness::{Client, Kine, Nats, WAIT, eventually, http_get};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATHS: [&str; 6] = [
    "/version",
    "/health",
    "/health?serializable=true",
    "/health?exclude=NOSPACE",
    "/livez",
    "/readyz",
];

/// Status and body.
async fn ask(address: &str, path: &str) -> (String, Value) {
    let stream = TcpStream::connect(address).await.unwrap();
    let answer = http_get(stream, path).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().to_owned();
    let said = serde_json::from_str(body).unwrap_or_else(|_| body.trim().into());
    (status, said)
}

async fn compare(etcd: &Etcd, kine: &Kine) {
    for path in PATHS {
        let (status, said) = ask(&etcd.address(), path).await;
        for address in [kine.address(), kine.metrics_address()] {
            assert_eq!(ask(&address, path).await, (status.clone(), said.clone()), "{path}");
        }
    }
}

async fn fill(mut client: Client) {
    let large = vec![7; 100_000];
    let mut number = 0;
    while client.put(&format!("/{number}"), &large).await.is_ok() {
        number += 1;
        // etcd checks the size of its file when it commits, ten times a second.
        assert!(number < 2000, "the quota holds");
    }
}

#[tokio::test]
async fn probes_are_answered_like_in_etcd() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes=1000000"]).await;
    // etcd migrates its file to the format of its version some time after its start.
    eventually("etcd to have its storage version", || async {
        (ask(&etcd.address(), "/version").await.1["storage"] == "3.6.0").then_some(())
    })
    .await;
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "probes", &["--quota=1000000"]).await;
    let client = kine.client().await;
    compare(&etcd, &kine).await;
    fill(etcd.client()).await;
    fill(client).await;
    compare(&etcd, &kine).await;
    let (status, said) = ask(&kine.address(), "/health").await;
    assert_eq!(
        (status.as_str(), said["reason"].as_str()),
        ("503", Some("ALARM NOSPACE"))
    );
}

/// Sends a POST; returns the status.
async fn tell(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("POST {path} HTTP/1.0\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn a_stopped_process_waits_until_it_is_released() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "released", &[]).await;
    let address = kine.metrics_address();
    for (path, expected) in [
        ("/released?seconds=0", "503"),
        ("/released", "400"),
        ("/released?seconds=61", "400"),
        ("/released?seconds=-1", "400"),
        ("/released?seconds=soon", "400"),
        ("/release", "405"),
    ] {
        assert_eq!(ask(&address, path).await.0, expected, "{path}");
    }
    let wait = || {
        let address = kine.metrics_address();
        tokio::spawn(async move { ask(&address, "/released?seconds=60").await.0 })
    };
    let waiting = [wait(), wait()];
    // Long enough to receive those, too.
    assert_eq!(ask(&address, "/released?seconds=1").await.0, "503");
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    assert_eq!(tell(&address, "/release").await, "200");
    for waiting in waiting {
        let waited = timeout(WAIT, waiting).await;
        assert_eq!(waited.unwrap().unwrap(), "200");
    }
    assert_eq!(tell(&address, "/release").await, "200", "again");
    assert_eq!(ask(&address, "/released?seconds=60").await.0, "200");
    // The release has no other effect: the process continues to serve.
    kine.client().await.put("/a", b"b").await.unwrap();
    assert_eq!(ask(&address, "/readyz").await.0, "200");
}

#[tokio::test]
async fn a_stopped_store_waits_until_no_client_uses_it() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "unused", &[]).await;
    let address = kine.metrics_address();
    assert_eq!(ask(&address, "/unused").await.0, "400");
    let mut clients = [kine.client().await, kine.client().await];
    for client in &mut clients {
        client.put("/a", b"b").await.unwrap();
    }
    let asked = address.clone();
    let waiting = tokio::spawn(async move { ask(&asked, "/unused?seconds=60").await.0 });
    // Long enough to receive that one, too.
    assert_eq!(ask(&address, "/unused?seconds=1").await.0, "503");
    let [first, second] = clients;
    drop(first);
    assert_eq!(ask(&address, "/unused?seconds=1").await.0, "503");
    assert!(!waiting.is_finished());
    drop(second);
    let waited = timeout(WAIT, waiting).await;
    assert_eq!(waited.unwrap().unwrap(), "200");
}
