//! Plain HTTP endpoints, on the metrics listener and on the listeners of the etcd API: metrics and
//! probes. `/health`, `/version`, `/livez` and `/readyz` are etcd's. The others serve the programs
//! in the same pod:
//! - `/writer` is for a program that may run only beside the writer;
//! - `/release` and `/released` are for programs that stop together with this process;
//! - `/unused` is for this process itself, which stops last.

use crate::grpc::clients::Clients;
use crate::limits::STORAGE_VERSION;
use crate::limits::VERSION;
use crate::metrics::Metrics;
use crate::role::Role;
use crate::store::Store;
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use yoke_runtime::AcceptBackoff;

/// Content type of the metrics; Prometheus rejects a response without one.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const JSON: &str = "application/json";
/// Longest wait in seconds that a preStop hook may request.
const LONGEST_WAIT: u64 = 60;

/// Query parameters of a request.
type QueryParams = Vec<(String, String)>;

#[derive(Debug, Clone)]
struct Shared {
    store: watch::Receiver<Option<Arc<Store>>>,
    metrics: Metrics,
    released: Arc<watch::Sender<bool>>,
    clients: Clients,
}

/// All routes.
pub(crate) fn routes(store: watch::Receiver<Option<Arc<Store>>>, metrics: Metrics, clients: Clients) -> Router {
    Router::new()
        .route("/metrics", get(answer_metrics))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(answer_ready))
        .route("/health", get(answer_health))
        .route("/version", get(answer_version))
        .route("/writer", get(answer_writer))
        .route("/release", post(answer_release))
        .route("/released", get(answer_released))
        .route("/unused", get(answer_unused))
        .with_state(Shared {
            store,
            metrics,
            released: Arc::new(watch::Sender::new(false)),
            clients,
        })
}

/// Serves until the process exits.
pub(crate) async fn serve(listener: TcpListener, routes: Router) {
    let mut backoff = AcceptBackoff::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                backoff.wait(&error).await;
                continue;
            }
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(10))
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes.clone()));
        tokio::spawn(async move {
            // A probe that disconnects early is not an error.
            let _ = connection.await;
        });
    }
}

async fn answer_metrics(State(shared): State<Shared>) -> Response {
    let values = shared.store.borrow().as_deref().map(Store::metric_values);
    let text = shared.metrics.text(values.as_ref());
    ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response()
}

async fn answer_ready(State(shared): State<Shared>) -> Response {
    let why = match shared.store.borrow().as_deref() {
        Some(store) if store.is_stopping() => "stopping\n",
        Some(store) if store.has_leader() => return "ok\n".into_response(),
        Some(_) => "no writer is alive, or the log does not answer\n",
        None => "this process is neither the writer nor a follower yet\n",
    };
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}

/// Answers like etcd: `serializable=true` checks this process alone, and `exclude=NOSPACE` ignores
/// that alarm.
async fn answer_health(State(shared): State<Shared>, Query(params): Query<QueryParams>) -> Response {
    let has_param = |name: &str, value: &str| params.iter().any(|(n, v)| n == name && v == value);
    let reason = match shared.store.borrow().as_deref() {
        Some(store) if store.rejects_puts() && !has_param("exclude", "NOSPACE") => "ALARM NOSPACE",
        Some(store) if store.has_leader() || has_param("serializable", "true") => "",
        _ => "RAFT NO LEADER",
    };
    let (status, health) = match reason {
        "" => (StatusCode::OK, "true"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "false"),
    };
    json_response(status, &json!({"health": health, "reason": reason}))
}

async fn answer_version() -> Response {
    json_response(
        StatusCode::OK,
        &json!({"etcdserver": VERSION, "etcdcluster": STORAGE_VERSION, "storage": STORAGE_VERSION}),
    )
}

/// Responds as soon as this process is the writer, and ends the response when it no longer is.
/// Waiting costs nothing.
async fn answer_writer(State(mut shared): State<Shared>) -> Response {
    let Ok(Some(store)) = shared.store.wait_for(Option::is_some).await.map(|store| store.clone()) else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let mut roles = store.roles();
    drop(store);
    let writes = |role: &Role| matches!(role, Role::Writer { .. });
    if roles.wait_for(writes).await.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let body = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"writer\n")) });
    let end = stream::once(async move {
        // A store that was dropped does not write either.
        let _ = roles.wait_for(|role| !writes(role)).await;
        Ok(Bytes::new())
    });
    Body::from_stream(body.chain(end)).into_response()
}

/// Releases the programs that wait at `/released`, so that they may stop. It has no other effect:
/// this process continues, and so does any program that is not being stopped.
async fn answer_release(State(shared): State<Shared>) -> &'static str {
    if !shared.released.send_replace(true) {
        tracing::info!("Released: programs that wait at /released may stop now");
    }
    "released\n"
}

/// Responds when this process is released, or after `seconds`. A program beside it that is being
/// stopped continues to serve until then.
async fn answer_released(State(shared): State<Shared>, Query(params): Query<QueryParams>) -> Response {
    let mut released = shared.released.subscribe();
    let wait = async {
        let _ = released.wait_for(|released| *released).await;
    };
    answer_after(wait, &params, ("released\n", "not released in time\n")).await
}

/// Responds when no client of the etcd API is connected, or after `seconds`. A process that is
/// stopped together with its clients serves until then.
async fn answer_unused(State(shared): State<Shared>, Query(params): Query<QueryParams>) -> Response {
    let texts = ("unused\n", "clients are still connected\n");
    answer_after(shared.clients.all_disconnected(), &params, texts).await
}

/// Waits for at most the requested `seconds`. `texts` holds the text of a completed wait, and of one
/// that timed out.
async fn answer_after(
    wait: impl Future<Output = ()>,
    params: &QueryParams,
    texts: (&'static str, &'static str),
) -> Response {
    let requested = params.iter().find(|(name, _)| name == "seconds");
    let seconds = requested.and_then(|(_, value)| value.parse().ok());
    let Some(seconds) = seconds.filter(|seconds| *seconds <= LONGEST_WAIT) else {
        let message = format!("set seconds=N to at most {LONGEST_WAIT}\n");
        return (StatusCode::BAD_REQUEST, message).into_response();
    };
    match timeout(Duration::from_secs(seconds), wait).await {
        Ok(()) => texts.0.into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, texts.1).into_response(),
    }
}

fn json_response(status: StatusCode, what: &Value) -> Response {
    (status, [(CONTENT_TYPE, JSON)], what.to_string()).into_response()
}
