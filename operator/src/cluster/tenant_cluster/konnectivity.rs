//! Decides whether a control plane has a konnectivity-server, for a Cluster that leaves this to the
//! operator. The decision replaces `Automatic` in the copy of the spec that a reconcile works with.

use yoke_api::cluster::Konnectivity;
use yoke_api::{Cluster, JoinToken};

use crate::cluster::observed::{self, Observed};
use crate::cluster::ownership::is_token_of;
use crate::cluster::resources::stateful_set;
use crate::host_api::cache::Caches;
use crate::model::conditions;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;

/// Returns the Cluster with the decision in its spec: agents from its first JoinToken or Node on,
/// permanently. Without workers agents have no use, and adding them restarts the control plane.
pub(crate) fn resolve_konnectivity(caches: &Caches, mut cluster: Cluster, observed: &Observed) -> Cluster {
    if cluster.spec.konnectivity != Konnectivity::Automatic {
        return cluster;
    }
    let has_agents = observed
        .stateful_set
        .as_deref()
        .is_some_and(stateful_set::has_konnectivity);
    if has_agents || needs_agents(&cluster) || has_join_token(caches, &cluster) {
        cluster.spec.konnectivity = Konnectivity::Enabled;
    }
    cluster
}

/// Whether a Cluster has a JoinToken, with which workers will join.
pub(crate) fn has_join_token(caches: &Caches, cluster: &Cluster) -> bool {
    let is_of_cluster = |token: &JoinToken| is_token_of(token, cluster);
    caches.join_tokens.find(is_of_cluster).is_some()
}

/// Whether the control plane of a Cluster with a JoinToken has yet to restart, to get agents or for
/// another reason. It applies only to a Cluster that leaves agents to the operator. A worker that
/// joined now would lose the API in a moment.
pub(crate) fn agents_are_due(caches: &Caches, cluster: &Cluster, identity: &Identity) -> bool {
    if cluster.spec.konnectivity != Konnectivity::Automatic || !conditions::is_reconciled(cluster) {
        return false;
    }
    let observed = observed::find_by_identity(caches, identity);
    let set = observed.stateful_set.as_deref();
    let control_plane = control_plane::plan_control_plane(set, &observed.pods);
    !set.is_some_and(stateful_set::has_konnectivity)
        || !matches!(control_plane, ControlPlane::Running { current: true, .. })
}

/// Whether its Nodes or add-ons need agents.
fn needs_agents(cluster: &Cluster) -> bool {
    let nodes = cluster.status.as_ref().and_then(|status| status.nodes);
    nodes.is_some_and(|nodes| nodes > 0) || cluster.spec.addons.metrics_server.enabled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::cluster;

    #[test]
    fn workers_and_metrics_server_need_agents() {
        let with = |nodes: Option<i32>, metrics: bool| {
            let mut cluster = cluster("a");
            cluster.status = Some(yoke_api::ClusterStatus {
                nodes,
                ..Default::default()
            });
            cluster.spec.addons.metrics_server.enabled = metrics;
            needs_agents(&cluster)
        };
        assert!(!with(None, false));
        assert!(!with(Some(0), false));
        assert!(with(Some(1), false));
        assert!(with(None, true), "the API server reaches it through agents");
    }
}
