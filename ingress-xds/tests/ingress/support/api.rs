//! A server in place of kube-apiserver, to which the ingress opens TLS: HTTP/1.1 and HTTP/2,
//! upgrades, a watch. It answers with the request that it got, and accepts every token: a request
//! that arrives here has passed the ingress.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use futures::stream;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::pki::{Ca, Leaf};

/// Path of a watch, which sends data periodically and never ends.
pub const WATCH: &str = "/watch";
/// Path of an answer that is larger than the initial window of HTTP/2, and smaller than what Envoy
/// buffers in addition.
pub const LARGE: &str = "/large";
const LARGE_BYTES: usize = 80_000;
/// Path of an endless answer that is sent as fast as it is read.
pub const ENDLESS: &str = "/endless";
const PIECE: [u8; 4096] = [b'a'; 4096];
const PACE: Duration = Duration::from_millis(20);

pub struct ApiServer {
    pub address: SocketAddr,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    taken: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl ApiServer {
    /// Listens on `address`, with a certificate of its cluster's CA.
    pub async fn start(name: &'static str, address: SocketAddr, ca: &Ca, leaf: &Leaf) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = ca.server(leaf);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let taken = Arc::new(AtomicUsize::new(0));
        let gone = Arc::clone(&taken);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                let (acceptor, count, gone) = (acceptor.clone(), Arc::clone(&count), Arc::clone(&gone));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let shown = stream.get_ref().1.peer_certificates().is_some();
                    let service = service_fn(move |request| {
                        count.fetch_add(1, Ordering::Relaxed);
                        let gone = Arc::clone(&gone);
                        async move { Ok::<_, Infallible>(answer(name, shown, request, gone).await) }
                    });
                    // An error means that the client has gone.
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection_with_upgrades(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            address,
            requests,
            connections,
            taken,
            task,
        }
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Bytes that clients have read of endless answers.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(name: &str, shown: bool, request: Request<Incoming>, taken: Arc<AtomicUsize>) -> Response<Body> {
    let mut request = request.map(Some);
    if let Some(protocol) = request.headers().get(header::UPGRADE).cloned() {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
            // Copies until the client goes away.
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        let answer = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, protocol);
        return answer.body(Body::empty()).unwrap();
    }
    if request.uri().path() == WATCH {
        let lines = stream::unfold(0, |number| async move {
            tokio::time::sleep(PACE).await;
            Some((Ok::<_, Infallible>(format!("{number}\n")), number + 1))
        });
        return Response::new(Body::from_stream(lines));
    }
    if request.uri().path() == ENDLESS {
        let pieces = stream::repeat_with(move || {
            taken.fetch_add(PIECE.len(), Ordering::Relaxed);
            Ok::<_, Infallible>(&PIECE[..])
        });
        return Response::new(Body::from_stream(pieces));
    }
    if request.method() == Method::POST {
        // An incomplete body is not a request; an error means that the client has gone.
        let body = Body::new(request.body_mut().take().unwrap());
        if axum::body::to_bytes(body, usize::MAX).await.is_err() {
            return Response::new(Body::empty());
        }
    }
    if request.uri().path() == LARGE {
        return Response::new(Body::from(vec![b'a'; LARGE_BYTES]));
    }
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.to_string(), Value::from(value))
    });
    let told = json!({
        "cluster": name,
        "certificate": shown,
        "version": format!("{:?}", request.version()),
        "method": request.method().as_str(),
        "uri": request.uri().to_string(),
        "headers": headers.collect::<Map<_, _>>(),
    });
    Response::new(Body::from(told.to_string()))
}
