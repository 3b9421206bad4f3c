//! The gRPC endpoint for Envoy: ADS and `ext_authz` on one address, over mutual TLS. An adapter: it accepts, converts and
//! calls [`crate::ads`] and [`crate::gate`].

mod authorization;
mod discovery;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::auth::v3::authorization_server::AuthorizationServer;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use yoke_runtime::Drain;

use crate::gate::{Gate, Limits};
use crate::metrics::Metrics;
use crate::routing::Snapshots;
use crate::tls::{TlsConfigs, is_expected_client};

/// Handshakes at a time, and how long one may take: who has no certificate holds nothing for long.
const HANDSHAKES: usize = 128;
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Finds out that an Envoy's machine is gone.
const PING: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Envoy's first request after a reconnect names all that it holds: about 60 bytes a name and type. 4 MiB, the usual limit,
/// would shut it out for good at some 30,000 names.
const MAX_REQUEST_BYTES: usize = 256 * 1024 * 1024;

/// The endpoint could not be opened or kept.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("listening on {address} for Envoy")]
    Bind {
        /// The address as given.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The gRPC server failed.
    #[error("serving Envoy")]
    Serve(#[source] tonic::transport::Error),
}

/// The listening endpoint; it answers once [`Server::serve`] runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
}

/// What the endpoint needs of the rest of the process.
#[derive(Clone, Debug)]
pub struct Context {
    /// What is served.
    pub snapshots: Snapshots,
    /// Certificates.
    pub tls: TlsConfigs,
    /// DNS names, one of which a client's certificate must carry.
    pub client_names: Vec<String>,
    /// Limits of the gate.
    pub limits: Limits,
    /// Where it counts.
    pub metrics: Metrics,
    /// Ends it.
    pub drain: Drain,
}

impl Server {
    /// Listens on `address`; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, local })
    }

    /// The address that is listened on.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the drain starts, then ends the streams, so that each Envoy connects to another replica.
    pub async fn serve(self, context: Context) -> Result<(), ServerError> {
        let gate = Gate::new(context.limits, Instant::now());
        let discovery = AggregatedDiscoveryServiceServer::new(discovery::Discovery::new(&context))
            .max_decoding_message_size(MAX_REQUEST_BYTES);
        let authorization = AuthorizationServer::new(authorization::Gatekeeper::new(&context, gate));
        let (accepted, incoming) = mpsc::channel::<Result<TlsStream<TcpStream>, std::io::Error>>(HANDSHAKES);
        let drain = context.drain.clone();
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(PING))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .add_service(discovery)
            .add_service(authorization)
            .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async move { drain.started().await });
        let accepting = accept(self.listener, context, accepted);
        let (served, ()) = tokio::join!(serving, accepting);
        served.map_err(ServerError::Serve)
    }
}

/// Accepts connections until the drain starts. Handshakes run beside each other, so that a slow one holds up nobody.
async fn accept(
    listener: TcpListener,
    context: Context,
    accepted: mpsc::Sender<Result<TlsStream<TcpStream>, std::io::Error>>,
) {
    let slots = Arc::new(Semaphore::new(HANDSHAKES));
    let mut handshakes = JoinSet::new();
    let next = async || {
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        (slot, listener.accept().await)
    };
    while let Some((slot, connection)) = context.drain.until_started(next()).await {
        while handshakes.try_join_next().is_some() {}
        match connection {
            Ok((stream, peer)) => {
                let context = context.clone();
                let accepted = accepted.clone();
                handshakes.spawn(admit(slot, stream, peer, context, accepted));
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "accepting a connection failed"
                );
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn admit(
    _slot: Option<OwnedSemaphorePermit>,
    stream: TcpStream,
    peer: SocketAddr,
    context: Context,
    accepted: mpsc::Sender<Result<TlsStream<TcpStream>, std::io::Error>>,
) {
    let config = Arc::clone(&context.tls.borrow());
    let result = tokio::time::timeout(HANDSHAKE_TIME, handshake(config, stream, &context.client_names)).await;
    let error = match result {
        Ok(Ok(stream)) => {
            context.metrics.count_handshake(true);
            // An error means that the server is ending.
            let _ = accepted.send(Ok(stream)).await;
            return;
        }
        Ok(Err(error)) => error,
        Err(_) => std::io::Error::from(std::io::ErrorKind::TimedOut),
    };
    context.metrics.count_handshake(false);
    tracing::warn!(%peer, error = &error as &dyn std::error::Error, "client was not admitted");
}

async fn handshake(
    config: Arc<ServerConfig>,
    stream: TcpStream,
    names: &[String],
) -> Result<TlsStream<TcpStream>, std::io::Error> {
    stream.set_nodelay(true)?;
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    let chain = stream.get_ref().1.peer_certificates();
    if chain
        .and_then(<[_]>::first)
        .is_some_and(|leaf| is_expected_client(leaf, names))
    {
        return Ok(stream);
    }
    Err(std::io::Error::new(
        std::io::ErrorKind::PermissionDenied,
        "the client certificate carries none of the expected names",
    ))
}
