//! The HTTP endpoint for metrics and probes.

use crate::metrics::Metrics;
use crate::store::Store;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Prometheus does not read what says nothing of its form.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Answers until the process ends.
pub(crate) async fn serve(listener: TcpListener, store: watch::Receiver<Option<Arc<Store>>>, metrics: Metrics) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (store, metrics) = (store.clone(), metrics.clone());
        let service = service_fn(move |request| {
            let answer = answer(&request, store.borrow().as_deref(), &metrics);
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(10))
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // A probe that hangs up early is no event.
            let _ = connection.await;
        });
    }
}

fn answer(request: &Request<Incoming>, store: Option<&Store>, metrics: &Metrics) -> Response<String> {
    let path = request.uri().path();
    let (status, text) = match path {
        "/livez" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" | "/health" => match store {
            Some(store) if store.is_stopping() => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned()),
            Some(store) if store.has_leader() => (StatusCode::OK, "ok\n".to_owned()),
            Some(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no writer is alive, or the log does not answer\n".to_owned(),
            ),
            None => (
                StatusCode::SERVICE_UNAVAILABLE,
                "neither the writer nor a follower yet\n".to_owned(),
            ),
        },
        "/metrics" => (StatusCode::OK, metrics.text(store)),
        _ => (
            StatusCode::NOT_FOUND,
            "there are /metrics, /livez and /readyz\n".to_owned(),
        ),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let form = if path == "/metrics" { OPEN_METRICS } else { PLAIN };
    response.headers_mut().insert(CONTENT_TYPE, form);
    response
}
