//! The inputs of add-on objects.

use yoke_api::names::PublicName;
use yoke_api::{ClusterSpec, KubernetesVersion};

use crate::config::{Config, VersionEntry};

/// Inputs of the objects.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The Cluster's spec.
    pub spec: &'a ClusterSpec,
    /// Public name of the API.
    pub public_name: &'a PublicName,
    /// Version of the API server.
    pub version: KubernetesVersion,
    /// The catalog entry of that version.
    pub catalogue: &'a VersionEntry,
    /// CA of the kubelets' serving certificates, PEM.
    pub kubelet_ca: &'a str,
    /// The host's configuration.
    pub config: &'a Config,
}
