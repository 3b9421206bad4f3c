//! The way to a control plane, and whom it may reach.
//!
//! ```text
//!                        pod, or one is to come   asleep
//!  Service                        ✓                 ✓
//!  NetworkPolicy                  ✓                 –     each costs every machine of the host something
//! ```
//!
//! No pod is ever without its NetworkPolicy: it is applied before the pod is asked for, and goes after the pod is gone.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::ListParams;
use yoke_api::labels;

use super::build::doors::{self, Open};
use super::build::{hosted, stateful_set};
use super::identity::Identity;
use super::observe::Observed;
use super::{gate, takeover};
use crate::apply::{ApplyError, Unseen};
use crate::context::Context;
use crate::error::ReconcileError;

/// Makes the way to the control plane, and says who may go it, and where the control plane itself may go.
pub(super) async fn apply(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    open: Open,
    is_asleep: bool,
) -> Result<(), ReconcileError> {
    let is_restricted = !is_asleep || may_run(context, identity, observed).await?;
    let first = takeover::find_first(context, identity, observed.stateful_set.as_deref());
    let service = hosted::build_service(identity, open.konnectivity, first);
    let policy = async {
        match is_restricted {
            true => restrict(context, identity, open).await,
            false => lift(context, identity).await,
        }
    };
    tokio::try_join!(context.clusters.apply(&context.caches.services, &service), policy)?;
    Ok(())
}

/// Applies the NetworkPolicy.
async fn restrict(context: &Context, identity: &Identity, open: Open) -> Result<(), ApplyError> {
    let policy = doors::build_network_policy(identity, &context.config, open);
    // The watch may not tell yet that it was removed.
    if context.seen(&identity.id).is_unrestricted {
        context.clusters.apply(&Unseen, &policy).await?;
        context.note(&identity.id, |seen| seen.is_unrestricted = false);
        return Ok(());
    }
    let known = &context.caches.network_policies;
    context.clusters.apply(known, &policy).await
}

/// Removes it.
async fn lift(context: &Context, identity: &Identity) -> Result<(), ApplyError> {
    if has_policy(context, identity) {
        context.note(&identity.id, |seen| seen.is_unrestricted = true);
        let hosted = identity.hosted();
        let clusters = &context.clusters;
        clusters
            .delete_at::<NetworkPolicy>(hosted.as_str(), doors::NAME)
            .await?;
    }
    Ok(())
}

fn has_policy(context: &Context, identity: &Identity) -> bool {
    let policies = &context.caches.network_policies;
    policies.has(identity.hosted().as_str(), doors::NAME)
}

/// Whether there is a pod, or one may come of what was asked for before.
async fn may_run(context: &Context, identity: &Identity, observed: &Observed) -> Result<bool, ReconcileError> {
    if observed.stateful_set.is_some() && !observed.is_asleep() || !observed.pods.is_empty() {
        return Ok(true);
    }
    // Before the NetworkPolicy goes, the host API itself is asked: a watch may lag behind.
    if !has_policy(context, identity) {
        return Ok(false);
    }
    let hosted = identity.hosted();
    let sets = Api::<StatefulSet>::namespaced(context.client.clone(), hosted.as_str());
    let set = sets.get_opt(stateful_set::NAME).await;
    let set = set.map_err(ReconcileError::host("the control plane"))?;
    if set.is_some_and(|set| !has_stopped(&set)) {
        return Ok(true);
    }
    let pods = Api::<Pod>::namespaced(context.client.clone(), hosted.as_str());
    let ours = ListParams::default().labels(&format!("{}={}", labels::ID, identity.id));
    let found = pods.list_metadata(&ours.limit(1)).await;
    let found = found.map_err(ReconcileError::host("the control plane's pods"))?;
    Ok(!found.items.is_empty())
}

/// Whether a StatefulSet makes no pods any more: its controller knows that there is to be none.
fn has_stopped(set: &StatefulSet) -> bool {
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
    replicas == Some(0) && gate::is_observed(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stateful_set_has_stopped_when_its_controller_knows_it() {
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
