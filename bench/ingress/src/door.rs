//! Clients of the ingress: external clients that use a cluster's public name, and pods.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Server name for connections of pods. Pods reach their API by IP address, so they send no SNI.
pub(crate) const INSIDE: &str = "10.96.0.1";
/// Number of source addresses, used in rotation, so that no per-source limit of the ingress
/// applies.
const SOURCES: u32 = 4096;
/// Timeout for a connection, a request or a response body.
const LIMIT: Duration = Duration::from_secs(10);
const BODY_BYTES: usize = 1024;

/// Opens client connections to the ingress.
pub(crate) struct Door {
    /// Address on which the ingress listens.
    pub(crate) ingress: SocketAddr,
    config: Arc<ClientConfig>,
    next: AtomicU32,
}

/// An HTTP/2 connection. Closed when the value is dropped.
pub(crate) struct Connection {
    sender: SendRequest<Body>,
    name: String,
    _task: JoinSet<()>,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The control plane at this address answered.
    From(Ipv4Addr),
    /// The ingress itself answered, with this status.
    Refused(StatusCode),
}

impl Door {
    /// Creates a client side whose trust comes from `config`.
    pub(crate) fn new(ingress: SocketAddr, config: ClientConfig) -> Self {
        let mut config = config;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Every connection does a full TLS handshake, as if each client were another machine.
        config.resumption = Resumption::disabled();
        Self {
            ingress,
            config: Arc::new(config),
            next: AtomicU32::new(0),
        }
    }

    /// Connects to a cluster by its public name, or to [`INSIDE`] as a pod.
    pub(crate) async fn connect(&self, name: &str) -> Result<Connection> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.connect_from(source_of(number % SOURCES), name).await
    }

    /// Connects like [`Door::connect`], from the given source address.
    pub(crate) async fn connect_from(&self, source: Ipv4Addr, name: &str) -> Result<Connection> {
        within(async {
            let stream = open(source, self.ingress).await?;
            let server_name = ServerName::try_from(name.to_owned())?;
            let connector = TlsConnector::from(Arc::clone(&self.config));
            let stream = connector.connect(server_name, stream).await?;
            let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
            let mut task = JoinSet::new();
            // The next request on the connection reports the error.
            task.spawn(async { drop(connection.await) });
            Ok(Connection {
                sender,
                name: name.to_owned(),
                _task: task,
            })
        })
        .await
    }

    /// Sends one request to a public name on a new connection.
    pub(crate) async fn ask(&self, name: &str) -> Result<Answer> {
        self.connect(name).await?.ask(None).await
    }

    /// The TLS ClientHello that a client sends to connect to a name.
    pub(crate) fn hello(&self, name: &str) -> Result<Vec<u8>> {
        let name = ServerName::try_from(name.to_owned())?;
        let mut client = rustls::ClientConnection::new(Arc::clone(&self.config), name)?;
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes)?;
        Ok(bytes)
    }
}

impl Connection {
    /// Sends a request. A pod's request carries its token, because the ingress terminates TLS for
    /// pods.
    pub(crate) async fn send(&mut self, path: &str, bearer: Option<&str>) -> Result<Response<Incoming>> {
        let mut request = Request::get(format!("https://{}{path}", self.name));
        if let Some(bearer) = bearer {
            request = request.header(http::header::AUTHORIZATION, bearer);
        }
        let request = request.body(Body::empty())?;
        within(async {
            self.sender.ready().await?;
            Ok(self.sender.send_request(request).await?)
        })
        .await
    }

    /// Requests the address of the control plane that answers.
    pub(crate) async fn ask(&mut self, bearer: Option<&str>) -> Result<Answer> {
        let response = self.send("/", bearer).await?;
        if response.status() != StatusCode::OK {
            return Ok(Answer::Refused(response.status()));
        }
        let body = within(async { Ok(axum::body::to_bytes(Body::new(response.into_body()), BODY_BYTES).await?) });
        let text = String::from_utf8(body.await?.to_vec())?;
        Ok(Answer::From(text.parse().context("reading who answered")?))
    }

    /// Clones the connection for another task.
    pub(crate) fn fork(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            name: self.name.clone(),
            _task: JoinSet::new(),
        }
    }
}

/// Opens a TCP connection from a local source address.
pub(crate) async fn open(source: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Source address of the client with this number.
pub(crate) fn source_of(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + number)
}

async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(LIMIT, work).await.context("no answer in time")?
}
