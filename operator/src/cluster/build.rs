//! The objects of one Cluster, from what was accepted and what was issued. Pure, and none of it can fail.
//!
//! ```text
//!  Accepted ──┬─▶ Issuers, Certificates (yoke-pki)          nothing else is needed for these
//!             ├─▶ Namespace, Service, NetworkPolicy
//!  Materials ─┼─▶ Secrets of the components, kubeconfig     when certificates are issued
//!        └─▶ Gist ─▶ StatefulSet, ConfigMap of the ingress   when Secrets are there and the streams are
//! ```

pub mod arguments;
pub mod audit;
pub mod authentication;
pub mod doors;
pub mod gist;
pub mod hosted;
mod konnectivity;
pub mod place;
pub mod secrets;
pub mod stateful_set;

pub use gist::{Gist, Reach, Trust};
pub use secrets::Materials;

use crate::config::Config;

use super::identity::Identity;
use super::validate::Accepted;

/// What every object is built from.
#[derive(Debug)]
pub struct Blueprint<'a> {
    /// Names.
    pub identity: &'a Identity,
    /// The spec, checked.
    pub accepted: &'a Accepted<'a>,
    /// The spec as it was given.
    pub spec: &'a yoke_api::ClusterSpec,
    /// The host's configuration.
    pub config: &'a Config,
}

impl Blueprint<'_> {
    /// Whether the API server asks an OIDC provider for its keys.
    pub fn has_provider(&self) -> bool {
        authentication::has_provider(&self.spec.extra_args.api_server)
    }

    /// The doors that it has beside those that every Cluster has.
    pub fn open(&self) -> doors::Open {
        doors::Open {
            provider: self.has_provider(),
            konnectivity: self.spec.konnectivity.is_enabled(),
        }
    }
}

#[cfg(test)]
#[path = "build/tests.rs"]
mod tests;
