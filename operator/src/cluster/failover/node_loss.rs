//! Finds the pod of a control plane that was lost with its node, or that its kubelet never
//! terminates, and deletes it by force.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::cluster::context::Context;
use crate::cluster::failover::{pod_deletion, pods};
use crate::cluster::observed::Observed;
use crate::cluster::resources::affinity;
use crate::error::ReconcileError;
use crate::host_nodes::loss::LostPod;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;
use crate::tenant_client::Way;

/// The lost pod. The first of these that exists:
///
/// 1. a pod that was lost recently
/// 2. a pod that no kubelet terminates although its grace period is over
/// 3. the pod that the current control plane has replaced
pub(crate) fn find_lost_pod(context: &Context, identity: &Identity, observed: &Observed) -> Option<LostPod> {
    let replaced = || affinity::read_lost(observed.stateful_set.as_deref()?);
    let recent = context.losses.of(&identity.id);
    recent.or_else(|| find_stuck_pod(observed)).or_else(replaced)
}

/// The pod that blocks its successor, or sleep, because no kubelet terminates it. It may still run.
pub(crate) fn find_stuck_pod(observed: &Observed) -> Option<LostPod> {
    let pod = pods::plan_stuck(observed.stateful_set.as_deref(), &observed.pods, Timestamp::now())?;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Some(LostPod {
        pod: pod.metadata.uid.clone()?,
        nodes: node.into_iter().collect(),
    })
}

/// Force-deletes pods that were lost recently, or whose grace period is over. `incarnation`
/// replaces them, and `lost` is the pod that it was started for. Until the StatefulSet controller
/// has seen that incarnation, it would create the same pod again.
pub(crate) async fn delete_lost_pods(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    incarnation: u64,
    lost: Option<&LostPod>,
) -> Result<(), ReconcileError> {
    let set = observed.stateful_set.as_deref();
    if !has_seen(set, incarnation) {
        return Ok(());
    }
    let recent = context.losses.of(&identity.id);
    let mut pods = plan_deleted(&observed.pods, lost, recent.as_ref());
    if pods.is_empty() {
        pods = pods::plan_replaced(set, &observed.pods, Timestamp::now());
    }
    if pods.is_empty() {
        return Ok(());
    }
    pod_deletion::force_delete(context, &pods).await?;
    context.apis.forget_way(&identity.id, Way::Inside);
    context
        .memory
        .update_running(&identity.id, |running| running.probe_backoff = None);
    Ok(())
}

/// Pods to delete now. A pod whose loss was recorded after `lost` was read must wait: nothing
/// replaces it yet.
fn plan_deleted<'p>(pods: &'p [Arc<Pod>], lost: Option<&LostPod>, recent: Option<&LostPod>) -> Vec<&'p Pod> {
    let is_of =
        |lost: Option<&LostPod>, pod: &Pod| lost.is_some_and(|lost| Some(&lost.pod) == pod.metadata.uid.as_ref());
    let pods = pods.iter().map(AsRef::as_ref);
    pods.filter(|pod| is_of(lost, pod) && is_of(recent, pod)).collect()
}

/// The state of a control plane, without pods that were lost.
pub(crate) fn plan_control_plane(
    context: &Context,
    identity: &Identity,
    set: Option<&StatefulSet>,
    observed: &Observed,
) -> ControlPlane {
    let is_lost = |pod: &&Arc<Pod>| context.losses.has(&identity.id, pod.metadata.uid.as_deref());
    let pods: Vec<_> = observed.pods.iter().filter(|pod| !is_lost(pod)).collect();
    control_plane::plan_control_plane(set, &pods)
}

/// Whether the StatefulSet controller has seen an incarnation.
fn has_seen(set: Option<&StatefulSet>, incarnation: u64) -> bool {
    let Some(set) = set else {
        return false;
    };
    control_plane::running_incarnation(Some(set)) == Some(incarnation) && control_plane::is_observed(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_pod_is_deleted_once_its_replacement_is_requested() {
        let mut pod = Pod::default();
        pod.metadata.uid = Some("a".to_owned());
        let pods = [Arc::new(pod)];
        let lost = |pod: &str| LostPod {
            pod: pod.to_owned(),
            nodes: ["one".to_owned()].into(),
        };
        let (this, another) = (lost("a"), lost("b"));
        for (rule, replaced, recent, expected) in [
            ("no pod is lost", None, None, 0),
            ("loss recorded after the template was built", None, Some(&this), 0),
            ("template for an earlier loss", Some(&another), Some(&this), 0),
            ("template for this loss", Some(&this), Some(&this), 1),
            ("loss is long ago", Some(&this), None, 0),
        ] {
            assert_eq!(plan_deleted(&pods, replaced, recent).len(), expected, "{rule}");
        }
    }
}
