//! Observations of the host API: what the watches report to the routing table. Pure.

use std::collections::BTreeSet;
use std::error::Error;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Namespace and name of an object on the host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

impl ObjectKey {
    /// The key from an object's metadata.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }
}

/// An observation of a watch of one kind.
#[derive(Clone, Debug)]
pub enum Watched<K> {
    /// The object was added or changed.
    Applied(Box<K>),
    /// The object was deleted.
    Deleted(ObjectKey),
    /// A complete list was reported through `Applied`. No other objects exist.
    Listed(BTreeSet<ObjectKey>),
}

/// One observation of the host.
#[derive(Clone, Debug)]
pub enum Event {
    /// A ConfigMap that is labeled as ingress configuration.
    Config(Watched<ConfigMap>),
    /// An EndpointSlice that is labeled as a control plane's.
    Slice(Watched<EndpointSlice>),
    /// The Secret with the ingress certificate.
    Certificate(Watched<Secret>),
    /// A certificate that the activator can serve now.
    ActivatorCertificate(Watched<ActivatorNames>),
    /// An EndpointSlice of this process's own Service.
    Replicas(Watched<EndpointSlice>),
}

/// The names that an activator certificate covers.
#[derive(Clone, Debug)]
pub struct ActivatorNames {
    /// The Secret of the certificate. In the CA namespace it covers the public names of all
    /// clusters; in a control-plane namespace it covers the extra names of that cluster.
    pub key: ObjectKey,
    /// DNS names of the certificate.
    pub names: BTreeSet<String>,
}

/// The text of an error followed by its causes.
pub(crate) fn to_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
