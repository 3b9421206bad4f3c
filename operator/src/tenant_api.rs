//! The operator as a client of tenants' own APIs: is it ready, which bindings must it have, how many nodes.
//!
//! It dials the control plane's Service by ClusterIP and verifies the name in the certificate, so it needs no DNS; and,
//! for the proof that a kubeconfig works, the ingress by its address with the public name as TLS server name.
//!
//! What is there others wrote, who may be hostile: every object is read as [`Lenient`], or as far
//! as something is wanted of it.

mod addons;
mod base;
pub(crate) mod changes;
mod connection;
mod kubelets;
mod leaving;
mod lines;
mod nodes;
mod object;
mod pages;
mod webhooks;
mod workers;

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

pub use self::addons::{AddonError, Foreign};
pub use self::base::{BaseObjects, build_base};
use self::base::{NAMESPACE, SERVICE, build_admin_role};
use self::changes::{Change, changes};
pub(crate) use self::leaving::is_marked;
pub(crate) use self::nodes::{NODES_MAX, TAINTS_MAX};
pub(crate) use self::object::to_dynamic;
use self::object::{Objects, is_so};
use self::pages::{Pages, list_page};
pub use self::workers::BootstrapToken;

const REQUEST_LIMIT: Duration = Duration::from_secs(4);
/// A list of one object.
const ONE: Pages = Pages { size: 1, max: 1 };
/// A watch is asked for again this often. What it tells of is rare, and a dead peer is noticed by the kernel.
const WATCH_SECONDS: u32 = 3600;

/// A tenant's API did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum TenantApiError {
    /// The address or the credentials make no client.
    #[error("preparing a client of the tenant's API")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A request failed.
    #[error("asking the tenant's API for {what}")]
    Request {
        /// What for.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// It runs, and one of its parts is not ready.
    #[error("the API server is not ready yet")]
    NotReady,
    /// Nobody has made the ServiceAccount that pods need.
    #[error("waiting for ServiceAccount default in namespace default, which the controller manager makes")]
    NoControllers,
    /// A part that an API server makes when it starts for the first time is not there.
    #[error("waiting for namespace default, which the API server makes")]
    NoNamespace,
    /// There is more on a page than was asked for.
    #[error("the tenant's API answers more than {most} of {what} on one page")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many may be there.
        most: usize,
    },
    /// A watch ended.
    #[error("a watch of the tenant's API ended")]
    Ended,
    /// A request took too long.
    #[error("the tenant's API did not answer in time")]
    Limit,
}

impl TenantApiError {
    /// Whether nobody has answered: the control plane may end just then.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Limit => true,
            Self::Request { source, .. } => {
                matches!(**source, kube::Error::Service(_) | kube::Error::HyperError(_)) && !is_too_long(source)
            }
            _ => false,
        }
    }

    /// Whether an object was refused for what it says.
    fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// Whether there is no such object.
    fn is_missing(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether the object that was meant is gone, be there another one of its name.
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

/// Where and as whom to reach a tenant's API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// `https://address:port`.
    pub url: String,
    /// The name to verify, and to send as SNI.
    pub server_name: String,
    /// Bundle to verify the server with, PEM.
    pub authority: String,
    /// The operator's certificate chain, PEM.
    pub certificate: String,
    /// The operator's key, PEM.
    pub key: Secret,
}

/// A text that is not shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Which way a client goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// By the Service in the hosted namespace.
    Inside,
    /// By the ingress.
    Ingress,
}

