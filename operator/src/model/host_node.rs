//! A node of the host cluster, reduced to the fields that the operator reads. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;
use serde::{Deserialize, Serialize};

/// A Node of the host, with only the fields that are read here.
#[derive(Clone, Debug, Default, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Node)]
pub struct HostNode {
    /// Object metadata.
    pub metadata: ObjectMeta,
    /// Node spec.
    #[serde(default)]
    pub spec: HostNodeSpec,
    /// Node status.
    #[serde(default)]
    pub status: HostNodeStatus,
}

/// Spec of a Node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostNodeSpec {
    /// Taints of the Node.
    #[serde(default)]
    pub taints: Vec<Taint>,
}

/// Status of a Node, from its kubelet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostNodeStatus {
    /// Conditions; only `Ready` is read.
    #[serde(default)]
    pub conditions: Vec<NodeCondition>,
    /// Allocatable resources; only `cpu` is read.
    #[serde(default)]
    pub allocatable: BTreeMap<String, Quantity>,
}
