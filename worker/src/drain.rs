//! Drains the worker's Node: cordons it and evicts its Pods, within a timeout.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::error_chain::format_chain;
use crate::node::{REQUEST_LIMIT, read_uid, with_limit};
use crate::output::progress;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before the eviction of a Pod is retried that a PodDisruptionBudget has rejected, as in
/// `kubectl drain`.
const EVICTION_RETRY: Duration = Duration::from_secs(5);
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Page size of the Pod list. By default a Node has fewer Pods than this.
const PAGE: u32 = 250;
/// Upper bound for pages of one list. No kubelet runs more Pods.
const PAGES_MAX: u32 = 40;
/// Attempts to delete a Node.
const DELETE_TRIES: u32 = 5;
/// Upper bound of the deletion. Each attempt makes two requests if the server rejects it.
pub(crate) const REMOVE_LIMIT: Duration = REQUEST_LIMIT
    .saturating_mul(2)
    .saturating_add(POLL_INTERVAL)
    .saturating_mul(DELETE_TRIES);

/// Decision about a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Ignore: the Pod has finished, or its controller would recreate it at once.
    Ignore,
    /// Wait: the Pod is terminating.
    Wait,
    Evict,
}

/// Decides what to do about a Pod. Pure.
fn plan(pod: &Pod) -> Step {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let mut owners = pod.owner_references().iter();
    let returns = owners.any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true));
    if returns || pod.annotations().contains_key(MIRROR) {
        Step::Ignore
    } else if pod.metadata.deletion_timestamp.is_some() {
        // The containers may have ended. The Pod disappears after the kubelet has reported that.
        Step::Wait
    } else if matches!(phase, Some("Succeeded" | "Failed")) {
        Step::Ignore
    } else {
        Step::Evict
    }
}

/// The Node to drain. Another machine may have a Node of this name by now, so the UID counts too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

/// Cordons the Node, and evicts its Pods until none are left or the timeout expires. Prints
/// failures and continues. Returns whether no Pods are left.
pub(crate) async fn drain(client: &Client, node: Target<'_>, limit: Duration) -> bool {
    drain_within(client, node, limit, true).await
}

/// Deletes the Pods instead, which ignores PodDisruptionBudgets.
pub(crate) async fn delete_pods(client: &Client, node: Target<'_>, limit: Duration) -> bool {
    drain_within(client, node, limit, false).await
}

async fn drain_within(client: &Client, node: Target<'_>, limit: Duration, respect_budgets: bool) -> bool {
    let mut drain = Drain {
        client,
        node,
        respect_budgets,
        last_message: None,
        protected: HashMap::new(),
    };
    let emptied = tokio::time::timeout(limit, drain.run()).await.is_ok();
    if !emptied {
        progress(&format!("some Pods are still on Node {} after {limit:?}", node.name));
    }
    emptied
}

/// Result of cordoning the Node.
enum Cordon {
    Done,
    /// The Node does not exist.
    Gone,
    Retry,
}

struct Drain<'a> {
    client: &'a Client,
    node: Target<'a>,
    /// Whether PodDisruptionBudgets count.
    respect_budgets: bool,
    /// Last message, so that an unchanged state is not printed every second.
    last_message: Option<String>,
    /// Pods that a PodDisruptionBudget protects, by UID, and when to retry their eviction.
    protected: HashMap<String, Instant>,
}

