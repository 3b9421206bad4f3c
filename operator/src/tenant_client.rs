//! Client of tenants' own APIs: readiness, base objects, number of Nodes.
//!
//! The client dials the ClusterIP of the control plane's Service and verifies the name in the
//! certificate, so it needs no DNS. To prove that a kubeconfig works, it also dials the ingress by
//! address, with the public name as TLS server name.
//!
//! Tenants write the objects in their APIs, and may be hostile. Every object is therefore decoded
//! as [`Lenient`], or only its needed fields are decoded.

mod addons;
pub(crate) mod base_objects;
pub(crate) mod bootstrap;
mod connection;
pub(crate) mod kubelet_versions;
pub(crate) mod line_limit;
pub(crate) mod node_admission_policy;
pub(crate) mod node_leases;
mod object;
pub(crate) mod paged_list;
pub(crate) mod watch;
mod webhooks;

pub(crate) use crate::model::dynamic::to_dynamic;
pub use crate::tenant_client::addons::Foreign;
pub use crate::tenant_client::base_objects::{BaseObjects, build_base};
pub use crate::tenant_client::bootstrap::BootstrapToken;
pub(crate) use crate::tenant_client::node_admission_policy::is_marked;
pub(crate) use crate::tenant_client::node_leases::{NODES_MAX, TAINTS_MAX};

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::TryStreamExt as _;
use futures::future::try_join_all;
use http_body_util::LengthLimitError;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{ApiResource, ListParams, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use yoke_api::{ClusterId, Lenient};

use crate::tenant_client::base_objects::{NAMESPACE, SERVICE, build_admin_role};
use crate::tenant_client::object::{Objects, is_so};
use crate::tenant_client::paged_list::{Pages, list_page};
use crate::tenant_client::watch::{Change, changes};

const REQUEST_LIMIT: Duration = Duration::from_secs(4);
/// A list of one object.
const ONE: Pages = Pages { size: 1, max: 1 };
/// Duration of a watch in seconds, after which it is requested again. Its events are rare. TCP
/// keepalive detects a dead peer.
const WATCH_SECONDS: u32 = 3600;

/// A request to a tenant's API failed.
#[derive(Debug, thiserror::Error)]
pub enum TenantApiError {
    /// The address or the credentials are unusable.
    #[error("building a client of the tenant's API")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A request failed.
    #[error("requesting {what} from the tenant's API")]
    Request {
        /// Resource that was requested.
        what: &'static str,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server runs, but one of its parts is not ready.
    #[error("the API server is not ready yet")]
    NotReady,
    /// The controller manager has not created the ServiceAccount that pods need.
    #[error("waiting for the controller manager to create ServiceAccount default/default")]
    NoControllers,
    /// The API server has not created the namespace that it creates at its first start.
    #[error("waiting for the API server to create namespace default")]
    NoNamespace,
    /// A page has more entries than requested.
    #[error("the tenant's API returned more than {most} objects on one page of {what}")]
    TooMany {
        /// Resource that was listed.
        what: &'static str,
        /// Maximum number of entries.
        most: usize,
    },
    /// A watch ended.
    #[error("a watch of the tenant's API ended")]
    Ended,
    /// A request timed out.
    #[error("the tenant's API did not answer in time")]
    Limit,
}

impl TenantApiError {
    /// Returns whether there was no answer at all: the control plane may just be stopping.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Limit => true,
            Self::Request { source, .. } => {
                matches!(**source, kube::Error::Service(_) | kube::Error::HyperError(_)) && !is_too_long(source)
            }
            _ => false,
        }
    }

    /// Returns whether an object was refused because of its content.
    fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// Returns whether the object does not exist.
    fn is_missing(&self) -> bool {
        self.code() == Some(404)
    }

    /// Returns whether the intended object is gone. Another object may have its name.
    pub(crate) fn is_of_another(&self) -> bool {
        matches!(self.code(), Some(404 | 409))
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Address and credentials for a tenant's API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// `https://address:port`.
    pub url: String,
    /// Server name to verify, and to send as SNI.
    pub server_name: String,
    /// CA bundle to verify the server, PEM.
    pub authority: String,
    /// The operator's certificate chain, PEM.
    pub certificate: String,
    /// The operator's private key, PEM.
    pub key: Secret,
}

/// A text that `Debug` does not print.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Endpoint that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The Service in the control-plane namespace.
    Inside,
    /// The ingress.
    Ingress,
}

/// Cache of clients, as long as their access does not change: a new client costs a TLS handshake.
#[derive(Debug, Default)]
pub struct TenantApis {
    clients: Mutex<HashMap<(ClusterId, Way), (Access, TenantApi)>>,
}

/// A client of one tenant's API.
#[derive(Clone)]
pub struct TenantApi {
    client: Client,
}

impl std::fmt::Debug for TenantApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantApi")
    }
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

impl TenantApi {
    /// Creates a client outside the cache.
    pub(crate) fn new(access: &Access) -> Result<Self, TenantApiError> {
        let client = connection::build_client(access).map_err(TenantApiError::Client)?;
        Ok(Self { client })
    }

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

