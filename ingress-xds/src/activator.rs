//! The activator: answers clients of sleeping clusters in place of the API server, and wakes a
//! cluster for callers that may wake it.
//!
//! ```text
//!  client ─▶ Envoy (TLS passthrough) ─EDS of a sleeping cluster─▶ TLS ends here ─▶ plan, for each request
//!                                                                  │  may wake: Waker ─▶ operator
//!                                                                  └─▶ Status 503, Retry-After; the connection closes
//! ```
//!
//! An authenticated caller that may wake the cluster is answered when the cluster is awake, or
//! after 4.5 s. It then retries at once: client-go would otherwise sleep for a whole second
//! between two tries, in which a cluster may have woken.
//!
//! Envoy routes a client that reconnects to wherever the cluster is then. Each connection is closed
//! after its first answers: a connection that stayed open would stay at the activator.
//!
//! Guarantees:
//! - No cluster is woken before its caller is authenticated ([`identity`]), unless the cluster's
//!   owner allows any caller.
//! - The resources of unauthenticated callers are bounded: connections, their duration, headers,
//!   bodies. The gate bounds the number of connections of a source before they arrive here.
//! - Unauthenticated callers never wait for the wake, and yield their slot to authenticated ones.

mod caller;
mod connection;
mod context;
pub mod identity;
pub mod plan;
pub mod tls;
pub mod wake;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use yoke_runtime::tls::{Admission, accept};

use crate::limits::concurrency::ConcurrencyLimiter;
use crate::metrics::Metrics;
use crate::snapshot::resource::resource_name;
use caller::Caller;
use connection::serve_connection;
use plan::Answer;

pub use context::{ActivatorContext, ActivatorLimits};

/// Concurrent handshakes, over all clusters. A silent client occupies its handshake for half a
/// second, so this is more than the gate admits from forty sources that have spent their burst.
const HANDSHAKES: usize = 1024;
/// Maximum total size in bytes of the certificates that one client presents: its own and a few
/// issuers.
const CHAIN_BYTES: usize = 16 * 1024;
/// How long connections are still accepted when the process ends: the time that Envoy may need to
/// learn from another replica which addresses to use.
const HANDOVER: Duration = Duration::from_secs(3);
/// How long connections that are open by then may continue.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The bound listener. It answers once [`Activator::serve`] runs.
#[derive(Debug)]
pub struct Activator {
    listener: TcpListener,
    local: SocketAddr,
}

impl Activator {
    /// Listens on `address`; port 0 selects a free port.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        Ok(Self { listener, local })
    }

    /// The address of the listener.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the drain has started and Envoy has had time to use other replicas. Then waits
    /// a limited time for open connections.
    pub async fn serve(self, context: ActivatorContext) {
        let drain = context.drain.clone();
        let stop = async move {
            drain.started().await;
            sleep(HANDOVER).await;
        };
        let admission = HandshakeCounter(context.metrics.clone());
        let (mut incoming, accepting) = accept(self.listener, context.tls.clone(), admission, stop);
        let limiter = ConcurrencyLimiter::new(context.limits.connections, context.limits.connections_each);
        let serving = async {
            let mut open = JoinSet::new();
            loop {
                tokio::select! {
                    stream = incoming.recv() => match stream {
                        Some(Ok(stream)) => start_connection(&mut open, &context, &limiter, stream),
                        Some(Err(_)) => {}
                        None => break,
                    },
                    Some(_) = open.join_next() => {}
                }
            }
            let _ = timeout(SHUTDOWN_TIMEOUT, async { while open.join_next().await.is_some() {} }).await;
        };
        tokio::join!(accepting, serving);
    }
}

/// Starts to serve a connection after its TLS handshake. The connection is closed without an answer
/// if no cluster has the name, or if no slot is free.
fn start_connection(
    open: &mut JoinSet<()>,
    context: &ActivatorContext,
    limiter: &ConcurrencyLimiter,
    stream: TlsStream<TcpStream>,
) {
    let session = stream.get_ref().1;
    let name = session.server_name().unwrap_or_default().to_owned();
    // Only the client's own certificate is checked, so its issuers are dropped.
    let certificates = session.peer_certificates().unwrap_or_default().iter().take(1);
    let certificates: Vec<_> = certificates.map(|der| der.clone().into_owned()).collect();
    let snapshot = context.snapshots.borrow().clone();
    let entry = snapshot.and_then(|snapshot| snapshot.get(&resource_name(&name)).cloned());
    let Some(entry) = entry else {
        context.metrics.count_activator_answer(Answer::Reconnect.as_str());
        return;
    };
    let Some((slot, evicted)) = limiter.acquire_evictable(&entry.route) else {
        context.metrics.count_activator_answer(Answer::Busy.as_str());
        let context = context.clone();
        open.spawn(async move { context.wake_without_slot(&entry, &certificates) });
        return;
    };
    let caller = Arc::new(Caller::new(context.clone(), name, certificates, slot));
    let header_timeout = context.limits.first;
    open.spawn(async move {
        caller.pin_if_authenticated();
        // After each of these the client reconnects.
        tokio::select! {
            () = serve_connection(stream, Arc::clone(&caller), header_timeout) => {}
            () = caller.time_limit() => {}
            Ok(()) = evicted => {}
        }
    });
}

/// Admission of TLS connections: anybody who knows a cluster's name may connect.
#[derive(Clone, Debug)]
struct HandshakeCounter(Metrics);

impl Admission for HandshakeCounter {
    fn check(&self, certificates: &[CertificateDer<'_>]) -> io::Result<()> {
        // TLS stores the certificates for the lifetime of the connection.
        match certificates.iter().map(|der| der.len()).sum::<usize>() {
            ..=CHAIN_BYTES => Ok(()),
            bytes => Err(io::Error::other(format!(
                "the client sent {bytes} bytes of certificates, and {CHAIN_BYTES} are allowed"
            ))),
        }
    }

    fn count(&self, admitted: bool) {
        self.0.count_activator_handshake(admitted);
    }

    fn is_public(&self) -> bool {
        true
    }

    fn handshakes(&self) -> usize {
        HANDSHAKES
    }
}
