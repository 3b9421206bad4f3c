//! Stand-ins for the API servers of all clusters: one server that listens on all their addresses,
//! with a certificate for each cluster.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;
use yoke_api::names::API_PORT;

/// The answers of the API servers of a benchmark.
pub trait TenantApis: Clone + Send + Sync + 'static {
    /// TLS configuration of the cluster with this server name. `None` if there is no such cluster.
    fn tls_config(&self, server_name: &str) -> Option<Arc<ServerConfig>>;

    /// Answers a request that arrived at the address `local`.
    fn answer(&self, local: IpAddr, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
}

/// Serves the APIs of all clusters until the process exits.
pub async fn serve(apis: impl TenantApis) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", API_PORT))
        .await
        .context("listening for all clusters")?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let apis = apis.clone();
            // An error means that the client disconnected.
            tokio::spawn(async move { serve_connection(stream, apis).await.ok() });
        }
    });
    Ok(())
}

async fn serve_connection(stream: TcpStream, apis: impl TenantApis) -> Result<()> {
    stream.set_nodelay(true)?;
    let local = stream.local_addr()?.ip();
    let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let name = start.client_hello().server_name().unwrap_or_default().to_owned();
    let config = apis.tls_config(&name).context("no cluster has the server name")?;
    let stream = start.into_stream(config).await?;
    let service = service_fn(move |request| {
        let apis = apis.clone();
        async move { Ok::<_, Infallible>(apis.answer(local, request).await) }
    });
    let served = Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    served.map_err(|error| anyhow::anyhow!(error))
}