    /// Prepares a new cluster for its admins: creates their role, which an API server creates
    /// itself a second later, and calls [`Self::apply_base`]. Fails if the namespace `default` does
    /// not exist yet.
    pub async fn begin(&self, objects: &BaseObjects, params: &PatchParams) -> Result<(), TenantApiError> {
        let namespaces = Api::<Lenient<Namespace>>::all(self.client.clone());
        let namespace = async {
            let found = limited("namespaces", namespaces.get_opt(NAMESPACE)).await?;
            found.map(|_| ()).ok_or(TenantApiError::NoNamespace)
        };
        let creation = PostParams {
            field_manager: params.field_manager.clone(),
            ..PostParams::default()
        };
        let (roles, admin_role) = (Api::all(self.client.clone()), build_admin_role());
        let role = async {
            match limited("the role of the admins", roles.create(&creation, &admin_role)).await {
                Err(error) if error.code() == Some(409) => Ok(()),
                made => made.map(|_| ()),
            }
        };
        tokio::try_join!(namespace, role, self.apply_base(objects, params)).map(|_| ())
    }

    /// Applies the objects that every tenant cluster must have:
    ///
    /// - the admins' binding;
    /// - the API server's permission to call kubelets;
    /// - the permissions of kubelets for their Nodes;
    /// - the address of `default/kubernetes`.
    ///
    /// An object that is current is not written: a write waits for the tenant's webhooks.
    pub async fn apply_base(&self, objects: &BaseObjects, params: &PatchParams) -> Result<(), TenantApiError> {
        let roles = try_join_all(objects.roles.iter().map(|role| self.ensure(role, params)));
        let bindings = try_join_all(objects.bindings.iter().map(|binding| self.ensure(binding, params)));
        let endpoints = async {
            let Some((slice, endpoints)) = &objects.endpoints else {
                return Ok(());
            };
            tokio::try_join!(self.ensure(slice, params), self.ensure(endpoints, params)).map(|_| ())
        };
        let policy = async {
            let (policy, binding) = &objects.policy;
            tokio::try_join!(self.ensure(policy, params), self.ensure(binding, params)).map(|_| ())
        };
        tokio::try_join!(roles, bindings, policy, endpoints).map(|_| ())
    }

    async fn ensure<K>(&self, object: &K, params: &PatchParams) -> Result<(), TenantApiError>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let (kind, object) = (ApiResource::erase::<K>(&()), to_dynamic(object));
        let objects = Objects::of(&self.client, "a base object", &kind, &object);
        let found = objects.find(&object).await?;
        if found.as_ref().is_some_and(|found| is_so(&object, found)) {
            return Ok(());
        }
        objects.write(&object, found.as_ref(), params).await
    }

    /// Returns when the addresses of `default/kubernetes` differ from the expected ones, possibly
    /// at once, or when the watch ends.
    pub async fn watch_base(&self, objects: &BaseObjects) -> Result<(), TenantApiError> {
        let Some((slice, endpoints)) = &objects.endpoints else {
            return std::future::pending().await;
        };
        let slices = Api::namespaced(self.client.clone(), NAMESPACE);
        let all = Api::namespaced(self.client.clone(), NAMESPACE);
        tokio::select! {
            ended = watch_until_other(slices, slice) => ended,
            ended = watch_until_other(all, endpoints) => ended,
        }
    }

    /// Sends a change and ignores the body of the answer, which a tenant controls.
    async fn change(
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

/// Returns when the object [`SERVICE`] is missing or differs.
async fn watch_until_other<K>(api: Api<Lenient<K>>, wanted: &K) -> Result<(), TenantApiError>
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let params = ListParams::default().fields(&format!("metadata.name={SERVICE}"));
    let wanted = wanted.clone();
    let is_as_wanted = move |found: Lenient<K>| found.0.is_ok_and(|found| is_so(&wanted, &found));
    let mut changes = std::pin::pin!(changes(
        "the endpoints of default/kubernetes",
        api,
        params,
        ONE,
        is_as_wanted
    ));
    let mut is_there = false;
    while let Some(change) = changes.try_next().await? {
        match change {
            Change::Is(true) => is_there = true,
            Change::Listed if is_there => {}
            Change::Is(false) | Change::Listed | Change::Gone => break,
        }
    }
    Ok(())
}

/// Returns whether an answer arrived that exceeds the size limit.
fn is_too_long(error: &kube::Error) -> bool {
    let mut causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    causes.any(|cause| cause.is::<LengthLimitError>())
}

async fn limited<T>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_has_answered() {
        let asking = |source: kube::Error| TenantApiError::Request {
            what: "a token",
            source: Box::new(source),
        };
        let refused = kube::core::Status::failure("no", "Forbidden").with_code(403).boxed();
        let broken = kube::Error::Service("connection refused".into());
        let odd = kube::Error::SerdeError(serde_json::from_str::<u8>("?").unwrap_err());
        for (rule, error, expected) in [
            ("nobody is there", asking(broken), true),
            ("it takes too long", TenantApiError::Limit, true),
            ("its answer cannot be read", asking(odd), false),
            ("it is refused", asking(kube::Error::Api(refused)), false),
            ("it is not ready", TenantApiError::NotReady, false),
        ] {
            assert_eq!(error.is_unanswered(), expected, "{rule}");
        }
    }
}
