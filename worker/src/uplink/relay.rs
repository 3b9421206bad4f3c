//! Forwards the worker's DNS queries to the machine's own resolver. A resolver on loopback is
//! unreachable from other network namespaces.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::link::Uplink;
use super::resolvers;
use crate::host::resolv_conf::read_resolv_conf;

const PORT: u16 = 53;
/// Concurrent queries. A query beyond that gets no answer, and the client retries.
const QUERIES_MAX: usize = 256;
/// Timeout of a query. Clients give up by then, too.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);
const BACKOFF: Duration = Duration::from_millis(100);
/// Maximum size of a UDP datagram.
const MESSAGE_MAX: usize = 65535;

/// A DNS forwarder on the machine's end of the link. The packet filter redirects port 53 to its
/// ports.
pub(super) struct Relay {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    /// Only this address may send queries.
    worker: IpAddr,
    ports: (u16, u16),
}

impl Relay {
    pub(super) async fn bind(uplink: &Uplink) -> std::io::Result<Self> {
        let udp = UdpSocket::bind((uplink.gateway, 0)).await?;
        let tcp = TcpListener::bind((uplink.gateway, 0)).await?;
        Ok(Self {
            ports: (udp.local_addr()?.port(), tcp.local_addr()?.port()),
            udp: Arc::new(udp),
            tcp,
            worker: uplink.address.into(),
        })
    }

    /// Returns the UDP port and the TCP port.
    pub(super) fn ports(&self) -> (u16, u16) {
        self.ports
    }

    /// Forwards queries until dropped, which cancels pending queries.
    pub(super) async fn serve(&self) -> Infallible {
        self.serve_by(|| SocketAddr::new(resolvers::find_relay_target(&read_resolv_conf()), PORT))
            .await
    }

    async fn serve_by(&self, find: impl Fn() -> SocketAddr) -> Infallible {
        let permits = Arc::new(Semaphore::new(QUERIES_MAX));
        let mut queries = JoinSet::new();
        let mut query = vec![0; MESSAGE_MAX];
        loop {
            tokio::select! {
                received = self.udp.recv_from(&mut query) => match received {
                    Ok((length, from)) if from.ip() == self.worker => {
                        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
                            let (back, server, query) = (Arc::clone(&self.udp), find(), query[..length].to_vec());
                            queries.spawn(async move {
                                // A client without an answer retries.
                                let _ = timeout(ANSWER_LIMIT, forward_query(&back, from, server, &query)).await;
                                drop(permit);
                            });
                        }
                    }
                    Ok(_) => {}
                    // This error may come from an earlier answer that could not be delivered.
                    Err(_) => sleep(BACKOFF).await,
                },
                accepted = self.tcp.accept() => match accepted {
                    Ok((mut stream, from)) if from.ip() == self.worker => {
                        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
                            let server = find();
                            queries.spawn(async move {
                                let _ = timeout(CONNECTION_LIMIT, forward_connection(&mut stream, server)).await;
                                drop(permit);
                            });
                        }
                    }
                    Ok(_) => {}
                    Err(_) => sleep(BACKOFF).await,
                },
                Some(_) = queries.join_next() => {}
            }
        }
    }
}

async fn forward_query(back: &UdpSocket, to: SocketAddr, server: SocketAddr, query: &[u8]) -> std::io::Result<()> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; MESSAGE_MAX];
    let length = socket.recv(&mut answer).await?;
    back.send_to(&answer[..length], to).await.map(drop)
}

async fn forward_connection(stream: &mut TcpStream, server: SocketAddr) -> std::io::Result<()> {
    let mut far = timeout(ANSWER_LIMIT, TcpStream::connect(server)).await??;
    copy_bidirectional(stream, &mut far).await.map(drop)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A relay on loopback, to which this test sends queries.
    async fn relay() -> Relay {
        let uplink = Uplink {
            gateway: Ipv4Addr::LOCALHOST,
            address: Ipv4Addr::LOCALHOST,
            ..Uplink::example()
        };
        Relay::bind(&uplink).await.unwrap()
    }

    /// Waits for an answer while the relay serves.
    async fn during<T>(relay: &Relay, server: SocketAddr, asked: impl Future<Output = T>) -> T {
        tokio::select! {
            done = timeout(ANSWER_LIMIT, asked) => done.expect("there is an answer"),
            never = relay.serve_by(|| server) => match never {},
        }
    }

    #[tokio::test]
    async fn questions_are_answered_over_udp() {
        let (relay, server) = (relay().await, UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let at = server.local_addr().unwrap();
        let asked = async {
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            client.connect(("127.0.0.1", relay.ports().0)).await.unwrap();
            client.send(b"who?").await.unwrap();
            let mut text = [0; 16];
            let (length, from) = server.recv_from(&mut text).await.unwrap();
            assert_eq!(&text[..length], b"who?");
            server.send_to(b"me", from).await.unwrap();
            let length = client.recv(&mut text).await.unwrap();
            text[..length].to_vec()
        };
        assert_eq!(during(&relay, at, asked).await, b"me");
    }

    #[tokio::test]
    async fn questions_are_answered_over_tcp() {
        let (relay, server) = (relay().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
        let at = server.local_addr().unwrap();
        let asked = async {
            let mut client = TcpStream::connect(("127.0.0.1", relay.ports().1)).await.unwrap();
            client.write_all(b"who?").await.unwrap();
            let (mut stream, _) = server.accept().await.unwrap();
            let mut text = [0; 4];
            stream.read_exact(&mut text).await.unwrap();
            assert_eq!(&text, b"who?");
            stream.write_all(b"me").await.unwrap();
            drop(stream);
            let mut text = Vec::new();
            client.read_to_end(&mut text).await.unwrap();
            text
        };
        assert_eq!(during(&relay, at, asked).await, b"me");
    }

    #[tokio::test]
    async fn queries_of_others_are_ignored() {
        let mut relay = relay().await;
        relay.worker = "198.18.0.2".parse().unwrap();
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = server.local_addr().unwrap();
        let asked = async {
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            client.send_to(b"who?", ("127.0.0.1", relay.ports().0)).await.unwrap();
            let mut text = [0; 16];
            timeout(Duration::from_millis(300), server.recv_from(&mut text))
                .await
                .is_err()
        };
        assert!(during(&relay, at, asked).await);
    }
}
