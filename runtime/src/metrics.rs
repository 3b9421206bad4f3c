//! Metrics of the process, and its HTTP endpoint for metrics collectors and probes.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | OpenMetrics text |
//! | `/livez` | 200: the process answers |
//! | `/readyz` | 200, or 503 with the failing checks, one per line; 503 while draining |

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

/// Metrics of the process. Clones share one registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Written only at startup, so a long read blocks no writer.
    registry: Arc<RwLock<Registry>>,
}

/// The endpoint could not be opened or served.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The endpoint cannot listen on the address.
    #[error("listening on {address} for metrics and probes")]
    Bind {
        /// The address, as given.
        address: SocketAddr,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The listener failed.
    #[error("serving metrics and probes")]
    Serve(#[source] std::io::Error),
}

/// The bound HTTP endpoint. It answers once [`Endpoint::serve`] runs.
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
    /// Creates an empty registry for `process`. The name of every metric begins with
    /// `yoke_<process>_`.
    pub fn new(process: &str) -> Self {
        let registry = Registry::with_prefix(format!("yoke_{process}"));
        Self {
            registry: Arc::new(RwLock::new(registry)),
        }
    }

    /// Registers metrics. `register` has exclusive access to the registry during the call.
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
    /// Binds `address`. Port 0 selects a free port.
    pub async fn bind(address: SocketAddr) -> Result<Self, EndpointError> {
        let failed = |source| EndpointError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, local })
    }

    /// The bound address.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Serves until aborted. It must continue during the drain, while `/readyz` fails, so run it
    /// with [`crate::Supervisor::spawn_background`].
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
    // Encoding the series of thousands of clusters takes a while.
    let encoded = tokio::task::spawn_blocking(move || shared.metrics.to_text()).await;
    match encoded {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        failed => {
            tracing::error!(?failed, "cannot encode metrics");
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
        text.push_str("drain: the process is shutting down\n");
    }
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}
