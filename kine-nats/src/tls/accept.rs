//! From TCP connections to connections whose TLS handshake is done.

use super::TlsConfigs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Handshakes at a time; whoever has no certificate holds one of them for a limited time.
const HANDSHAKES: usize = 128;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Out of file descriptors, mostly: others have to close first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a server takes its connections from.
type Connections = mpsc::Receiver<io::Result<TlsStream<TcpStream>>>;

/// Accepts until told to stop, or until nobody takes the connections. Handshakes run beside each other, so that a slow
/// one holds up nobody.
pub(crate) fn accept(
    listener: TcpListener,
    configs: TlsConfigs,
    stop: watch::Receiver<bool>,
) -> (Connections, impl Future<Output = ()>) {
    let (accepted, connections) = mpsc::channel(HANDSHAKES);
    (connections, run(listener, configs, stop, accepted))
}

async fn run(
    listener: TcpListener,
    configs: TlsConfigs,
    mut stop: watch::Receiver<bool>,
    accepted: mpsc::Sender<io::Result<TlsStream<TcpStream>>>,
) {
    let slots = Arc::new(Semaphore::new(HANDSHAKES));
    let mut handshakes = JoinSet::new();
    let next = async || {
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        (slot, listener.accept().await)
    };
    loop {
        let (slot, connection) = tokio::select! {
            next = next() => next,
            _ = stop.wait_for(|stop| *stop) => return,
            () = accepted.closed() => return,
        };
        while handshakes.try_join_next().is_some() {}
        match connection {
            Ok((stream, peer)) => {
                let (configs, accepted) = (configs.clone(), accepted.clone());
                handshakes.spawn(admit(slot, (stream, peer), configs, accepted));
            }
            Err(error) => {
                tracing::warn!(error = %error, "A connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn admit(
    _slot: Option<OwnedSemaphorePermit>,
    (stream, peer): (TcpStream, SocketAddr),
    configs: TlsConfigs,
    accepted: mpsc::Sender<io::Result<TlsStream<TcpStream>>>,
) {
    let config = Arc::clone(&configs.borrow());
    let handshake = async {
        stream.set_nodelay(true)?;
        TlsAcceptor::from(config).accept(stream).await
    };
    let error = match timeout(HANDSHAKE_LIMIT, handshake).await {
        Ok(Ok(stream)) => {
            // Without a receiver the server is ending.
            let _ = accepted.send(Ok(stream)).await;
            return;
        }
        Ok(Err(error)) => error,
        Err(_) => io::ErrorKind::TimedOut.into(),
    };
    tracing::warn!(%peer, error = %error, "A client was not admitted");
}
