//! The gRPC endpoint for Envoy: ADS, `ext_authz` and access logs on one address, over mutual TLS.
//! An adapter: it accepts connections, converts messages and calls [`crate::ads`], [`crate::authz`]
//! and [`crate::traffic`].

mod attributes;
mod authorization;
mod context;
mod discovery;
mod logs;
mod pending_requests;
mod tarpit;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::AccessLogServiceServer;
use envoy_types::pb::envoy::service::auth::v3::authorization_server::AuthorizationServer;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use yoke_runtime::Drain;
use yoke_runtime::tls::accept;

use crate::authz::Gate;

pub use context::ServerContext;

/// HTTP/2 keepalive: detects that the node of an Envoy is gone.
const PING: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2 flow control windows in bytes: unread data of one stream, and of all streams of a
/// connection. Unread access logs must not block the gate's requests.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Maximum size of a message. Envoy's first request after a reconnect lists all resources that it
/// has: about 60 bytes for each name and type. The usual limit of 4 MiB would reject it permanently
/// at some 30,000 names.
const MAX_REQUEST_BYTES: usize = 256 * 1024 * 1024;

/// The endpoint cannot be opened, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is not available.
    #[error("listening on {address} for Envoy")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The gRPC server failed.
    #[error("serving Envoy")]
    Serve(#[source] tonic::transport::Error),
}

/// The bound listener. It answers once [`Server::serve`] runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
}

impl Server {
    /// Listens on `address`; port 0 selects a free port.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, local })
    }

    /// The address of the listener.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the drain starts, then closes the streams, so that each Envoy connects to
    /// another replica.
    pub async fn serve(self, context: ServerContext) -> Result<(), ServerError> {
        // The lock is taken for one decision, never across an await.
        let gate = Arc::new(Mutex::new(Gate::new(context.limits, Instant::now())));
        let discovery = AggregatedDiscoveryServiceServer::new(discovery::Discovery::new(&context))
            .max_decoding_message_size(MAX_REQUEST_BYTES);
        let authorization =
            AuthorizationServer::new(authorization::AuthorizationService::new(&context, Arc::clone(&gate)));
        let logs = AccessLogServiceServer::new(logs::Logs::new(&context, gate));
        let drain = context.drain.clone();
        let started = |drain: Drain| async move { drain.started().await };
        let (incoming, accepting) = accept(self.listener, context.tls.clone(), context, started(drain.clone()));
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(PING))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .add_service(discovery)
            .add_service(authorization)
            .add_service(logs)
            .serve_with_incoming_shutdown(ReceiverStream::new(incoming), started(drain));
        let (served, ()) = tokio::join!(serving, accepting);
        served.map_err(ServerError::Serve)
    }
}
