//! Names and labels of one Cluster's objects. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use yoke_api::names::{HostedNamespace, PKI_NAMESPACE, PublicName};
use yoke_api::{Cluster, ClusterId, labels};

/// Name of the Secret in the PKI namespace with the user of this identity's store.
pub(crate) fn store_secret(id: &ClusterId) -> String {
    format!("{id}-store")
}

/// The identity of a Cluster, and the names that follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The identity, from `spec.id`.
    pub id: ClusterId,
    /// The Tenant's name, which is the Cluster's namespace.
    pub tenant: String,
    /// The Cluster's name.
    pub cluster: String,
    /// UID of the Cluster object.
    pub uid: String,
    /// Host name under which clients outside the host reach the API.
    pub public_name: PublicName,
}

impl Identity {
    /// The identity of a Cluster that has one.
    pub fn of(cluster: &Cluster, base_domain: &str) -> Option<Self> {
        let id = cluster.id()?;
        let name = cluster.name_any();
        Some(Self {
            public_name: id.public_name(&name, base_domain),
            id,
            tenant: cluster.namespace().unwrap_or_default(),
            cluster: name,
            uid: cluster.uid().unwrap_or_default(),
        })
    }

    /// Name of the control-plane namespace.
    pub fn hosted(&self) -> HostedNamespace {
        self.id.hosted_namespace()
    }

    /// Host name in the serving certificate for clients inside the host.
    pub fn upstream_name(&self) -> String {
        self.hosted().upstream_name(&self.cluster)
    }

    /// Labels of an object that belongs to the Cluster.
    pub fn labels(&self, component: &str) -> BTreeMap<String, String> {
        [
            (labels::ID, self.id.as_str()),
            (labels::TENANT, &self.tenant),
            (labels::CLUSTER, &self.cluster),
            (labels::COMPONENT, component),
            (labels::MANAGED_BY, labels::MANAGED_BY_OPERATOR),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
    }

    /// Annotations that name the owner of a namespace.
    pub fn owner_annotations(&self) -> BTreeMap<String, String> {
        [
            (labels::OWNER.to_owned(), format!("{}/{}", self.tenant, self.cluster)),
            (labels::OWNER_UID.to_owned(), self.uid.clone()),
        ]
        .into()
    }

    /// Metadata of an object in the control-plane namespace.
    pub fn hosted_meta(&self, name: &str, component: &str) -> ObjectMeta {
        self.meta(self.hosted().as_str(), name, component)
    }

    /// Metadata of an object in the PKI namespace.
    pub fn pki_meta(&self, name: &str, component: &str) -> ObjectMeta {
        self.meta(PKI_NAMESPACE, name, component)
    }

    /// Metadata of an object in the Tenant's namespace.
    pub fn tenant_meta(&self, name: &str, component: &str) -> ObjectMeta {
        self.meta(&self.tenant, name, component)
    }

    /// Name of the Secret in the PKI namespace with the service-account key.
    pub fn service_account_secret(&self) -> String {
        format!("{}-service-account", self.id)
    }

    /// Name of the Secret in the PKI namespace with the store's user.
    pub fn store_secret(&self) -> String {
        store_secret(&self.id)
    }

    fn meta(&self, namespace: &str, name: &str, component: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(self.labels(component)),
            ..ObjectMeta::default()
        }
    }
}
