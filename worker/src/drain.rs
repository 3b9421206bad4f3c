//! Empties the worker's Node: nothing new is put there, and what runs there is asked to go elsewhere, within a limit.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, EvictParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::clock::to_line;
use crate::output::say;

const ROUND: Duration = Duration::from_secs(1);
/// One request of the many; a control plane that does not answer keeps no worker.
const REQUEST: Duration = Duration::from_secs(10);
const MIRROR: &str = "kubernetes.io/config.mirror";
/// A node has no more Pods than this by default, and a larger one is drained in turns.
const PAGE: u32 = 250;

/// What is to be done about a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It would come back at once, or is no work of anybody's any more.
    Leave,
    /// It is on its way.
    Wait,
    Evict,
}

/// Pure.
fn plan(pod: &Pod) -> Step {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let mut owners = pod.owner_references().iter();
    let returns = owners.any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true));
    if returns || pod.annotations().contains_key(MIRROR) {
        Step::Leave
    } else if pod.metadata.deletion_timestamp.is_some() {
        // Its containers may have ended: the kubelet still has to say so, and then it is gone.
        Step::Wait
    } else if matches!(phase, Some("Succeeded" | "Failed")) {
        Step::Leave
    } else {
        Step::Evict
    }
}

/// Cordons the Node, and evicts its Pods until there are none or the time is over. Says what did not work; none of it is a
/// reason to stay.
pub(crate) async fn drain(client: &Client, node: &str, limit: Duration) {
    if tokio::time::timeout(limit, empty(client, node)).await.is_err() {
        say(&format!(
            "Pods are left on Node {node} after {limit:?}; they end with it"
        ));
    }
}

async fn empty(client: &Client, node: &str) {
    let nodes = Api::<Node>::all(client.clone());
    let cordon = json!({"spec": {"unschedulable": true}});
    match limited(nodes.patch(node, &PatchParams::default(), &Patch::Merge(&cordon))).await {
        Ok(_) => {}
        // It was never there, or somebody was faster.
        Err(kube::Error::Api(status)) if status.is_not_found() => return,
        Err(error) => say(&format!("cannot cordon Node {node}: {}", to_line(&error))),
    }
    let pods = Api::<Pod>::all(client.clone());
    let here = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .limit(PAGE);
    let mut told = None;
    loop {
        let found = match limited(pods.list(&here)).await {
            Ok(list) => list.items,
            Err(error) => return say(&format!("cannot list the Pods of Node {node}: {}", to_line(&error))),
        };
        let left: Vec<_> = found.into_iter().filter(|pod| plan(pod) != Step::Leave).collect();
        if left.is_empty() {
            return;
        }
        if told.replace(left.len()) != Some(left.len()) {
            say(&format!("Pods that have to go: {}", left.len()));
        }
        for pod in left.iter().filter(|pod| plan(pod) == Step::Evict) {
            evict(client, pod).await;
        }
        sleep(ROUND).await;
    }
}

async fn evict(client: &Client, pod: &Pod) {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    match limited(pods.evict(&name, &EvictParams::default())).await {
        Ok(_) => {}
        // 429: a PodDisruptionBudget wants it to wait, and it is asked again in the next round.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 429) => {}
        Err(error) => say(&format!("cannot evict Pod {namespace}/{name}: {}", to_line(&error))),
    }
}

/// Deletes the Node. A kubelet's own certificate does not allow it by Kubernetes' own rules; the cluster's may.
pub(crate) async fn remove_node(client: &Client, node: &str) {
    let nodes = Api::<Node>::all(client.clone());
    match limited(nodes.delete(node, &Default::default())).await {
        Ok(_) => say(&format!("Node {node} is deleted")),
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(kube::Error::Api(status)) if status.is_forbidden() => say(&format!(
            "the cluster does not let a worker delete its Node: `kubectl delete node {node}` does"
        )),
        Err(error) => say(&format!("cannot delete Node {node}: {}", to_line(&error))),
    }
}

async fn limited<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let late = |_| kube::Error::Service(format!("no answer within {REQUEST:?}").into());
    tokio::time::timeout(REQUEST, request).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_come_back_is_left() {
        let owner =
            |kind: &str| json!({"apiVersion": "apps/v1", "kind": kind, "name": "a", "uid": "u", "controller": true});
        for (rule, metadata, status, expected) in [
            ("a Pod of nobody", json!({}), json!({"phase": "Running"}), Step::Evict),
            ("a Pod that waits", json!({}), json!({"phase": "Pending"}), Step::Evict),
            (
                "a Pod of a ReplicaSet",
                json!({"ownerReferences": [owner("ReplicaSet")]}),
                json!({"phase": "Running"}),
                Step::Evict,
            ),
            (
                "a Pod of a DaemonSet",
                json!({"ownerReferences": [owner("DaemonSet")]}),
                json!({"phase": "Running"}),
                Step::Leave,
            ),
            (
                "a Pod of the kubelet's own",
                json!({"annotations": {MIRROR: "x"}}),
                json!({"phase": "Running"}),
                Step::Leave,
            ),
            (
                "a Pod that is done",
                json!({}),
                json!({"phase": "Succeeded"}),
                Step::Leave,
            ),
            (
                "a Pod that goes",
                json!({"deletionTimestamp": "2026-11-22T21:00:00Z"}),
                json!({"phase": "Running"}),
                Step::Wait,
            ),
            (
                "a Pod that goes, and has ended",
                json!({"deletionTimestamp": "2026-11-22T21:00:00Z"}),
                json!({"phase": "Succeeded"}),
                Step::Wait,
            ),
        ] {
            let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
            assert_eq!(plan(&pod), expected, "{rule}");
        }
    }
}
