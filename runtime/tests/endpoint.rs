//! Tests of the endpoint over a real socket.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use yoke_runtime::{DrainTrigger, Endpoint, Metrics, Readiness};

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn serves_metrics_and_probes() {
    let metrics = Metrics::new("test");
    let writes = Counter::<u64>::default();
    metrics.register(|registry| registry.register("writes", "Writes stored", writes.clone()));
    let readiness = Readiness::new();
    let store = readiness.check("store");
    let (trigger, drain) = DrainTrigger::new();
    let endpoint = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let address = endpoint.local_address();
    let server = tokio::spawn(endpoint.serve(metrics, readiness, drain));

    let answer = get(address, "/livez").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    let answer = get(address, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nstore: not reported yet\n"), "{answer}");

    store.set_ready();
    let answer = get(address, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    writes.inc_by(3);
    let answer = get(address, "/metrics").await;
    assert!(
        answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{answer}"
    );
    assert!(
        answer.ends_with(
            "# HELP yoke_test_writes Writes stored.\n# TYPE yoke_test_writes counter\nyoke_test_writes_total 3\n# EOF\n"
        ),
        "{answer}"
    );

    trigger.start();
    let answer = get(address, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("drain: the process is shutting down\n"), "{answer}");
    let answer = get(address, "/livez").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.abort();
}

#[tokio::test]
async fn taken_address_is_an_error() {
    let first = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let error = Endpoint::bind(first.local_address()).await.unwrap_err();
    assert!(error.to_string().starts_with("listening on 127.0.0.1:"), "{error}");
}