impl Drain<'_> {
    async fn run(&mut self) {
        loop {
            match self.cordon().await {
                Cordon::Retry => sleep(POLL_INTERVAL).await,
                Cordon::Done => break,
                Cordon::Gone => return,
            }
        }
        loop {
            match self.list().await {
                Ok(pods) => {
                    let left: Vec<_> = pods.into_iter().filter(|pod| plan(pod) != Step::Ignore).collect();
                    if left.is_empty() {
                        return;
                    }
                    self.print_change(format!("draining; Pods left: {}", left.len()));
                    for pod in left.iter().filter(|pod| plan(pod) == Step::Evict) {
                        self.evict(pod).await;
                    }
                }
                Err(error) => self.print_error("list the Pods", &error),
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn cordon(&mut self) -> Cordon {
        let nodes = Api::<Node>::all(self.client.clone());
        // The UID is a precondition: the server rejects the change for another Node of this name.
        let cordon = json!({"metadata": {"uid": self.node.uid}, "spec": {"unschedulable": true}});
        match with_limit(nodes.patch(self.node.name, &PatchParams::default(), &Patch::Merge(&cordon))).await {
            Ok(_) => Cordon::Done,
            // The Node never existed, or another client has deleted it.
            Err(kube::Error::Api(status)) if status.is_not_found() => Cordon::Gone,
            Err(kube::Error::Api(status)) if status.code == 409 && is_another(self.client, self.node).await => {
                self.print_change(format!(
                    "Node {} now has another UID; it belongs to another machine and is not drained",
                    self.node.name
                ));
                Cordon::Gone
            }
            Err(error) => {
                self.print_error("cordon", &error);
                Cordon::Retry
            }
        }
    }

    /// Lists every Pod of the Node, page by page.
    async fn list(&self) -> kube::Result<Vec<Pod>> {
        let pods = Api::<Pod>::all(self.client.clone());
        let mut page = ListParams::default()
            .fields(&format!("spec.nodeName={}", self.node.name))
            .limit(PAGE);
        let mut found = Vec::new();
        for _ in 0..PAGES_MAX {
            let list = with_limit(pods.list(&page)).await?;
            found.extend(list.items);
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        Ok(found)
    }

    async fn evict(&mut self, pod: &Pod) {
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let uid = pod.uid().unwrap_or_default();
        if self.protected.get(&uid).is_some_and(|until| Instant::now() < *until) {
            return;
        }
        let pods = Api::<Pod>::namespaced(self.client.clone(), &namespace);
        let going = async {
            if self.respect_budgets {
                return pods.evict(&name, &EvictParams::default()).await.map(|_| ());
            }
            let same = DeleteParams::default().preconditions(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            });
            pods.delete(&name, &same).await.map(|_| ())
        };
        match with_limit(going).await {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(kube::Error::Api(status)) if status.code == 429 => {
                self.protected.insert(uid, Instant::now() + EVICTION_RETRY);
                self.print_change(format!("cannot evict Pod {namespace}/{name} yet: {}", status.message));
            }
            Err(error) => self.print_error(&format!("evict Pod {namespace}/{name}"), &error),
        }
    }

    fn print_error(&mut self, what: &str, error: &kube::Error) {
        self.print_change(format!(
            "Node {}: cannot {what}: {}",
            self.node.name,
            format_chain(error)
        ));
    }

    fn print_change(&mut self, line: String) {
        if self.last_message.as_ref() != Some(&line) {
            progress(&line);
            self.last_message = Some(line);
        }
    }
}

/// Reports after a conflict whether the name belongs to another Node. A concurrent change of this
/// Node is a conflict, too.
async fn is_another(client: &Client, node: Target<'_>) -> bool {
    let found = read_uid(client, node.name).await;
    found.is_ok_and(|found| found.is_some_and(|uid| uid != node.uid))
}

/// Deletes the Node. By the default rules of Kubernetes a kubelet's certificate does not permit
/// that; the rules of the cluster may.
pub(crate) async fn remove_node(client: &Client, node: Target<'_>) {
    let nodes = Api::<Node>::all(client.clone());
    let same = DeleteParams::default().preconditions(Preconditions {
        uid: Some(node.uid.to_owned()),
        resource_version: None,
    });
    let name = node.name;
    for tries in 1.. {
        let error = match with_limit(nodes.delete(name, &same)).await {
            Ok(_) => return progress(&format!("deleted Node {name}")),
            Err(kube::Error::Api(status)) if status.is_not_found() => return,
            Err(kube::Error::Api(status)) if status.code == 409 && is_another(client, node).await => {
                return progress(&format!(
                    "Node {name} now has another UID; it belongs to another machine and is not deleted"
                ));
            }
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                return progress(&format!(
                    "the cluster does not permit a worker to delete its Node; run `kubectl delete node {name}`"
                ));
            }
            Err(error) => error,
        };
        if tries == DELETE_TRIES {
            return progress(&format!("cannot delete Node {name}: {}", format_chain(&error)));
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests;
