//! From TCP connections to connections whose TLS handshake is done and whose client may come in.

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

/// Handshakes at a time, where nobody says otherwise. One that has had its time is given up for another client: strangers who
/// say nothing keep nobody out for longer.
const HANDSHAKES: usize = 128;
const TURN: Duration = Duration::from_millis(500);
/// How long one may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// What a server takes its connections from.
pub type Connections = mpsc::Receiver<io::Result<TlsStream<TcpStream>>>;
type Accepted = mpsc::Sender<io::Result<TlsStream<TcpStream>>>;

/// Who may come in beyond what TLS verifies, and who counts it. `()` lets everybody in and counts nothing.
pub trait Admission: Clone + Send + Sync + 'static {
    /// Decides by the client's certificates, its own first; the error is logged. TLS has verified them; there is none
    /// where clients need none.
    fn check(&self, certificates: &[CertificateDer<'_>]) -> io::Result<()>;

    /// A client was admitted, or not.
    fn count(&self, admitted: bool);

    /// Whether anybody may knock: then the log tells of those who are not admitted only at level debug.
    fn is_public(&self) -> bool {
        false
    }

    /// Handshakes at a time.
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

/// Accepts until `stop` ends, or until nobody takes the connections. Handshakes run beside each other, so that a slow one
/// holds up nobody.
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
    let (most, mut handshakes) = (admission.handshakes(), JoinSet::new());
    // The oldest first; who is dropped from here is given up.
    let mut places: VecDeque<(oneshot::Sender<()>, Instant)> = VecDeque::new();
    let mut stop = pin!(stop);
    let mut backoff = AcceptBackoff::default();
    loop {
        places.retain(|(place, _)| !place.is_closed());
        let turn = places.front().map(|(_, begun)| *begun + TURN);
        let connection = tokio::select! {
            connection = listener.accept(), if places.len() < most => connection,
            () = sleep_until(turn.unwrap_or_else(Instant::now)), if places.len() == most => {
                places.pop_front();
                continue;
            }
            Some(_) = handshakes.join_next() => continue,
            _ = &mut stop => return,
            () = accepted.closed() => return,
        };
        match connection {
            Ok(connection) => {
                let (configs, admission) = (configs.clone(), admission.clone());
                let (place, given_up) = oneshot::channel();
                places.push_back((place, Instant::now()));
                handshakes.spawn(admit(given_up, connection, configs, admission, accepted.clone()));
            }
            Err(error) => backoff.wait(&error).await,
        }
    }
}

async fn admit(
    given_up: oneshot::Receiver<()>,
    (stream, peer): (TcpStream, SocketAddr),
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
        result = timeout(HANDSHAKE_LIMIT, handshake) => result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        _ = given_up => Err(io::Error::other("given up for another client")),
    };
    admission.count(result.is_ok());
    let is_public = admission.is_public();
    match result {
        Ok(stream) => {
            // Without a receiver the server is ending.
            let _ = accepted.send(Ok(stream)).await;
        }
        Err(error) if is_public => tracing::debug!(%peer, error = &error as &dyn Error, "A client was not admitted"),
        Err(error) => tracing::warn!(%peer, error = &error as &dyn Error, "A client was not admitted"),
    }
}
