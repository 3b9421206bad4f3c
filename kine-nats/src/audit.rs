//! Where a kube-apiserver beside this process sends its audit events, on loopback, and where it is told what follows from them.
//!
//! Whatever comes is answered with 200, at once: the API server would send again what was refused, and nothing here is worth
//! that.

use crate::activity::{Events, Ignored, Report, Second, Seen};
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

/// Bytes of one message: a hundred events, of usually 1 KiB. One alone may have more, with a URI of 1 MiB, which JSON makes six
/// times as long; so no limit that memory bears takes all of them.
const MESSAGE_MAX: usize = 1 << 20;
/// Messages that are read at once; others wait to be accepted.
const CONNECTIONS: usize = 8;
/// How long one may take to be sent.
const LIMIT: Duration = Duration::from_secs(10);

/// What was seen, for both listeners.
#[derive(Debug, Clone)]
pub(crate) struct Activity {
    seen: Arc<Mutex<Seen>>,
}

impl Activity {
    pub(crate) fn new(ignored: Vec<String>) -> Self {
        Self {
            seen: Arc::new(Mutex::new(Seen::new(Ignored(ignored), now()))),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Seen) -> T) -> T {
        // What was seen is whole after any panic: a time, and sets.
        work(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn now() -> Second {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time.as_secs().cast_signed()
}

/// What is told to who asks, on the listener for metrics.
pub(crate) fn routes(activity: Activity) -> Router {
    Router::new().route("/activity", get(answer)).with_state(activity)
}

/// Takes events until the process ends. A connection is for one message: the API server sends nothing again that met one which
/// was about to be closed.
pub(crate) async fn serve(listener: TcpListener, activity: Activity) {
    let routes = Router::new()
        .route("/audit", post(hear))
        .layer(DefaultBodyLimit::max(MESSAGE_MAX))
        .with_state(activity);
    let (seats, mut backoff) = (Arc::new(Semaphore::new(CONNECTIONS)), AcceptBackoff::default());
    loop {
        let seat = Arc::clone(&seats).acquire_owned().await;
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
            drop(seat);
        });
    }
}

async fn hear(State(activity): State<Activity>, message: Result<Bytes, BytesRejection>) {
    let events = message
        .ok()
        .and_then(|body| serde_json::from_slice::<Events>(&body).ok());
    activity.with(|seen| match events {
        Some(events) => seen.hear(&events, now()),
        None => seen.hear_noise(now()),
    });
}

async fn answer(State(activity): State<Activity>) -> Json<Report> {
    Json(activity.with(|seen| seen.report(now())))
}
