//! The control planes: one server that listens on all their addresses, with a certificate for each
//! cluster.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::body::Body;
use futures::stream;
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

use crate::fleet::Fleet;

/// Path of a response that never ends and sends an event every `PACE`.
pub(crate) const WATCH: &str = "/watch";
const PACE: Duration = Duration::from_millis(500);

/// TLS configuration by cluster index, created on first use.
type Configs = Mutex<HashMap<usize, Arc<ServerConfig>>>;

/// Serves all control planes until the process exits.
pub(crate) async fn serve(fleet: Arc<Fleet>) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", API_PORT))
        .await
        .context("listening for all tenants")?;
    let configs = Arc::new(Configs::default());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (fleet, configs) = (Arc::clone(&fleet), Arc::clone(&configs));
            // An error means that the client disconnected.
            tokio::spawn(async move { converse(stream, &fleet, &configs).await.ok() });
        }
    });
    Ok(())
}

async fn converse(stream: TcpStream, fleet: &Fleet, configs: &Configs) -> Result<()> {
    stream.set_nodelay(true)?;
    let own = stream.local_addr()?.ip();
    let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let name = start.client_hello().server_name().map(str::to_owned);
    let index = name
        .and_then(|name| fleet.find(&name))
        .context("nobody has the server name")?;
    let stream = start.into_stream(to_config(fleet, configs, index)).await?;
    let service = service_fn(move |request| async move { Ok::<_, Infallible>(answer(own, &request)) });
    let served = Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    served.map_err(|error| anyhow::anyhow!(error))
}

fn to_config(fleet: &Fleet, configs: &Configs, index: usize) -> Arc<ServerConfig> {
    let mut configs = configs.lock().unwrap_or_else(PoisonError::into_inner);
    let made = configs.entry(index).or_insert_with(|| {
        let (ca, leaf) = fleet.certify(index);
        let mut config = ca.server(&leaf);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    });
    Arc::clone(made)
}

/// Answers with the address on which the request arrived.
fn answer(own: IpAddr, request: &Request<Incoming>) -> Response<Body> {
    if request.uri().path() != WATCH {
        return Response::new(Body::from(own.to_string()));
    }
    let lines = stream::unfold((), |()| async {
        tokio::time::sleep(PACE).await;
        Some((Ok::<_, Infallible>("event\n"), ()))
    });
    Response::new(Body::from_stream(lines))
}
