//! Nodes in a tenant's API, reduced to what concerns the versions of their kubelets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus, NodeSystemInfo};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use yoke_api::{KubernetesVersion, Lenient, labels};

use crate::tenant_client::api::TenantApi;
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::limits::limited;
use crate::tenant_client::node_leases::PAGES;
use crate::tenant_client::paged_list::{cut, find_in_pages, list_pages};

/// Maximum length in bytes: of a sentence; of a version or a word.
const TEXT_MAX: usize = 512;
const VALUE_MAX: usize = 64;

#[derive(Clone, Debug, Serialize)]
struct NodePatch<'a> {
    metadata: NodePatchMetadata<'a>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodePatchMetadata<'a> {
    /// UID and resource version make the patch fail if the object was replaced or changed.
    uid: Option<&'a str>,
    resource_version: Option<&'a str>,
    annotations: BTreeMap<&'static str, Option<String>>,
}

impl TenantApi {
    /// Lists all Nodes that can be decoded.
    pub(crate) async fn kubelets(&self) -> Result<Vec<Node>, TenantApiError> {
        let api = Api::all(self.client.clone());
        list_pages("Nodes", &api, ListParams::default(), PAGES, strip).await
    }

    /// Returns the name of the first Node that matches the predicate.
    pub(crate) async fn find_node(&self, matches: impl Fn(&Node) -> bool) -> Result<Option<String>, TenantApiError> {
        let api = Api::all(self.client.clone());
        let find = |node: Node| matches(&node).then(|| node.name_any());
        find_in_pages("Nodes", &api, ListParams::default(), PAGES, find).await
    }

    /// Requests a kubelet version from the worker of a Node, or withdraws the request, unless the
    /// Node has changed.
    pub(crate) async fn ask_kubelet(
        &self,
        node: &Node,
        wanted: Option<(KubernetesVersion, &str)>,
    ) -> Result<(), TenantApiError> {
        let (version, drain) = wanted.unzip();
        let annotations = [
            (labels::KUBELET_VERSION, version.map(|version| version.to_string())),
            (labels::DRAIN_TIMEOUT, drain.map(str::to_owned)),
        ];
        let patch = NodePatch {
            metadata: NodePatchMetadata {
                uid: node.metadata.uid.as_deref(),
                resource_version: node.metadata.resource_version.as_deref(),
                annotations: annotations.into(),
            },
        };
        let nodes = Api::<Lenient<Node>>::all(self.client.clone());
        let (name, params) = (node.name_any(), PatchParams::default());
        let patch = Patch::Merge(&patch);
        limited("a Node", nodes.patch(&name, &params, &patch)).await.map(|_| ())
    }
}

/// Reduces a Node to the fields that are read, since other clients may make it large.
fn strip(mut node: Node) -> Node {
    let is_read = |key: &str| [labels::KUBELET_VERSION, labels::KUBELET_UPGRADE].contains(&key);
    node.labels_mut().retain(|key, _| key == labels::REAPING);
    node.annotations_mut().retain(|key, _| is_read(key));
    let short = |text: &mut String| cut(text, TEXT_MAX);
    node.annotations_mut().values_mut().for_each(short);
    node.labels_mut().values_mut().for_each(short);
    Node {
        metadata: ObjectMeta {
            name: node.metadata.name,
            uid: node.metadata.uid,
            resource_version: node.metadata.resource_version,
            deletion_timestamp: node.metadata.deletion_timestamp,
            labels: node.metadata.labels,
            annotations: node.metadata.annotations,
            ..ObjectMeta::default()
        },
        spec: None,
        status: node.status.map(strip_status),
    }
}

fn shortened(mut text: String) -> String {
    cut(&mut text, VALUE_MAX);
    text
}

fn strip_status(status: NodeStatus) -> NodeStatus {
    let version = status.node_info.map(|info| shortened(info.kubelet_version));
    let mut conditions = status.conditions.into_iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    NodeStatus {
        node_info: version.map(|kubelet_version| NodeSystemInfo {
            kubelet_version,
            ..NodeSystemInfo::default()
        }),
        conditions: ready.map(|ready| {
            vec![NodeCondition {
                type_: ready.type_,
                status: shortened(ready.status),
                ..NodeCondition::default()
            }]
        }),
        ..NodeStatus::default()
    }
}
