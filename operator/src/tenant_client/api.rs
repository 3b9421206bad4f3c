//! A client of one tenant's API. Other modules add the requests, by subject.

use kube::Client;

use crate::tenant_client::access::Access;
use crate::tenant_client::connection;
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::limits::limited;

/// A client of one tenant's API.
#[derive(Clone)]
pub struct TenantApi {
    pub(super) client: Client,
}

impl std::fmt::Debug for TenantApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantApi")
    }
}

impl TenantApi {
    /// Creates a client outside the cache.
    pub(crate) fn new(access: &Access) -> Result<Self, TenantApiError> {
        let client = connection::build_client(access).map_err(TenantApiError::Client)?;
        Ok(Self { client })
    }

    /// Sends a change and ignores the body of the answer, which a tenant controls.
    pub(super) async fn change(
        &self,
        what: &'static str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<(), TenantApiError> {
        limited(what, async {
            let request = request.map_err(kube::Error::BuildRequest)?;
            self.client.request_text(request).await.map(drop)
        })
        .await
    }
}
