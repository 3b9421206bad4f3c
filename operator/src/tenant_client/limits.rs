//! Limits of requests to tenants' APIs.

use std::time::Duration;

use crate::tenant_client::error::TenantApiError;

/// Timeout of a request, and of a line of a watch.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(4);
/// Duration of a watch in seconds, after which it is requested again. Its events are rare. TCP
/// keepalive detects a dead peer.
pub(super) const WATCH_SECONDS: u32 = 3600;

/// Size limit of the answer to the request that has this extension.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerMax(pub(super) usize);

/// Runs a request with a timeout. Errors call it `what`.
pub(super) async fn limited<T>(
    what: &'static str,
    work: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, TenantApiError> {
    match tokio::time::timeout(REQUEST_LIMIT, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(TenantApiError::Request {
            what,
            source: Box::new(source),
        }),
        Err(_) => Err(TenantApiError::Limit),
    }
}
