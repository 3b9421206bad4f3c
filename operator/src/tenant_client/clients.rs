//! Cache of clients of tenants' APIs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use yoke_api::ClusterId;

use crate::tenant_client::access::{Access, Way};
use crate::tenant_client::api::TenantApi;
use crate::tenant_client::error::TenantApiError;

/// Cache of clients, as long as their access does not change: a new client costs a TLS handshake.
#[derive(Debug, Default)]
pub struct TenantApis {
    clients: Mutex<HashMap<(ClusterId, Way), (Access, TenantApi)>>,
}

impl TenantApis {
    /// Returns the client for a cluster. Creates one if there is none for this access.
    pub fn client(&self, id: &ClusterId, way: Way, access: &Access) -> Result<TenantApi, TenantApiError> {
        let key = (id.clone(), way);
        if let Some((known, api)) = self.lock().get(&key)
            && known == access
        {
            return Ok(api.clone());
        }
        let api = TenantApi::new(access)?;
        self.lock().insert(key, (access.clone(), api.clone()));
        Ok(api)
    }

    /// Returns the last used client for a cluster.
    pub fn known(&self, id: &ClusterId, way: Way) -> Option<TenantApi> {
        self.lock().get(&(id.clone(), way)).map(|(_, api)| api.clone())
    }

    /// Replaces a client of a cluster, and so a connection on which no answers arrive.
    pub fn forget_way(&self, id: &ClusterId, way: Way) {
        let mut clients = self.lock();
        let key = (id.clone(), way);
        let Some((access, _)) = clients.remove(&key) else {
            return;
        };
        // A client with this access was built before, so this does not fail.
        if let Ok(api) = TenantApi::new(&access) {
            clients.insert(key, (access, api));
        }
    }

    /// Drops the clients of a cluster.
    pub fn forget(&self, id: &ClusterId) {
        self.lock().retain(|(known, _), _| known != id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(ClusterId, Way), (Access, TenantApi)>> {
        // Every change is one insert or removal, so the map is consistent after any panic.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
