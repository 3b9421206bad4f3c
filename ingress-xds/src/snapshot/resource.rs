//! Envoy resources as they are sent: type, name, bytes and version. Pure.

use std::fmt;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// Prefix of every Envoy cluster that an SNI name or a token can select. Envoy adds the same prefix
/// to the SNI name that it receives, so no SNI name can select another cluster.
const NAMES: &str = "name/";

/// Name of the Envoy Secret with the ingress certificate.
pub const CERTIFICATE_NAME: &str = "ingress";

/// Length of a version in bytes: 64 bits of the hash. Two contents of one name do not collide by
/// chance.
const VERSION_BYTES: usize = 8;

/// The resource types that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Envoy's Cluster.
    Cluster,
    /// Envoy's ClusterLoadAssignment.
    Endpoints,
    /// Envoy's Listener; only in the base configuration.
    Listener,
    /// Envoy's RouteConfiguration; only in the base configuration.
    Routes,
    /// Envoy's Secret with the ingress certificate.
    Secret,
}

impl ResourceKind {
    /// Whether a name may belong to the base configuration, and to no tenant cluster.
    pub fn may_be_base(self, name: &str) -> bool {
        match self {
            Self::Listener | Self::Routes => true,
            Self::Cluster | Self::Endpoints => !is_tenant_cluster(name),
            Self::Secret => false,
        }
    }
}

/// One encoded resource and its version, a hash of its content.
#[derive(Clone)]
pub struct Resource {
    /// The version: equal contents have equal versions, in every replica and after every restart.
    /// The version of endpoints also changes with their Cluster's.
    pub version: Arc<str>,
    /// The encoded protobuf message.
    pub body: Arc<[u8]>,
}

// Compares versions, because the order of map entries in the bytes may differ.
impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

impl Eq for Resource {}

// Omits the bytes, which may contain a private key.
impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Name of the Envoy resources for an SNI name.
pub fn resource_name(sni: &str) -> String {
    format!("{NAMES}{sni}")
}

/// Whether a resource name is the one of an SNI name.
pub fn is_of_name(name: &str, sni: &str) -> bool {
    name.strip_prefix(NAMES) == Some(sni)
}

/// Whether a name of an Envoy cluster belongs to a tenant cluster.
pub fn is_tenant_cluster(name: &str) -> bool {
    name.starts_with(NAMES)
}

/// The version of a resource with these contents.
pub(crate) fn to_version(contents: &[&[u8]]) -> Arc<str> {
    let mut hash = Sha256::new();
    contents.iter().for_each(|content| hash.update(content));
    HEXLOWER.encode(&hash.finalize()[..VERSION_BYTES]).into()
}
