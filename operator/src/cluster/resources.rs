//! Builds the objects of one Cluster from its accepted spec and its issued certificates. Pure and
//! infallible.
//!
//! ```text
//!  Accepted ──┬─▶ Issuers, Certificates (yoke-pki)          needs nothing else
//!             ├─▶ Namespace, Service, NetworkPolicy
//!  Materials ─┼─▶ Secrets of the components, kubeconfig     once certificates are issued
//!        └─▶ IssuedSummary ─▶ StatefulSet, ConfigMap of the ingress  once the Secrets and streams exist
//! ```

pub mod affinity;
pub mod arguments;
pub mod audit;
pub mod authentication;
mod konnectivity;
pub mod network_policy;
pub mod objects;
pub mod secrets;
pub mod stateful_set;
pub mod summary;

pub use crate::cluster::resources::secrets::Materials;
pub use crate::cluster::resources::summary::{ApiAccess, IssuedSummary, Trust};

use crate::cluster::validate::Accepted;
use crate::config::Config;
use crate::model::identity::Identity;

/// The input of every object.
#[derive(Debug)]
pub struct Blueprint<'a> {
    /// Names and labels of the Cluster's objects.
    pub identity: &'a Identity,
    /// The validated spec.
    pub accepted: &'a Accepted<'a>,
    /// The spec as the owner wrote it.
    pub spec: &'a yoke_api::ClusterSpec,
    /// The host's configuration.
    pub config: &'a Config,
}

impl Blueprint<'_> {
    /// Whether the API server fetches the keys of an OIDC provider.
    pub fn has_provider(&self) -> bool {
        authentication::has_provider(&self.spec.extra_args.api_server)
    }

    /// The connections that this Cluster needs beside those of every Cluster.
    pub fn open(&self) -> network_policy::AllowedPeers {
        network_policy::AllowedPeers {
            provider: self.has_provider(),
            konnectivity: self.spec.konnectivity.is_enabled(),
        }
    }
}

#[cfg(test)]
#[path = "resources/tests.rs"]
mod tests;
