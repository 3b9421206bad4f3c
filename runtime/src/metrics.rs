//! The process's metrics and its HTTP endpoint for collectors and probes.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | OpenMetrics text |
//! | `/livez` | 200: the process answers |
//! | `/readyz` | 200, or 503 with the failing checks, one a line; 503 while draining |

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::drain::Drain;
use crate::readiness::Readiness;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The process's metrics. Clones share one registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Written to at the start only: who reads it for long keeps nobody waiting.
    registry: Arc<RwLock<Registry>>,
}

/// The endpoint could not be opened or kept.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address cannot be listened on.
    #[error("listening on {address} for metrics and probes")]
    Bind {
        /// The address as given.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The listener failed.
    #[error("serving metrics and probes")]
    Serve(#[source] std::io::Error),
}

/// The listening HTTP endpoint; it answers once [`Endpoint::serve`] runs.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    local: SocketAddr,
}

#[derive(Clone)]
struct Shared {
    metrics: Metrics,
    readiness: Readiness,
    drain: Drain,
}

impl Metrics {
    /// An empty registry for `process`: every metric's name begins with `yoke_<process>_`.
    pub fn new(process: &str) -> Self {
        let registry = Registry::with_prefix(format!("yoke_{process}"));
        Self {
            registry: Arc::new(RwLock::new(registry)),
        }
    }

    /// Registers metrics: the registry is `register`'s for the time of the call.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.registry.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// All metrics as OpenMetrics text.
    pub fn to_text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.read().unwrap_or_else(PoisonError::into_inner))?;
        Ok(text)
    }
}

impl Endpoint {
    /// Listens on `address`; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, EndpointError> {
        let failed = |source| EndpointError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, local })
    }

    /// The address that is listened on.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Serves for ever. It goes on during the drain, when `/readyz` fails, so run it by
    /// [`crate::Supervisor::spawn_background`].
    pub async fn serve(self, metrics: Metrics, readiness: Readiness, drain: Drain) -> Result<(), EndpointError> {
        let routes = Router::new()
            .route("/metrics", get(answer_metrics))
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(answer_ready))
            .with_state(Shared {
                metrics,
                readiness,
                drain,
            });
        axum::serve(self.listener, routes).await.map_err(EndpointError::Serve)
    }
}

async fn answer_metrics(State(shared): State<Shared>) -> Response {
    // The series of thousands of clusters take a while.
    let encoded = tokio::task::spawn_blocking(move || shared.metrics.to_text()).await;
    match encoded {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        failed => {
            tracing::error!(?failed, "metrics cannot be encoded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn answer_ready(State(shared): State<Shared>) -> Response {
    let failing = shared.readiness.failing();
    let draining = shared.drain.has_started();
    if failing.is_empty() && !draining {
        return "ok\n".into_response();
    }
    let mut text: String = failing.iter().map(|(name, why)| format!("{name}: {why}\n")).collect();
    if draining {
        text.push_str("drain: the process is ending\n");
    }
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}
