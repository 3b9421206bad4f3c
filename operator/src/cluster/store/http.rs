//! HTTP client of a control plane's store, on its metrics port. It reads when the cluster was last
//! used, and releases the pod. An answer is trusted for the store's own cluster only.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;

use crate::cluster::resources::arguments::STORE_PORT;
use crate::cluster::sleep::idle::Report;

/// Maximum size of an answer in bytes.
const ANSWER_MAX: usize = 4096;
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a release, which delays reconciles.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// A failed request to a store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreApiError {
    /// The pod has no address yet.
    #[error("the pod has no address")]
    NoAddress,
    /// The store cannot be reached.
    #[error("requesting {path} from the store")]
    Request {
        /// Path of the request.
        path: &'static str,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store refused the request.
    #[error("the store answered {0}")]
    Status(StatusCode),
    /// The store did not answer in time.
    #[error("the store did not answer within {0:?}")]
    Limit(Duration),
    /// The answer cannot be parsed.
    #[error("parsing the answer of the store")]
    Read(#[source] serde_json::Error),
}

/// Reads when the cluster was last used.
pub(crate) async fn read_activity(pod: &Pod) -> Result<Report, StoreApiError> {
    let (status, text) = with_timeout(REQUEST_TIMEOUT, send_request(pod, Method::GET, "/activity")).await?;
    match status {
        StatusCode::OK => serde_json::from_slice(&text).map_err(StoreApiError::Read),
        status => Err(StoreApiError::Status(status)),
    }
}

/// Releases the pod, as no other pod takes over from it any more. Its containers then exit at once
/// on SIGTERM.
pub(crate) async fn release_pod(pod: &Pod) -> Result<(), StoreApiError> {
    let (status, _) = with_timeout(RELEASE_TIMEOUT, send_request(pod, Method::POST, "/release")).await?;
    match status {
        // A store without this endpoint delays no container.
        StatusCode::OK | StatusCode::NOT_FOUND => Ok(()),
        status => Err(StoreApiError::Status(status)),
    }
}

async fn send_request(pod: &Pod, method: Method, path: &'static str) -> Result<(StatusCode, Bytes), StoreApiError> {
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
    let response = client.request(request).await.map_err(|error| failed(error.into()))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
    Ok((status, body.map_err(failed)?.to_bytes()))
}

async fn with_timeout<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, StoreApiError>>,
) -> Result<T, StoreApiError> {
    let response = tokio::time::timeout(limit, request).await;
    response.unwrap_or(Err(StoreApiError::Limit(limit)))
}
