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
use kube::runtime::reflector::ObjectRef;
use yoke_api::labels;

use super::build::doors::{self, Open};
use super::build::{hosted, stateful_set};
use super::identity::Identity;
use super::observe::Observed;
use super::takeover;
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
    let first = takeover::find_first(context, identity, observed.stateful_set.as_deref());
    let service = hosted::build_service(identity, open.konnectivity, first);
    tokio::try_join!(
        async { Ok(context.clusters.apply(&context.caches.services, &service).await?) },
        restrict(context, identity, observed, open, is_asleep),
    )?;
    Ok(())
}

/// The NetworkPolicy, as long as there is whom it restricts.
async fn restrict(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    open: Open,
    is_asleep: bool,
) -> Result<(), ReconcileError> {
    let hosted = identity.hosted();
    let is_there = context.caches.network_policies.has(hosted.as_str(), doors::NAME);
    let is_needed = !is_asleep
        || runs(observed)
        // Before it goes, the host API itself is asked: a watch may lag behind.
        || is_there && may_run(context, identity).await?;
    if !is_needed {
        if is_there {
            context.note(&identity.id, |seen| seen.is_unrestricted = true);
            let key = ObjectRef::<NetworkPolicy>::new(doors::NAME).within(hosted.as_str());
            let api = Api::namespaced(context.client.clone(), hosted.as_str());
            context.clusters.delete_named(&api, &key, |_| true).await?;
        }
        return Ok(());
    }
    let policy = doors::build_network_policy(identity, &context.config, open);
    // The watch may not tell yet that it was removed.
    if context.seen(&identity.id).is_unrestricted {
        context.clusters.apply_unseen(&policy).await?;
        context.note(&identity.id, |seen| seen.is_unrestricted = false);
        return Ok(());
    }
    context
        .clusters
        .apply(&context.caches.network_policies, &policy)
        .await?;
    Ok(())
}

/// Whether a pod is seen, or was asked for.
fn runs(observed: &Observed) -> bool {
    observed.stateful_set.is_some() && !observed.is_asleep() || !observed.pods.is_empty()
}

/// Whether the host API has a pod, or one may come of what was asked for before.
async fn may_run(context: &Context, identity: &Identity) -> Result<bool, ReconcileError> {
    let hosted = identity.hosted();
    let sets = Api::<StatefulSet>::namespaced(context.client.clone(), hosted.as_str());
    let set = sets.get_opt(stateful_set::NAME).await;
    let set = set.map_err(ReconcileError::host("the control plane"))?;
    if set.is_some_and(|set| !has_stopped(&set)) {
        return Ok(true);
    }
    let pods = Api::<Pod>::namespaced(context.client.clone(), hosted.as_str());
    let ours = ListParams::default()
        .labels(&format!("{}={}", labels::ID, identity.id))
        .limit(1);
    let pods = pods.list_metadata(&ours).await;
    Ok(!pods
        .map_err(ReconcileError::host("the control plane's pods"))?
        .items
        .is_empty())
}

/// Whether a StatefulSet makes no pods any more: its controller knows that there is to be none.
fn has_stopped(set: &StatefulSet) -> bool {
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
    let seen = set.status.as_ref().and_then(|status| status.observed_generation);
    replicas == Some(0) && seen == set.metadata.generation
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
