//! What the store of a control plane is asked and told over HTTP, where its metrics are: when its cluster was last used, and
//! that its pod may end. What it answers is believed of its own cluster only.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;

use super::build::arguments::STORE_PORT;
use super::idle::Report;

/// Bytes of the longest answer that is read.
const ANSWER_MAX: usize = 4096;
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(2);
/// The same of a release, for which reconciliations wait.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// A store did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreApiError {
    /// The pod has not been started.
    #[error("the pod has no address")]
    NoAddress,
    /// Nobody answers there.
    #[error("asking the store at {path}")]
    Request {
        /// For what.
        path: &'static str,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It refuses.
    #[error("the store answered {0}")]
    Status(StatusCode),
    /// It hangs, or is not reached.
    #[error("the store did not answer within {0:?}")]
    Limit(Duration),
    /// What it says is not understood.
    #[error("reading what the store answered")]
    Read(#[source] serde_json::Error),
}

/// When its cluster was last used.
pub(super) async fn find_activity(pod: &Pod) -> Result<Report, StoreApiError> {
    let (status, text) = within(LIMIT, ask(pod, Method::GET, "/activity")).await?;
    match status {
        StatusCode::OK => serde_json::from_slice(&text).map_err(StoreApiError::Read),
        status => Err(StoreApiError::Status(status)),
    }
}

/// Tells it that nobody is to take over from its pod any more: what waits for that, once it is told to end, ends.
pub(super) async fn release(pod: &Pod) -> Result<(), StoreApiError> {
    let (status, _) = within(RELEASE_LIMIT, ask(pod, Method::POST, "/release")).await?;
    match status {
        // One that does not know of it has nobody wait.
        StatusCode::OK | StatusCode::NOT_FOUND => Ok(()),
        status => Err(StoreApiError::Status(status)),
    }
}

async fn ask(pod: &Pod, method: Method, path: &'static str) -> Result<(StatusCode, Bytes), StoreApiError> {
    let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
    let address: Option<IpAddr> = address.and_then(|text| text.parse().ok());
    let address = SocketAddr::new(address.ok_or(StoreApiError::NoAddress)?, STORE_PORT);
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| StoreApiError::Request { path, source };
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(error.into()))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let answer = client.request(request).await.map_err(|error| failed(error.into()))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    Ok((status, body.map_err(failed)?.to_bytes()))
}

async fn within<T>(limit: Duration, asked: impl Future<Output = Result<T, StoreApiError>>) -> Result<T, StoreApiError> {
    let answered = tokio::time::timeout(limit, asked).await;
    answered.unwrap_or(Err(StoreApiError::Limit(limit)))
}
