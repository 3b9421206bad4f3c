//! One Envoy cluster carries a tenant's connections and requests. Connections with the client's TLS
//! pass unchanged, and requests whose TLS ended at Envoy continue over a new TLS connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::header;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::client::{BOTH, get};
use crate::support::tenant::hello;
use crate::support::{PATIENCE, eventually};
use crate::terminated::{Stage, assert_status};

/// First byte of a TLS handshake record.
const HANDSHAKE: u8 = 22;

/// A silent control plane that records what it receives on each connection.
struct Ear {
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
    task: JoinHandle<()>,
}

impl Ear {
    async fn open(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let all = Arc::clone(&all);
                tokio::spawn(async move {
                    let mut bytes = vec![0; 64 * 1024];
                    // A connection that closes without data counts as empty.
                    let length = stream.read(&mut bytes).await.unwrap_or_default();
                    bytes.truncate(length);
                    all.lock().unwrap().push(bytes);
                });
            }
        });
        Self { heard, task }
    }

    /// The data that arrives when a client sends `said`. Each connection is then closed, so that
    /// nothing arrives later.
    async fn hears(&self, ingress: SocketAddr, said: &[u8]) -> Option<Vec<u8>> {
        let mut client = TcpStream::connect(ingress).await.unwrap();
        client.write_all(said).await.unwrap();
        // Only another control plane answers.
        let answered = client.read(&mut [0]).await.is_ok_and(|length| length > 0);
        self.take().pop().filter(|_| !answered)
    }

    /// Data received since the last call.
    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_use_upstream_tls_and_connections_pass_through() {
    let stage = Stage::with(&[], |_| {}).await;
    let fixture = stage.clusters[1].clone();
    let (name, config) = (fixture.public_name(), stage.root.client(None));
    let ear = Ear::open(SocketAddr::from(([127, 0, 0, 9], fixture.port))).await;
    stage
        .xds()
        .apply(&fixture.clone().at(&["127.0.0.9"], fixture.port))
        .await;
    let sent = hello(&name, &config);
    let bearer = stage.bearer(1);
    let moved = async || ear.hears(stage.envoy.ingress, &sent).await;
    eventually("the control plane to move", PATIENCE, moved).await;

    // Alternately, so that neither finds a pooled connection of the other.
    for round in 0..5 {
        let (bytes, _) = eventually("a connection", PATIENCE, moved).await;
        assert_eq!(bytes, sent, "{round}: not a byte more");
        for http in BOTH {
            let mut client = stage.client(http).await;
            let answer = client.ask(get(Some(&bearer))).await.unwrap();
            assert_eq!(answer.status, 503, "{round} {http:?}");
            // Envoy may try more than once.
            let heard = ear.take();
            assert!(!heard.is_empty(), "{round} {http:?}: the request is heard");
            for bytes in heard {
                assert_eq!(bytes.first(), Some(&HANDSHAKE), "{round} {http:?}");
                assert!(contains(&bytes, &fixture.config.upstream.server_name), "its own TLS");
                for secret in ["Bearer", "HTTP", "namespaces"] {
                    assert!(!contains(&bytes, secret), "{round} {http:?}: {secret}");
                }
            }
        }
    }
}

/// Only a cluster's public name has TLS for requests. If the gate ever selects another name,
/// nothing is sent.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_uses_an_extra_name() {
    let led = [
        ("cluster_header: x-yoke-cluster", "cluster: name/b.example.org"),
        (
            "name: terminated\n            virtual_hosts",
            "name: terminated\n            validate_clusters: false\n            virtual_hosts",
        ),
    ];
    let stage = Stage::with(&led, |_| {}).await;
    let fixture = stage.clusters[1].clone().with_extra_names(&["b.example.org"]);
    let ear = Ear::open(SocketAddr::from(([127, 0, 0, 9], fixture.port))).await;
    stage
        .xds()
        .apply(&fixture.clone().at(&["127.0.0.9"], fixture.port))
        .await;
    let sent = hello("b.example.org", &stage.root.client(None));
    let passes = async || ear.hears(stage.envoy.ingress, &sent).await;
    eventually("a connection to pass", PATIENCE, passes).await;
    let bearer = stage.bearer(1);
    for http in BOTH {
        let answer = stage.client(http).await.ask(get(Some(&bearer))).await.unwrap();
        assert_status("no room for any", &answer, 429, "TooManyRequests");
    }
    assert!(ear.take().is_empty(), "nothing was said");
}

/// An Envoy and a gate of two releases may use different names for a tenant's cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_of_another_release_gets_retry_after() {
    let other = [("string_match: {prefix: name/}", "string_match: {prefix: other/}")];
    let stage = Stage::with(&other, |_| {}).await;
    for http in BOTH {
        let mut client = stage.client(http).await;
        let answer = client.ask(get(Some(&stage.bearer(0)))).await.unwrap();
        assert_status("what it names", &answer, 503, "ServiceUnavailable");
        assert_eq!(answer.headers[header::RETRY_AFTER], "1");
        let answer = client.ask(get(None)).await.unwrap();
        assert_status("no token", &answer, 401, "Unauthorized");
    }
    assert_eq!(stage.requests(), [0, 0]);
}