/// Clients of tenants' APIs, kept while their access does not change: a new one costs a TLS handshake.
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
    /// The client for a cluster.
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

    /// The client for a cluster that was used last.
    pub fn known(&self, id: &ClusterId, way: Way) -> Option<TenantApi> {
        self.lock().get(&(id.clone(), way)).map(|(_, api)| api.clone())
    }

    /// Replaces one client of a cluster by another, and so a connection on which nothing is answered.
    pub fn forget_way(&self, id: &ClusterId, way: Way) {
        let mut clients = self.lock();
        let key = (id.clone(), way);
        let Some((access, _)) = clients.remove(&key) else {
            return;
        };
        // It was made once, of the same.
        if let Ok(api) = TenantApi::new(&access) {
            clients.insert(key, (access, api));
        }
    }

    /// Forgets the clients of a cluster.
    pub fn forget(&self, id: &ClusterId) {
        self.lock().retain(|(known, _), _| known != id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(ClusterId, Way), (Access, TenantApi)>> {
        // Each change is one insert or removal, so the map is whole after any panic.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TenantApi {
    /// One beside those that are kept.
    pub(crate) fn new(access: &Access) -> Result<Self, TenantApiError> {
        let client = connection::build_client(access).map_err(TenantApiError::Client)?;
        Ok(Self { client })
    }

    /// Whether `/readyz` answers 200.
    pub async fn check_ready(&self) -> Result<(), TenantApiError> {
        self.check("/readyz").await
    }

    /// Whether a path answers 200 that asks the server how it is.
    pub async fn check(&self, path: &str) -> Result<(), TenantApiError> {
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(|error| TenantApiError::Client(error.into()))?;
        match limited("its readiness", self.client.request_text(request)).await {
            Ok(_) => Ok(()),
            Err(TenantApiError::Request { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 500) =>
            {
                tracing::debug!(answer = %source, "API server is not ready");
                Err(TenantApiError::NotReady)
            }
            Err(error) => Err(error),
        }
    }

    /// Version that the server says it is.
    pub async fn version(&self) -> Result<String, TenantApiError> {
        limited("its version", self.client.apiserver_version())
            .await
            .map(|info| info.git_version)
    }

    /// Number of Nodes.
    pub async fn count_nodes(&self) -> Result<i32, TenantApiError> {
        let nodes = Api::<Lenient<Node>>::all(self.client.clone());
        // One entry and the number of the others.
        let list = list_page("its nodes", &nodes, &ListParams::default().limit(1)).await?;
        let others = list.metadata.remaining_item_count.unwrap_or(0).max(0);
        let here = i64::try_from(list.items.len()).unwrap_or(0);
        Ok(i32::try_from(others.saturating_add(here)).unwrap_or(i32::MAX))
    }

    /// Whether the controllers work: the ServiceAccount that every pod needs is there, which they make first.
    pub async fn check_controllers(&self) -> Result<(), TenantApiError> {
        let accounts = Api::<Lenient<ServiceAccount>>::namespaced(self.client.clone(), NAMESPACE);
        match limited("its ServiceAccount", accounts.get_opt("default")).await? {
            Some(_) => Ok(()),
            None => Err(TenantApiError::NoControllers),
        }
    }

    /// Brings about, in a cluster that is new, what its admins need to begin: their role, which an API server makes itself a
    /// second later, and [`Self::apply_base`]. An error if the namespace is not there that they begin in.
    pub async fn begin(&self, objects: &BaseObjects, params: &PatchParams) -> Result<(), TenantApiError> {
        let namespaces = Api::<Lenient<Namespace>>::all(self.client.clone());
        let namespace = async {
            let found = limited("its namespaces", namespaces.get_opt(NAMESPACE)).await?;
            found.map(|_| ()).ok_or(TenantApiError::NoNamespace)
        };
        let creation = PostParams {
            field_manager: params.field_manager.clone(),
            ..PostParams::default()
        };
        let (roles, admin_role) = (Api::all(self.client.clone()), build_admin_role());
        let role = async {
            match limited("the role of its admins", roles.create(&creation, &admin_role)).await {
                Err(error) if error.code() == Some(409) => Ok(()),
                made => made.map(|_| ()),
            }
        };
        tokio::try_join!(namespace, role, self.apply_base(objects, params)).map(|_| ())
    }

    /// Brings about what every tenant cluster must have: the admins' binding, the API server's right to ask kubelets, what
    /// kubelets may do with their Nodes, and the address of `default/kubernetes`. What is as it should be is not written: a write waits for the tenant's webhooks.
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

    /// Ends when the addresses of `default/kubernetes` are not as they should be, which may be at once; or when they cannot
    /// be watched any more.
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

    /// Asks for a change, of whose answer nothing is made: it may say as much as a tenant likes.
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

/// Ends when the one object [`SERVICE`] is missing or says something else.
async fn watch_until_other<K>(api: Api<Lenient<K>>, wanted: &K) -> Result<(), TenantApiError>
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let params = ListParams::default().fields(&format!("metadata.name={SERVICE}"));
    let wanted = wanted.clone();
    let is_as_wanted = move |found: Lenient<K>| found.0.is_ok_and(|found| is_so(&wanted, &found));
    let mut changes = std::pin::pin!(changes("its addresses", api, params, ONE, is_as_wanted));
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

/// Whether there was an answer, of which more came than is read.
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
