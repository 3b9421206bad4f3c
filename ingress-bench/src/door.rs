//! Clients of the ingress: who knows a cluster's public name, and pods.

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

/// What pods call their API, which is an address and sends no name.
pub(crate) const INSIDE: &str = "10.96.0.1";
/// Addresses that clients come from, in turn: limits for one source are for others to meet.
const SOURCES: u32 = 4096;
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);
const BODY_BYTES: usize = 1024;

/// The way in.
pub(crate) struct Door {
    /// Where the ingress listens.
    pub(crate) ingress: SocketAddr,
    config: Arc<ClientConfig>,
    next: AtomicU32,
}

/// A connection of HTTP/2; it ends when it is dropped.
pub(crate) struct Connection {
    sender: SendRequest<Body>,
    name: String,
    _task: JoinSet<()>,
}

/// What a request came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The control plane at this address answered.
    From(Ipv4Addr),
    /// The ingress answered.
    Refused(StatusCode),
}

impl Door {
    /// Clients that trust what `config` does.
    pub(crate) fn new(ingress: SocketAddr, config: ClientConfig) -> Self {
        let mut config = config;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Each is as good as another machine.
        config.resumption = Resumption::disabled();
        Self {
            ingress,
            config: Arc::new(config),
            next: AtomicU32::new(0),
        }
    }

    /// Connects to a cluster by its public name, or to what pods reach.
    pub(crate) async fn connect(&self, name: &str) -> Result<Connection> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.connect_from(source_of(number % SOURCES), name).await
    }

    /// The same from an address.
    pub(crate) async fn connect_from(&self, source: Ipv4Addr, name: &str) -> Result<Connection> {
        within(async {
            let stream = open(source, self.ingress).await?;
            let server_name = ServerName::try_from(name.to_owned())?;
            let connector = TlsConnector::from(Arc::clone(&self.config));
            let stream = connector.connect(server_name, stream).await?;
            let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
            let mut task = JoinSet::new();
            // An error is heard by whoever asks.
            task.spawn(async { drop(connection.await) });
            Ok(Connection {
                sender,
                name: name.to_owned(),
                _task: task,
            })
        })
        .await
    }

    /// Asks once by a public name, on a new connection.
    pub(crate) async fn ask(&self, name: &str) -> Result<Answer> {
        self.connect(name).await?.ask(None).await
    }

    /// The first bytes of a connection to a name.
    pub(crate) fn hello(&self, name: &str) -> Result<Vec<u8>> {
        let name = ServerName::try_from(name.to_owned())?;
        let mut client = rustls::ClientConnection::new(Arc::clone(&self.config), name)?;
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes)?;
        Ok(bytes)
    }
}

impl Connection {
    /// Sends a request, with a pod's token where TLS ends at the ingress.
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

    /// Asks who answers.
    pub(crate) async fn ask(&mut self, bearer: Option<&str>) -> Result<Answer> {
        let response = self.send("/", bearer).await?;
        if response.status() != StatusCode::OK {
            return Ok(Answer::Refused(response.status()));
        }
        let body = within(async { Ok(axum::body::to_bytes(Body::new(response.into_body()), BODY_BYTES).await?) });
        let text = String::from_utf8(body.await?.to_vec())?;
        Ok(Answer::From(text.parse().context("reading who answered")?))
    }

    /// The same connection for another task.
    pub(crate) fn fork(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            name: self.name.clone(),
            _task: JoinSet::new(),
        }
    }
}

/// A connection of TCP from an address of this machine.
pub(crate) async fn open(source: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// One of the addresses that clients come from.
pub(crate) fn source_of(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + number)
}

async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(LIMIT, work).await.context("no answer in time")?
}
