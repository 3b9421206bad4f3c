//! Nodes that are removed when they fall silent, in a tenant's API: by the Lease that each kubelet renews.
//!
//! The Lease is made before its Node is let in, with a label that says after which time; a kubelet goes on with the one that
//! it finds, and it goes with the Node. So what was promised is kept beside what it is held against, and read with it.

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

use super::leaving::is_restricted;
use super::pages::{Pages, cut, find_in_pages, list_pages};
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
/// Bytes of a taint's key; of its value, its effect, and a label that is looked at; and of the taints that a Node was given by its
/// JoinToken. Kubernetes has no longer ones.
const KEY_MAX: usize = 317;
const VALUE_MAX: usize = 63;
const NOTED_MAX: usize = 16 << 10;
/// Taints of a Node that are looked at: of as many some are others'.
pub(crate) const TAINTS_MAX: usize = 64;
/// A label that stands for all that no kubelet sets.
const KEEPING: &str = "node-restriction.kubernetes.io/kept";
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
        let (api, mut found) = (Api::all(self.client.clone()), Vec::new());
        let keep = |node| {
            found.push(strip(node));
            (found.len() == NODES_MAX).then_some(())
        };
        let params = ListParams::default().labels(labels::REAPING);
        find_in_pages("its Nodes", &api, params, PAGES, keep).await?;
        Ok(found)
    }

    /// The Lease of a Node as it is now, if it can be read.
    pub async fn lease(&self, node: &str) -> Result<Option<Lease>, TenantApiError> {
        let found = limited("a Lease", self.leases().get_opt(node)).await?;
        Ok(found.and_then(|lease| lease.0.ok()).map(trim))
    }

    /// Deletes the Lease of a Node, if it is still this one.
    pub async fn delete_lease(&self, node: &str, uid: Option<String>) -> Result<(), TenantApiError> {
        let place = Request::new(self.leases().resource_url());
        match self.change("a Lease", place.delete(node, &only(uid, None))).await {
            Err(error) if error.is_of_another() => Ok(()),
            other => other,
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
        let place = Request::new(nodes.resource_url());
        let params = only(node.uid(), node.resource_version());
        self.change("a Node", place.delete(&node.name_any(), &params)).await
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

/// What is looked at of a Node, of which others write as much as they like: of labels and annotations those that keep it, and
/// its taints. What is cut short is no longer as it was given, and keeps the Node, too.
fn strip(mut node: Node) -> Node {
    let short = |text: &mut String| cut(text, VALUE_MAX);
    let restricted = node.labels().keys().any(|key| is_restricted(key));
    let mark = node.labels_mut().remove(labels::REAPING);
    let mut said: BTreeMap<_, _> = mark
        .map(|mark| (labels::REAPING.to_owned(), mark))
        .into_iter()
        .collect();
    said.values_mut().for_each(short);
    said.extend(restricted.then(|| (KEEPING.to_owned(), String::new())));
    let mut noted = node.annotations_mut().remove(labels::JOINED_TAINTS);
    if let Some(noted) = &mut noted {
        cut(noted, NOTED_MAX);
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
            labels: Some(said),
            annotations: noted.map(|noted| [(labels::JOINED_TAINTS.to_owned(), noted)].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// A Lease without what nobody here asks for: others write it, as large as they like.
fn trim(mut lease: Lease) -> Lease {
    let said = lease.labels_mut().remove_entry(labels::REAP_AFTER);
    let said = said.map(|(key, mut time)| {
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
