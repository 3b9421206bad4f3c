//! Configuration of the ingress.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The ingress, through which all clients connect.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressConfig {
    /// Address in kubeconfigs.
    pub address: String,
    /// Port in kubeconfigs.
    #[serde(default = "default_ingress_port")]
    pub port: u16,
    /// Whether a Cluster becomes Ready only when its API also answers through this address.
    #[serde(default = "default_true")]
    pub probe: bool,
    /// Pods that may connect to a control plane: Envoy, ingress-xds, the operator.
    pub pods: Vec<PodSelector>,
}

/// Pods of one namespace, by labels.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodSelector {
    /// Namespace, by name.
    pub namespace: String,
    /// Labels that a pod must have, all of them.
    pub labels: BTreeMap<String, String>,
}

fn default_ingress_port() -> u16 {
    443
}

fn default_true() -> bool {
    true
}
