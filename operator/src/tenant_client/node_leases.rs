//! Nodes in a tenant's API that are removed when silent, and the Leases that their kubelets renew.
//!
//! The Lease is created before its Node can join, with a label that contains `reapAfter`. The
//! kubelet uses the Lease that it finds, and the Lease is deleted with the Node. Thus the setting
//! and the renewals are in one object, and are read together.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Resource as _, ResourceExt as _};
use serde::Serialize;
use yoke_api::{Lenient, labels};

use crate::tenant_client::api::TenantApi;
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::limits::limited;
use crate::tenant_client::node_admission_policy::is_restricted;
use crate::tenant_client::paged_list::{Pages, cut, find_in_pages, list_pages};

/// Namespace of kubelets' Leases.
const NAMESPACE: &str = "kube-node-lease";
/// Lease duration in seconds, as a kubelet sets it.
const LEASE_SECONDS: i32 = 40;
/// Leases or Nodes per page: a client may make each as large as any object.
const PAGE: u32 = 8;
/// Page limit: enough for the 5,000 Nodes that a Kubernetes cluster can have.
pub(crate) const PAGES: Pages = Pages { size: PAGE, max: 625 };
/// Maximum length of an owner's UID, in characters.
const UID_MAX: usize = 64;
/// Maximum length in bytes: of a taint's key; of a taint's value or effect, or a label; of the
/// recorded taints of a JoinToken. Kubernetes allows no longer ones.
const KEY_MAX: usize = 317;
const VALUE_MAX: usize = 63;
const RECORDED_MAX: usize = 16 << 10;
/// Maximum number of a Node's taints that are read. With that many, some come from other clients.
pub(crate) const TAINTS_MAX: usize = 64;
/// Placeholder for all labels that no kubelet may set.
const PROTECTED: &str = "node-restriction.kubernetes.io/kept";
/// Maximum number of Nodes that are being removed at the same time.
pub(crate) const NODES_MAX: usize = 128;

/// A patch of a Node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodePatch<'a> {
    metadata: NodePatchMetadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<NodePatchSpec<'a>>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodePatchMetadata<'a> {
    /// UID and resource version make the patch fail if the object was replaced or changed.
    uid: Option<&'a str>,
    resource_version: Option<&'a str>,
    labels: BTreeMap<&'static str, Option<String>>,
}

#[derive(Clone, Debug, Serialize)]
struct NodePatchSpec<'a> {
    taints: &'a [Taint],
}

impl TenantApi {
    /// Prepares the Lease of a Node that is about to join, with or without `reapAfter`.
    pub async fn prepare_lease(&self, node: &str, reap_after: Option<&str>) -> Result<(), TenantApiError> {
        let leases = self.leases();
        let found = limited("a Lease", leases.get_opt(node)).await?;
        if let Some(found) = &found {
            // A Lease with an owner belongs to a deleted Node, and is about to be
            // garbage-collected.
            let is_outdated = !found.meta().owner_references.as_deref().unwrap_or_default().is_empty();
            let current = found.labels().get(labels::REAP_AFTER).map(String::as_str);
            if !is_outdated && current == reap_after && found.0.is_ok() {
                return Ok(());
            }
            self.delete_lease(node, found.uid()).await?;
        }
        if let Some(time) = reap_after {
            let lease = Lenient(Ok(build_lease(node, time)));
            limited("a Lease", leases.create(&PostParams::default(), &lease)).await?;
        }
        Ok(())
    }

    /// Lists the Leases with `reapAfter`, as far as they can be decoded.
    pub async fn reap_leases(&self) -> Result<Vec<Lease>, TenantApiError> {
        let params = ListParams::default().labels(labels::REAP_AFTER);
        list_pages("Leases", &self.leases(), params, PAGES, trim).await
    }

    /// Lists the Nodes that are being removed, as far as they can be decoded.
    pub async fn reaping_nodes(&self) -> Result<Vec<Node>, TenantApiError> {
        let (api, mut found) = (Api::all(self.client.clone()), Vec::new());
        let collect = |node| {
            found.push(strip(node));
            (found.len() == NODES_MAX).then_some(())
        };
        let params = ListParams::default().labels(labels::REAPING);
        find_in_pages("Nodes", &api, params, PAGES, collect).await?;
        Ok(found)
    }

    /// Returns the current Lease of a Node, if it can be decoded.
    pub async fn lease(&self, node: &str) -> Result<Option<Lease>, TenantApiError> {
        let found = limited("a Lease", self.leases().get_opt(node)).await?;
        Ok(found.and_then(|lease| lease.0.ok()).map(trim))
    }

    /// Deletes the Lease of a Node, with its UID as a precondition.
    pub async fn delete_lease(&self, node: &str, uid: Option<String>) -> Result<(), TenantApiError> {
        let endpoint = Request::new(self.leases().resource_url());
        match self.change("a Lease", endpoint.delete(node, &only(uid, None))).await {
            Err(error) if error.is_of_another() => Ok(()),
            other => other,
        }
    }

