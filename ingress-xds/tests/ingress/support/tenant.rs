//! A server in place of a tenant's API server: TLS that requests a client certificate, HTTP/1.1,
//! upgrades.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use yoke_pki::ParsedCertificate;

use super::PATIENCE;
use super::pki::Ca;

pub struct Tenant {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Tenant {
    /// Listens on `address` with a certificate for `names`. Every answer contains the name of the
    /// server and of the client.
    pub async fn start(name: &str, address: SocketAddr, ca: &Ca, names: &[&str]) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(ca.server(&ca.leaf(name, names))));
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let name = name.to_owned();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (acceptor, name) = (acceptor.clone(), name.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let certificates = stream.get_ref().1.peer_certificates();
                        let leaf = certificates.and_then(<[_]>::first);
                        let parsed = leaf.map(|leaf| ParsedCertificate::from_der(leaf.to_vec()).unwrap());
                        let client = parsed.and_then(|leaf| leaf.subject.common_name);
                        // An error means that the client has gone.
                        let _ = converse(stream, &name, &client.unwrap_or_else(|| "nobody".into())).await;
                    }
                });
            }
        });
        Self {
            address,
            connections,
            task,
        }
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, name: &str, client: &str) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut upgrade = None;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if let Some(protocol) = line.strip_prefix("Upgrade: ") {
                upgrade = Some(protocol.trim().to_owned());
            }
            if line == "\r\n" {
                break;
            }
        }
        if let Some(protocol) = upgrade {
            let head =
                format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            stream.flush().await?;
            let (mut read, mut write) = tokio::io::split(stream);
            tokio::io::copy(&mut read, &mut write).await?;
            return Ok(());
        }
        let body = format!("{name} to {client}");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
    }
}

/// Opens TLS through the ingress. If `sni` is an IP address, no name is sent.
pub async fn open(
    ingress: SocketAddr,
    sni: &str,
    config: &ClientConfig,
) -> Result<TlsStream<TcpStream>, std::io::Error> {
    let opened = async { open_over(TcpStream::connect(ingress).await?, sni, config).await };
    tokio::time::timeout(PATIENCE, opened).await?
}

/// Opens TLS over a connection that was opened elsewhere.
pub async fn open_over(
    stream: TcpStream,
    sni: &str,
    config: &ClientConfig,
) -> Result<TlsStream<TcpStream>, std::io::Error> {
    let name = ServerName::try_from(sni.to_owned()).map_err(std::io::Error::other)?;
    stream.set_nodelay(true)?;
    let connect = TlsConnector::from(Arc::new(config.clone())).connect(name, stream);
    tokio::time::timeout(PATIENCE, connect).await?
}

/// The first bytes of a handshake.
pub fn hello(sni: &str, config: &ClientConfig) -> Vec<u8> {
    let name = ServerName::try_from(sni.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config.clone()), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// A connection from another loopback address.
pub async fn connect_from(source: IpAddr, ingress: SocketAddr) -> Result<TcpStream, std::io::Error> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source, 0))?;
    socket.connect(ingress).await
}

/// The answer to a request through the ingress: the names of server and client.
pub async fn ask(ingress: SocketAddr, sni: &str, config: &ClientConfig) -> Result<String, std::io::Error> {
    let mut stream = open(ingress, sni, config).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {sni}\r\n\r\n");
    let exchange = async {
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                if length.and_then(|length| length.parse().ok()) == Some(body.len()) {
                    return Ok(body.to_owned());
                }
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
            }
        }
    };
    tokio::time::timeout(PATIENCE, exchange).await?
}

/// A long-lived stream: an HTTP/1.1 upgrade, as of an exec, to an echo server.
pub struct LongStream {
    stream: TlsStream<TcpStream>,
}

impl LongStream {
    pub async fn open(ingress: SocketAddr, sni: &str, config: &ClientConfig) -> Self {
        let mut stream = open(ingress, sni, config).await.unwrap();
        let request = format!("POST /exec HTTP/1.1\r\nHost: {sni}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        Self { stream }
    }

    /// Sends a text and expects it back.
    pub async fn echo(&mut self, text: &str) {
        let exchange = async {
            self.stream.write_all(text.as_bytes()).await?;
            let mut heard = vec![0; text.len()];
            self.stream.read_exact(&mut heard).await?;
            std::io::Result::Ok(heard)
        };
        let heard = tokio::time::timeout(PATIENCE, exchange)
            .await
            .expect("the stream answers");
        assert_eq!(heard.expect("the stream is open"), text.as_bytes());
    }
}
