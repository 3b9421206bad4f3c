//! Whether a control plane reaches workers through konnectivity agents, of a Cluster that leaves that to the operator.

use kube::ResourceExt as _;
use yoke_api::cluster::Konnectivity;
use yoke_api::{Cluster, JoinToken};

use super::build::stateful_set;
use super::gate::{self, ControlPlane};
use super::identity::Identity;
use super::observe::{self, Observed};
use crate::cache::Caches;
use crate::conditions;

/// The Cluster with what was decided: agents from its first JoinToken or Node on, for good, since without workers it has no use for
/// them, and a control plane that gets them starts anew.
pub(super) fn decide(caches: &Caches, mut cluster: Cluster, observed: &Observed) -> Cluster {
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

/// Whether a Cluster has a JoinToken, by which workers are to come.
pub(super) fn are_awaited(caches: &Caches, cluster: &Cluster) -> bool {
    let is_joined = |token: &JoinToken| is_of(token, cluster);
    caches.join_tokens.find(is_joined).is_some()
}

/// Whether a control plane is yet to start anew with agents, or otherwise, of a Cluster that leaves them to the operator and has a
/// JoinToken: a worker that joins now would find its API away in a moment.
pub(crate) fn are_due(caches: &Caches, cluster: &Cluster, identity: &Identity) -> bool {
    if cluster.spec.konnectivity != Konnectivity::Automatic || !conditions::is_carried_out(cluster) {
        return false;
    }
    let observed = observe::observe_identity(caches, identity);
    let set = observed.stateful_set.as_deref();
    let control_plane = gate::plan_control_plane(set, &observed.pods);
    !set.is_some_and(stateful_set::has_konnectivity)
        || !matches!(control_plane, ControlPlane::Running { current: true, .. })
}

/// By what it says itself.
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
    use crate::cluster::fixtures::cluster;

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
