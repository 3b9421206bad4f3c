//! Decides whether a control plane has a konnectivity-server, for a Cluster that leaves this to the
//! operator. The decision replaces `Automatic` in the copy of the spec that a reconcile works with.

use kube::ResourceExt as _;
use yoke_api::cluster::Konnectivity;
use yoke_api::{Cluster, JoinToken};

use crate::cluster::observed::{self, Observed};
use crate::cluster::resources::stateful_set;
use crate::host_api::cache::Caches;
use crate::model::conditions;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;

/// Returns the Cluster with the decision in its spec: agents from its first JoinToken or Node on,
/// permanently. Without workers agents have no use, and adding them restarts the control plane.
pub(crate) fn decide(caches: &Caches, mut cluster: Cluster, observed: &Observed) -> Cluster {
    if cluster.spec.konnectivity != Konnectivity::Automatic {
        return cluster;
    }
    let has_agents = observed
        .stateful_set
        .as_deref()
        .is_some_and(stateful_set::has_konnectivity);
    if has_agents || wants_agents(&cluster) || are_awaited(caches, &cluster) {
        cluster.spec.konnectivity = Konnectivity::Enabled;
    }
    cluster
}

/// Whether a Cluster has a JoinToken, with which workers will join.
pub(crate) fn are_awaited(caches: &Caches, cluster: &Cluster) -> bool {
    let is_joined = |token: &JoinToken| is_of(token, cluster);
    caches.join_tokens.find(is_joined).is_some()
}

/// Whether the control plane of a Cluster with a JoinToken has yet to restart, to get agents or for
/// another reason. It applies only to a Cluster that leaves agents to the operator. A worker that
/// joined now would lose the API in a moment.
pub(crate) fn are_due(caches: &Caches, cluster: &Cluster, identity: &Identity) -> bool {
    if cluster.spec.konnectivity != Konnectivity::Automatic || !conditions::is_reconciled(cluster) {
        return false;
    }
    let observed = observed::find(caches, identity);
    let set = observed.stateful_set.as_deref();
    let control_plane = control_plane::plan_control_plane(set, &observed.pods);
    !set.is_some_and(stateful_set::has_konnectivity)
        || !matches!(control_plane, ControlPlane::Running { current: true, .. })
}

/// Whether its Nodes or add-ons need agents.
fn wants_agents(cluster: &Cluster) -> bool {
    let nodes = cluster.status.as_ref().and_then(|status| status.nodes);
    nodes.is_some_and(|nodes| nodes > 0) || cluster.spec.addons.metrics_server.enabled
}

fn is_of(token: &JoinToken, cluster: &Cluster) -> bool {
    token.spec.cluster_name == cluster.name_any() && token.metadata.namespace == cluster.metadata.namespace
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::cluster;

    #[test]
    fn workers_want_agents() {
        let with = |nodes: Option<i32>, metrics: bool| {
            let mut cluster = cluster("a");
            cluster.status = Some(yoke_api::ClusterStatus {
                nodes,
                ..Default::default()
            });
            cluster.spec.addons.metrics_server.enabled = metrics;
            wants_agents(&cluster)
        };
        assert!(!with(None, false));
        assert!(!with(Some(0), false));
        assert!(with(Some(1), false));
        assert!(with(None, true), "Kubernetes' API asks it through them");
    }

    #[test]
    fn a_join_token_is_of_the_cluster_that_it_names_beside_it() {
        let token = |name: &str, namespace: &str| {
            let token =
                serde_json::json!({"metadata": {"name": "t", "namespace": namespace}, "spec": {"clusterName": name}});
            serde_json::from_value::<JoinToken>(token).unwrap()
        };
        assert!(is_of(&token("a", "demo"), &cluster("a")));
        assert!(!is_of(&token("b", "demo"), &cluster("a")));
        assert!(!is_of(&token("a", "other"), &cluster("a")));
    }
}
