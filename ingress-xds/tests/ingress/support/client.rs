//! A client whose TLS ends at the ingress, as a pod's does: HTTP/1.1 or HTTP/2 on one connection.

use std::net::SocketAddr;

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use tokio::net::TcpStream;

use super::PATIENCE;
use super::tenant::open_over;

const BODY_BYTES: usize = 1024 * 1024;

/// The HTTP versions that Kubernetes clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
}

pub const BOTH: [Http; 2] = [Http::One, Http::Two];

/// One connection.
pub struct Client {
    sender: Sender,
    pub certificate: CertificateDer<'static>,
}

enum Sender {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

/// A complete answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Client {
    /// Connects. If `name` is an IP address, it is verified and not sent.
    pub async fn connect(ingress: SocketAddr, name: &str, config: &ClientConfig, http: Http) -> std::io::Result<Self> {
        let stream = TcpStream::connect(ingress).await?;
        Self::over(stream, name, config, http).await
    }

    /// Continues with a connection that was opened elsewhere.
    pub async fn over(stream: TcpStream, name: &str, config: &ClientConfig, http: Http) -> std::io::Result<Self> {
        let mut config = config.clone();
        config.alpn_protocols = match http {
            Http::One => vec![b"http/1.1".to_vec()],
            Http::Two => vec![b"h2".to_vec()],
        };
        let stream = open_over(stream, name, &config).await?;
        let session = stream.get_ref().1;
        assert_eq!(
            session.alpn_protocol(),
            config.alpn_protocols.first().map(Vec::as_slice)
        );
        let certificate = session.peer_certificates().unwrap()[0].clone().into_owned();
        let stream = TokioIo::new(stream);
        let sender = match http {
            Http::One => {
                let (sender, connection) = http1::handshake(stream).await.map_err(std::io::Error::other)?;
                tokio::spawn(connection.with_upgrades());
                Sender::One(sender)
            }
            Http::Two => {
                let handshake = http2::handshake(TokioExecutor::new(), stream).await;
                let (sender, connection) = handshake.map_err(std::io::Error::other)?;
                tokio::spawn(connection);
                Sender::Two(sender)
            }
        };
        Ok(Self { sender, certificate })
    }

    /// Whether the connection has ended, or is about to.
    pub fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::One(sender) => sender.is_closed(),
            Sender::Two(sender) => sender.is_closed(),
        }
    }

    /// Another handle on the same HTTP/2 connection.
    pub fn fork(&self) -> Self {
        let Sender::Two(sender) = &self.sender else {
            panic!("HTTP/1.1 has one request at a time");
        };
        Self {
            sender: Sender::Two(sender.clone()),
            certificate: self.certificate.clone(),
        }
    }

    /// Sends a request with a URI in the form of HTTP/2. For HTTP/1.1 its authority becomes the
    /// header `host`.
    pub async fn send(&mut self, request: Request<Body>) -> Result<http::Response<Incoming>, hyper::Error> {
        match &mut self.sender {
            Sender::One(sender) => {
                let (mut parts, body) = request.into_parts();
                if let Some(authority) = parts.uri.authority().filter(|_| !parts.headers.contains_key("host")) {
                    parts.headers.insert("host", authority.as_str().parse().unwrap());
                }
                let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
                parts.uri = path.parse().unwrap();
                sender.ready().await?;
                sender.send_request(Request::from_parts(parts, body)).await
            }
            Sender::Two(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Sends a request and reads the complete answer.
    pub async fn ask(&mut self, request: Request<Body>) -> Result<Answer, hyper::Error> {
        let response = tokio::time::timeout(PATIENCE, self.send(request))
            .await
            .expect("the ingress answers")?;
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(Body::new(body), BODY_BYTES).await.unwrap();
        let text = String::from_utf8_lossy(&bytes);
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::from(text.as_ref())),
        })
    }
}

/// A request of a pod to the API's address in its cluster.
pub fn get(authorization: Option<&str>) -> Request<Body> {
    let mut request = Request::get("https://10.96.0.1/api/v1/namespaces?limit=500");
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    request.body(Body::empty()).unwrap()
}
