//! The classes of control planes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use serde::Deserialize;

/// One class of control planes.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassEntry {
    /// Name for `spec.class`.
    pub name: String,
    /// Resources by container.
    #[serde(default)]
    pub resources: ClassResources,
    /// Labels of the nodes that may run it.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that it tolerates.
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    /// Priority class of the pod.
    #[serde(default)]
    pub priority_class_name: Option<String>,
    /// Replicas of the streams: 1, 3 or 5.
    #[serde(default = "default_store_replicas")]
    pub store_replicas: usize,
}

/// Resources of the containers of a control plane.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassResources {
    /// kube-apiserver.
    #[serde(default)]
    pub api_server: Option<ResourceRequirements>,
    /// kube-controller-manager.
    #[serde(default)]
    pub controller_manager: Option<ResourceRequirements>,
    /// kube-scheduler.
    #[serde(default)]
    pub scheduler: Option<ResourceRequirements>,
    /// kine-nats.
    #[serde(default)]
    pub store: Option<ResourceRequirements>,
    /// konnectivity-server.
    #[serde(default)]
    pub konnectivity: Option<ResourceRequirements>,
}

fn default_store_replicas() -> usize {
    1
}
