//! The operator as a client of tenants' own APIs: is it ready, which bindings must it have, how many nodes.
//!
//! It dials the control plane's Service by ClusterIP and verifies the name in the certificate, so it needs no DNS; and,
//! for the proof that a kubeconfig works, the ingress by its address with the public name as TLS server name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Node, ServiceAccount};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort as SlicePort, EndpointSlice};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams};
use kube::config::{AuthInfo, Config as KubeConfig};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use yoke_api::ClusterId;
use yoke_pki::plan::{ADMIN_GROUP, KUBELET_CLIENT_GROUP};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const REQUEST_LIMIT: Duration = Duration::from_secs(4);

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
    /// A request took too long.
    #[error("the tenant's API did not answer within {REQUEST_LIMIT:?}")]
    Limit,
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
    fn new(access: &Access) -> Result<Self, TenantApiError> {
        let wrong = |error: Box<dyn std::error::Error + Send + Sync>| TenantApiError::Client(error);
        let url: http::Uri = access
            .url
            .parse()
            .map_err(|error: http::uri::InvalidUri| wrong(error.into()))?;
        let mut config = KubeConfig::new(url);
        let roots = yoke_pki::ParsedCertificate::from_pem(&access.authority).map_err(|error| wrong(error.into()))?;
        config.root_cert = Some(roots.iter().map(|root| root.der().to_vec()).collect());
        config.tls_server_name = Some(access.server_name.clone());
        config.connect_timeout = Some(CONNECT_LIMIT);
        config.read_timeout = Some(REQUEST_LIMIT);
        config.disable_compression = true;
        config.default_retry = false;
        config.auth_info = AuthInfo {
            client_certificate_data: Some(to_base64(&access.certificate)),
            client_key_data: Some(to_base64(&access.key.0).into()),
            ..AuthInfo::default()
        };
        let client = Client::try_from(config).map_err(|error| wrong(error.into()))?;
        Ok(Self { client })
    }

    /// Whether `/readyz` answers 200.
    pub async fn check_ready(&self) -> Result<(), TenantApiError> {
        let request = http::Request::get("/readyz")
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

    /// Version that the server says it is.
    pub async fn version(&self) -> Result<String, TenantApiError> {
        limited("its version", self.client.apiserver_version())
            .await
            .map(|info| info.git_version)
    }

    /// Number of Nodes.
    pub async fn count_nodes(&self) -> Result<i32, TenantApiError> {
        let nodes = Api::<Node>::all(self.client.clone());
        // One entry and the number of the others.
        let list = limited("its nodes", nodes.list_metadata(&ListParams::default().limit(1))).await?;
        let others = list.metadata.remaining_item_count.unwrap_or(0);
        Ok(i32::try_from(others + i64::try_from(list.items.len()).unwrap_or(0)).unwrap_or(i32::MAX))
    }

    /// Whether the controllers work: the ServiceAccount that every pod needs is there, which they make first.
    pub async fn check_controllers(&self) -> Result<(), TenantApiError> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), "default");
        match limited("its ServiceAccount", accounts.get_metadata_opt("default")).await? {
            Some(_) => Ok(()),
            None => Err(TenantApiError::NoControllers),
        }
    }

    /// Brings about what every tenant cluster must have: the admins' binding, the API server's right to ask kubelets, and
    /// the address of `default/kubernetes`. What is as it should be is not written: a write waits for the tenant's webhooks.
    pub async fn apply_base(&self, objects: &BaseObjects, params: &PatchParams) -> Result<(), TenantApiError> {
        let bindings = objects.bindings.iter().map(|binding| {
            let api = Api::all(self.client.clone());
            async move { ensure(&api, binding, params).await }
        });
        let endpoints = async {
            let Some((slice, endpoints)) = &objects.endpoints else {
                return Ok(());
            };
            let slices = Api::namespaced(self.client.clone(), "default");
            let all = Api::namespaced(self.client.clone(), "default");
            tokio::try_join!(ensure(&slices, slice, params), ensure(&all, endpoints, params)).map(|_| ())
        };
        tokio::try_join!(futures::future::try_join_all(bindings), endpoints).map(|_| ())
    }
}

