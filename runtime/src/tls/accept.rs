//! Accepts TCP connections, runs the TLS handshakes, and admits clients.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::TlsConfigs;
use crate::AcceptBackoff;

/// Default maximum of concurrent handshakes.
const HANDSHAKES: usize = 128;
/// At the maximum of concurrent handshakes, a handshake that has had this time is given up for
/// another client. So silent clients cannot block others for longer.
const HANDSHAKE_TURN: Duration = Duration::from_millis(500);
/// Timeout of one handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections for the server.
pub type Connections = mpsc::Receiver<io::Result<TlsStream<TcpStream>>>;
type Accepted = mpsc::Sender<io::Result<TlsStream<TcpStream>>>;

/// Admission check beyond TLS verification, with counters. `()` admits all clients and counts
/// nothing.
pub trait Admission: Clone + Send + Sync + 'static {
    /// Decides by the client's certificates, the client's own first; the error is logged. TLS has
    /// verified the certificates. The list is empty if clients need none.
    fn check(&self, certificates: &[CertificateDer<'_>]) -> io::Result<()>;

    /// Counts one client that was admitted or rejected.
    fn count(&self, admitted: bool);

    /// Whether untrusted clients can reach the listener. If so, rejected clients are logged only at
    /// level debug.
    fn is_public(&self) -> bool {
        false
    }

    /// Maximum number of concurrent handshakes.
    fn handshakes(&self) -> usize {
        HANDSHAKES
    }
}

impl Admission for () {
    fn check(&self, _: &[CertificateDer<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn count(&self, _: bool) {}
}

/// Accepts connections until `stop` completes or the receiver of the connections is dropped.
/// Handshakes run concurrently, so a slow one does not delay others.
pub fn accept(
    listener: TcpListener,
    configs: TlsConfigs,
    admission: impl Admission,
    stop: impl Future,
) -> (Connections, impl Future<Output = ()>) {
    let (accepted, connections) = mpsc::channel(admission.handshakes());
    (connections, run(listener, configs, admission, stop, accepted))
}

async fn run(
    listener: TcpListener,
    configs: TlsConfigs,
    admission: impl Admission,
    stop: impl Future,
    accepted: Accepted,
) {
    let (limit, mut handshakes) = (admission.handshakes(), JoinSet::new());
    // Running handshakes, oldest first. Dropping a sender gives up its handshake.
    let mut slots: VecDeque<(oneshot::Sender<()>, Instant)> = VecDeque::new();
    let mut stop = pin!(stop);
    let mut backoff = AcceptBackoff::default();
    loop {
        slots.retain(|(slot, _)| !slot.is_closed());
        let turn = slots.front().map(|(_, begun)| *begun + HANDSHAKE_TURN);
        let connection = tokio::select! {
            connection = listener.accept(), if slots.len() < limit => connection,
            () = sleep_until(turn.unwrap_or_else(Instant::now)), if slots.len() == limit => {
                slots.pop_front();
                continue;
            }
            Some(_) = handshakes.join_next() => continue,
            _ = &mut stop => return,
            () = accepted.closed() => return,
        };
        match connection {
            Ok((stream, peer)) => {
                let (configs, admission) = (configs.clone(), admission.clone());
                let (slot, given_up) = oneshot::channel();
                slots.push_back((slot, Instant::now()));
                handshakes.spawn(admit(given_up, stream, peer, configs, admission, accepted.clone()));
            }
            Err(error) => backoff.wait(&error).await,
        }
    }
}

async fn admit(
    given_up: oneshot::Receiver<()>,
    stream: TcpStream,
    peer: SocketAddr,
    configs: TlsConfigs,
    admission: impl Admission,
    accepted: Accepted,
) {
    let config = Arc::clone(&configs.borrow());
    let handshake = async {
        stream.set_nodelay(true)?;
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        admission.check(stream.get_ref().1.peer_certificates().unwrap_or_default())?;
        Ok(stream)
    };
    let result: io::Result<_> = tokio::select! {
        result = timeout(HANDSHAKE_TIMEOUT, handshake) => result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        _ = given_up => Err(io::Error::other("handshake was given up for another client")),
    };
    admission.count(result.is_ok());
    let is_public = admission.is_public();
    match result {
        Ok(stream) => {
            // An error means that the receiver is gone: the server is stopping.
            let _ = accepted.send(Ok(stream)).await;
        }
        Err(error) if is_public => tracing::debug!(%peer, error = &error as &dyn Error, "client was not admitted"),
        Err(error) => tracing::warn!(%peer, error = &error as &dyn Error, "client was not admitted"),
    }
}
