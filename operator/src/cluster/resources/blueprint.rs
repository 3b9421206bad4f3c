//! The input of every object of a Cluster.

use crate::cluster::accepted::Accepted;
use crate::cluster::resources::{authentication, network_policy};
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
