//! Checks of a tenant's API: whether it is ready, its version, its number of Nodes.

use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::Api;
use kube::api::ListParams;
use yoke_api::Lenient;

use crate::tenant_client::api::TenantApi;
use crate::tenant_client::base_objects::NAMESPACE;
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::limits::limited;
use crate::tenant_client::paged_list::list_page;

impl TenantApi {
    /// Checks that `/readyz` answers 200.
    pub async fn check_ready(&self) -> Result<(), TenantApiError> {
        self.check("/readyz").await
    }

    /// Checks that a health endpoint answers 200.
    pub async fn check(&self, path: &str) -> Result<(), TenantApiError> {
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(|error| TenantApiError::Client(error.into()))?;
        match limited("/readyz", self.client.request_text(request)).await {
            Ok(_) => Ok(()),
            Err(TenantApiError::Request { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 500) =>
            {
                tracing::debug!(answer = %source, "API server is not ready");
                Err(TenantApiError::NotReady)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the version of the API server.
    pub async fn version(&self) -> Result<String, TenantApiError> {
        limited("the version", self.client.apiserver_version())
            .await
            .map(|info| info.git_version)
    }

    /// Counts the Nodes.
    pub async fn count_nodes(&self) -> Result<i32, TenantApiError> {
        let nodes = Api::<Lenient<Node>>::all(self.client.clone());
        // Requests one entry; the answer has the number of the others.
        let list = list_page("Nodes", &nodes, &ListParams::default().limit(1)).await?;
        let others = list.metadata.remaining_item_count.unwrap_or(0).max(0);
        let here = i64::try_from(list.items.len()).unwrap_or(0);
        Ok(i32::try_from(others.saturating_add(here)).unwrap_or(i32::MAX))
    }

    /// Checks that the controllers work: they first create the ServiceAccount that every pod needs.
    pub async fn check_controllers(&self) -> Result<(), TenantApiError> {
        let accounts = Api::<Lenient<ServiceAccount>>::namespaced(self.client.clone(), NAMESPACE);
        match limited("ServiceAccount default/default", accounts.get_opt("default")).await? {
            Some(_) => Ok(()),
            None => Err(TenantApiError::NoControllers),
        }
    }
}
