//! HTTP endpoints for audit events: a kube-apiserver beside this process posts them over loopback,
//! and `/activity` serves the report.
//!
//! Every message is answered with 200 at once. The API server would resend a rejected message, and
//! no event here is worth that.

use crate::http::activity::{Events, IgnoredClients, ObservedRequests, Report, Second};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use yoke_runtime::AcceptBackoff;

/// Size limit of one message in bytes. A message holds about a hundred events of usually 1 KiB. A
/// single event may be larger: its URI may have 1 MiB, and JSON escapes make that six times as
/// long. No limit that memory can bear accepts all of them.
const MESSAGE_MAX: usize = 1 << 20;
/// Messages that are read concurrently; further connections wait to be accepted.
const CONNECTIONS: usize = 8;
/// Timeout for receiving one message.
const LIMIT: Duration = Duration::from_secs(10);

/// Requests observed so far, shared by the audit listener and the metrics listener.
#[derive(Debug, Clone)]
pub(crate) struct Activity {
    observed: Arc<Mutex<ObservedRequests>>,
}

impl Activity {
    pub(crate) fn new(ignored: Vec<String>) -> Self {
        Self {
            observed: Arc::new(Mutex::new(ObservedRequests::new(IgnoredClients(ignored), now()))),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut ObservedRequests) -> T) -> T {
        // `ObservedRequests` is a time and sets, so it is consistent after any panic.
        work(&mut self.observed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn now() -> Second {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time.as_secs().cast_signed()
}

/// The `/activity` route of the metrics listener.
pub(crate) fn routes(activity: Activity) -> Router {
    Router::new().route("/activity", get(answer)).with_state(activity)
}

/// Receives events until the process exits. Each connection carries one message: the API server
/// does not resend a message that hits a connection about to be closed.
pub(crate) async fn serve(listener: TcpListener, activity: Activity) {
    let routes = Router::new()
        .route("/audit", post(receive_events))
        .layer(DefaultBodyLimit::max(MESSAGE_MAX))
        .with_state(activity);
    let (permits, mut backoff) = (Arc::new(Semaphore::new(CONNECTIONS)), AcceptBackoff::default());
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                backoff.wait(&error).await;
                continue;
            }
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes.clone()));
        tokio::spawn(async move {
            let _ = timeout(LIMIT, connection).await;
            drop(permit);
        });
    }
}

async fn receive_events(State(activity): State<Activity>, message: Result<Bytes, BytesRejection>) {
    let events = message
        .ok()
        .and_then(|body| serde_json::from_slice::<Events>(&body).ok());
    activity.with(|observed| match events {
        Some(events) => observed.record_events(&events, now()),
        None => observed.record_unreadable(now()),
    });
}

async fn answer(State(activity): State<Activity>) -> Json<Report> {
    Json(activity.with(|observed| observed.report(now())))
}