    /// Sets the mark and the taints of a Node, unless it has changed.
    pub async fn mark_node(
        &self,
        node: &Node,
        mark: Option<Timestamp>,
        taints: Option<&[Taint]>,
    ) -> Result<(), TenantApiError> {
        let mark = mark.map(|mark| mark.as_second().to_string());
        let patch = NodePatch {
            metadata: NodePatchMetadata {
                uid: node.metadata.uid.as_deref(),
                resource_version: node.metadata.resource_version.as_deref(),
                labels: [(labels::REAPING, mark)].into(),
            },
            spec: taints.map(|taints| NodePatchSpec { taints }),
        };
        let nodes = Api::<Lenient<Node>>::all(self.client.clone());
        let (name, params) = (node.name_any(), PatchParams::default());
        let patch = Patch::Merge(&patch);
        limited("a Node", nodes.patch(&name, &params, &patch)).await.map(|_| ())
    }

    /// Deletes a Node, unless it has changed.
    pub async fn delete_node(&self, node: &Node) -> Result<(), TenantApiError> {
        let nodes = Api::<Lenient<Node>>::all(self.client.clone());
        let endpoint = Request::new(nodes.resource_url());
        let params = only(node.uid(), node.resource_version());
        self.change("a Node", endpoint.delete(&node.name_any(), &params)).await
    }

    /// Publishes an event about a Node. A failure is only logged: an event is not worth a failed
    /// step.
    pub async fn publish_node_event(&self, node: &Node, reason: &str, note: String) {
        let reporter = Reporter {
            controller: "yoke.drzzl.io/operator".into(),
            instance: None,
        };
        let recorder = Recorder::new(self.client.clone(), reporter);
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reap".into(),
            secondary: None,
        };
        let published = limited("an event", recorder.publish(&event, &node.object_ref(&()))).await;
        if let Err(error) = published {
            tracing::debug!(error = %crate::chain(&error), "writing an event failed");
        }
    }

    fn leases(&self) -> Api<Lenient<Lease>> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

fn only(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams::background().preconditions(Preconditions { uid, resource_version })
}

/// Builds a Lease without a renew time. The kubelet renews it, and sets the missing fields.
fn build_lease(node: &str, reap_after: &str) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(NAMESPACE.into()),
            labels: Some([(labels::REAP_AFTER.to_owned(), reap_after.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            ..LeaseSpec::default()
        }),
    }
}

/// Reduces a Node to the fields that are read, since other clients may make it large. The rest is
/// its taints, and the labels and annotations that protect it. A truncated value no longer matches
/// what was recorded, so it protects the Node too.
fn strip(mut node: Node) -> Node {
    let short = |text: &mut String| cut(text, VALUE_MAX);
    let restricted = node.labels().keys().any(|key| is_restricted(key));
    let mark = node.labels_mut().remove(labels::REAPING);
    let mut remaining_labels: BTreeMap<_, _> = mark
        .map(|mark| (labels::REAPING.to_owned(), mark))
        .into_iter()
        .collect();
    remaining_labels.values_mut().for_each(short);
    remaining_labels.extend(restricted.then(|| (PROTECTED.to_owned(), String::new())));
    let mut recorded = node.annotations_mut().remove(labels::JOINED_TAINTS);
    if let Some(recorded) = &mut recorded {
        cut(recorded, RECORDED_MAX);
    }
    let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.truncate(TAINTS_MAX);
    for taint in &mut taints {
        cut(&mut taint.key, KEY_MAX);
        short(&mut taint.effect);
        taint.value.iter_mut().for_each(short);
    }
    Node {
        metadata: ObjectMeta {
            name: node.metadata.name,
            uid: node.metadata.uid,
            resource_version: node.metadata.resource_version,
            deletion_timestamp: node.metadata.deletion_timestamp,
            labels: Some(remaining_labels),
            annotations: recorded.map(|recorded| [(labels::JOINED_TAINTS.to_owned(), recorded)].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// Reduces a Lease to the fields that are read, since other clients may make it large.
fn trim(mut lease: Lease) -> Lease {
    let reap_after = lease.labels_mut().remove_entry(labels::REAP_AFTER);
    let reap_after = reap_after.map(|(key, mut time)| {
        cut(&mut time, VALUE_MAX);
        (key, time)
    });
    let owner = lease.owner_references().iter().find(|owner| owner.kind == "Node");
    let owner = owner.map(|owner| OwnerReference {
        uid: owner.uid.chars().take(UID_MAX).collect(),
        ..OwnerReference::default()
    });
    Lease {
        metadata: ObjectMeta {
            name: lease.metadata.name,
            uid: lease.metadata.uid,
            creation_timestamp: lease.metadata.creation_timestamp,
            labels: Some(reap_after.into_iter().collect()),
            owner_references: Some(owner.into_iter().collect()),
            ..ObjectMeta::default()
        },
        spec: lease.spec.map(|spec| LeaseSpec {
            renew_time: spec.renew_time,
            ..LeaseSpec::default()
        }),
    }
}
