//! Applies the Service and the NetworkPolicy of a control plane.
//!
//! ```text
//!                        pod exists or may start   asleep
//!  Service                        ✓                  ✓
//!  NetworkPolicy                  ✓                  –     each costs every node of the host something
//! ```
//!
//! No pod is ever without its NetworkPolicy: the policy is applied before the pod is requested, and
//! deleted after the pod is gone.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::ListParams;
use yoke_api::labels;

use crate::cluster::context::Context;
use crate::cluster::failover::takeover;
use crate::cluster::observed::Observed;
use crate::cluster::resources::network_policy::{self, AllowedPeers};
use crate::cluster::resources::objects;
use crate::error::ReconcileError;
use crate::host_api::apply::ApplyError;
use crate::host_api::comparison::NotCached;
use crate::model::control_plane::{self, NAME};
use crate::model::identity::Identity;

/// Applies the Service, and applies or deletes the NetworkPolicy.
pub(super) async fn apply_service_and_policy(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    peers: AllowedPeers,
    is_asleep: bool,
) -> Result<(), ReconcileError> {
    let needs_policy = !is_asleep || may_have_pods(context, identity, observed).await?;
    let first = takeover::find_serving_ordinal(context, identity, observed.stateful_set.as_deref());
    let service = objects::build_service(identity, peers.konnectivity, first);
    let policy = async {
        match needs_policy {
            true => apply_policy(context, identity, peers).await,
            false => delete_policy(context, identity).await,
        }
    };
    tokio::try_join!(context.applier.apply(&context.host.caches.services, &service), policy)?;
    Ok(())
}

/// Applies the NetworkPolicy.
async fn apply_policy(context: &Context, identity: &Identity, peers: AllowedPeers) -> Result<(), ApplyError> {
    let policy = network_policy::build_network_policy(identity, &context.host.config, peers);
    // The watch may not have reported yet that it was deleted.
    if context.memory.seen(&identity.id).is_unrestricted {
        context.applier.apply(&NotCached, &policy).await?;
        context
            .memory
            .update(&identity.id, |memory| memory.is_unrestricted = false);
        return Ok(());
    }
    let known = &context.host.caches.network_policies;
    context.applier.apply(known, &policy).await
}

/// Deletes the NetworkPolicy.
async fn delete_policy(context: &Context, identity: &Identity) -> Result<(), ApplyError> {
    if has_policy(context, identity) {
        context
            .memory
            .update(&identity.id, |memory| memory.is_unrestricted = true);
        let hosted = identity.hosted();
        context
            .applier
            .delete_at::<NetworkPolicy>(hosted.as_str(), network_policy::NAME)
            .await?;
    }
    Ok(())
}

fn has_policy(context: &Context, identity: &Identity) -> bool {
    let policies = &context.host.caches.network_policies;
    policies.has(identity.hosted().as_str(), network_policy::NAME)
}

/// Whether a pod exists, or may still be created for an earlier spec of the StatefulSet.
async fn may_have_pods(context: &Context, identity: &Identity, observed: &Observed) -> Result<bool, ReconcileError> {
    if observed.stateful_set.is_some() && !observed.is_asleep() || !observed.pods.is_empty() {
        return Ok(true);
    }
    // The watch may lag behind, so the host API must confirm this before the NetworkPolicy is
    // deleted.
    if !has_policy(context, identity) {
        return Ok(false);
    }
    let hosted = identity.hosted();
    let sets = Api::<StatefulSet>::namespaced(context.host.client.clone(), hosted.as_str());
    let set = sets.get_opt(NAME).await;
    let set = set.map_err(ReconcileError::host("the control plane"))?;
    if set.is_some_and(|set| !has_stopped(&set)) {
        return Ok(true);
    }
    let pods = Api::<Pod>::namespaced(context.host.client.clone(), hosted.as_str());
    let of_cluster = ListParams::default().labels(&format!("{}={}", labels::ID, identity.id));
    let found = pods.list_metadata(&of_cluster.limit(1)).await;
    let found = found.map_err(ReconcileError::host("the control plane's pods"))?;
    Ok(!found.items.is_empty())
}

/// Whether a StatefulSet creates no more pods: its controller has seen that it has no replicas.
fn has_stopped(set: &StatefulSet) -> bool {
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
    replicas == Some(0) && control_plane::is_observed(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stateful_set_has_stopped_once_its_controller_has_seen_it() {
        for (rule, replicas, generation, seen, expected) in [
            ("stopped", 0, 2, Some(2), true),
            ("not seen yet", 0, 2, Some(1), false),
            ("never seen", 0, 1, None, false),
            ("runs", 1, 2, Some(2), false),
        ] {
            let set = serde_json::json!({
                "metadata": {"generation": generation},
                "spec": {"replicas": replicas, "selector": {}, "template": {}},
                "status": {"observedGeneration": seen, "replicas": 0},
            });
            assert_eq!(has_stopped(&serde_json::from_value(set).unwrap()), expected, "{rule}");
        }
    }
}
