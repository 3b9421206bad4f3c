//! Nodes that are removed when they fall silent, in a tenant's API: by the Lease that each kubelet renews.
//!
//! The Lease is made before its Node is let in, with a label that says after which time; a kubelet goes on with the one that
//! it finds, and it goes with the Node. So what was promised is kept beside what it is held against, and read with it.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Resource as _, ResourceExt as _};
use serde::Serialize;
use yoke_api::{Lenient, labels};

use super::leaving::is_restricted;
use super::pages::{Pages, list_pages};
use super::{TenantApi, TenantApiError, limited};

/// Where kubelets have their Leases.
const NAMESPACE: &str = "kube-node-lease";
/// As a kubelet has it.
const LEASE_SECONDS: i32 = 40;
/// Leases in one page, and Nodes: whoever writes one may put as many values into it as an object of a tenant's may have.
const PAGE: u32 = 8;
/// A cluster of Kubernetes has no more Nodes than are on these.
pub(super) const PAGES: Pages = Pages { size: PAGE, max: 625 };
/// Characters by which an owner is known.
const UID_MAX: usize = 64;
/// Nodes that are removed at a time, at most.
pub(crate) const NODES_MAX: usize = 128;

/// A part of a Node.
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
    /// These make the patch fail if the object is another one, or another version, by now.
    uid: Option<&'a str>,
    resource_version: Option<&'a str>,
    labels: BTreeMap<&'static str, Option<String>>,
}

#[derive(Clone, Debug, Serialize)]
struct NodePatchSpec<'a> {
    taints: &'a [Taint],
}

impl TenantApi {
    /// Has the Lease of a Node that is about to be let in say when it is removed, or that it never is.
    pub async fn prepare_lease(&self, node: &str, reap_after: Option<&str>) -> Result<(), TenantApiError> {
        let leases = self.leases();
        let found = limited("a Lease", leases.get_opt(node)).await?;
        if let Some(found) = &found {
            // One with an owner is of a Node that is gone, and about to go with it.
            let is_left = !found.meta().owner_references.as_deref().unwrap_or_default().is_empty();
            let said = found.labels().get(labels::REAP_AFTER).map(String::as_str);
            if !is_left && said == reap_after && found.0.is_ok() {
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

    /// The Leases that say when their Nodes are removed, as far as they can be read.
    pub async fn reap_leases(&self) -> Result<Vec<Lease>, TenantApiError> {
        let params = ListParams::default().labels(labels::REAP_AFTER);
        list_pages("its Leases", &self.leases(), params, PAGES, trim).await
    }

    /// The Nodes that are about to be removed, as far as they can be read.
    pub async fn reaping_nodes(&self) -> Result<Vec<Node>, TenantApiError> {
        let mut params = ListParams::default().labels(labels::REAPING).limit(PAGE);
        let (api, mut found) = (Api::<Lenient<Node>>::all(self.client.clone()), Vec::new());
        while found.len() < NODES_MAX {
            let list = limited("its Nodes", api.list(&params)).await?;
            found.extend(list.items.into_iter().filter_map(|node| node.0.ok()).map(strip));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break,
            }
        }
        found.truncate(NODES_MAX);
        Ok(found)
    }

    /// The Lease of a Node as it is now, if it can be read.
    pub async fn lease(&self, node: &str) -> Result<Option<Lease>, TenantApiError> {
        let found = limited("a Lease", self.leases().get_opt(node)).await?;
        Ok(found.and_then(|lease| lease.0.ok()).map(trim))
    }

    /// Deletes the Lease of a Node, if it is still this one.
    pub async fn delete_lease(&self, node: &str, uid: Option<String>) -> Result<(), TenantApiError> {
        let params = only(uid, None);
        let deleted = limited("a Lease", self.leases().delete(node, &params)).await;
        match deleted {
            Err(error) if error.is_of_another() => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Sets the mark and the taints of a Node that is still as it was seen.
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

    /// Deletes a Node that is still as it was seen.
    pub async fn delete_node(&self, node: &Node) -> Result<(), TenantApiError> {
        let nodes = Api::<Lenient<Node>>::all(self.client.clone());
        let params = only(node.uid(), node.resource_version());
        limited("a Node", nodes.delete(&node.name_any(), &params))
            .await
            .map(|_| ())
    }

    /// Writes an event about a Node. A failure is logged: no event is worth failing for.
    pub async fn tell_of_node(&self, node: &Node, reason: &str, note: String) {
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
        let told = limited("an event", recorder.publish(&event, &node.object_ref(&()))).await;
        if let Err(error) = told {
            tracing::debug!(error = %crate::chain(&error), "event cannot be written");
        }
    }

    fn leases(&self) -> Api<Lenient<Lease>> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

fn only(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams::background().preconditions(Preconditions { uid, resource_version })
}

/// A kubelet renews the Lease that it finds, and sets what it lacks.
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

/// What is looked at of a Node: of labels and annotations, which may be large, those that keep it.
fn strip(mut node: Node) -> Node {
    let is_said = |key: &String| key == labels::REAPING || is_restricted(key);
    node.labels_mut().retain(|key, _| is_said(key));
    node.annotations_mut().retain(|key, _| key == labels::JOINED_TAINTS);
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
        spec: node.spec,
        status: None,
    }
}

/// A Lease without what nobody here asks for: others write it, as large as they like.
fn trim(mut lease: Lease) -> Lease {
    let said = lease.labels_mut().remove_entry(labels::REAP_AFTER);
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
            labels: Some(said.into_iter().collect()),
            owner_references: Some(owner.into_iter().collect()),
            ..ObjectMeta::default()
        },
        spec: lease.spec.map(|spec| LeaseSpec {
            renew_time: spec.renew_time,
            ..LeaseSpec::default()
        }),
    }
}