async fn ensure<K>(api: &Api<K>, object: &K, params: &PatchParams) -> Result<(), TenantApiError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let name = object.name_any();
    let found = limited("a base object", api.get_opt(&name)).await?;
    let is_so = |found: K| match (serde_json::to_value(object), serde_json::to_value(&found)) {
        (Ok(wanted), Ok(found)) => is_part(&wanted, &found),
        _ => false,
    };
    if found.is_some_and(is_so) {
        return Ok(());
    }
    let patch = Patch::Apply(object);
    limited("a base object", api.patch(&name, params, &patch))
        .await
        .map(|_| ())
}

/// Whether all of `wanted` is in `found`, which may say more.
fn is_part(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => wanted
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|found| is_part(value, found))),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(wanted, found)| is_part(wanted, found))
        }
        _ => wanted == found,
    }
}

/// What every tenant cluster must have.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseObjects {
    /// Bindings.
    pub bindings: Vec<ClusterRoleBinding>,
    /// `default/kubernetes`; absent if the ingress has a name and no address.
    pub endpoints: Option<(EndpointSlice, Endpoints)>,
}

/// Builds [`BaseObjects`] for clusters behind an ingress.
pub fn build_base(ingress_address: &str, ingress_port: u16) -> BaseObjects {
    BaseObjects {
        bindings: vec![
            build_binding("yoke:cluster-admins", ADMIN_GROUP, "cluster-admin"),
            build_binding(
                "yoke:kubelet-api-admins",
                KUBELET_CLIENT_GROUP,
                "system:kubelet-api-admin",
            ),
        ],
        endpoints: ingress_address
            .parse()
            .ok()
            .filter(|address: &std::net::IpAddr| !address.is_loopback())
            .map(|address| build_endpoints(address, ingress_port)),
    }
}

fn build_binding(name: &str, group: &str, role: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "ClusterRole".into(),
            name: role.into(),
        },
        subjects: Some(vec![Subject {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "Group".into(),
            name: group.into(),
            namespace: None,
        }]),
    }
}

/// The Service `default/kubernetes` has no selector; its addresses are the ingress, which workloads are sent to.
fn build_endpoints(address: std::net::IpAddr, port: u16) -> (EndpointSlice, Endpoints) {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let metadata = |label: (&str, &str)| ObjectMeta {
        name: Some("kubernetes".into()),
        namespace: Some("default".into()),
        labels: Some([(label.0.to_owned(), label.1.to_owned())].into()),
        ..ObjectMeta::default()
    };
    let slice = EndpointSlice {
        metadata: metadata(("kubernetes.io/service-name", "kubernetes")),
        address_type: family.into(),
        endpoints: vec![Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                ..EndpointConditions::default()
            }),
            ..Endpoint::default()
        }],
        ports: Some(vec![SlicePort {
            name: Some("https".into()),
            port: Some(port.into()),
            protocol: Some("TCP".into()),
            ..SlicePort::default()
        }]),
    };
    let endpoints = Endpoints {
        metadata: metadata(("endpointslice.kubernetes.io/skip-mirror", "true")),
        subsets: Some(vec![EndpointSubset {
            addresses: Some(vec![EndpointAddress {
                ip: address.to_string(),
                ..EndpointAddress::default()
            }]),
            ports: Some(vec![EndpointPort {
                name: Some("https".into()),
                port: port.into(),
                protocol: Some("TCP".into()),
                ..EndpointPort::default()
            }]),
            ..EndpointSubset::default()
        }]),
    };
    (slice, endpoints)
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

fn to_base64(text: &str) -> String {
    data_encoding::BASE64.encode(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_objects_are_recognised_among_what_a_server_adds() {
        let wanted = serde_json::to_value(build_binding("a", "group", "role")).expect("keys are strings");
        let mut found = wanted.clone();
        found["metadata"]["uid"] = "1".into();
        assert!(is_part(&wanted, &found));
        found["subjects"][0]["name"] = "other".into();
        assert!(!is_part(&wanted, &found));
        let mut more = wanted.clone();
        more["subjects"] = serde_json::json!([wanted["subjects"][0], wanted["subjects"][0]]);
        assert!(!is_part(&wanted, &more));
    }
}
