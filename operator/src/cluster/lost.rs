//! A control plane whose pod was lost with its machine: what is known of it, and how the pod goes.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;

use super::build::place;
use super::delete;
use super::gate::{self, ControlPlane};
use super::identity::Identity;
use super::observe::Observed;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::loss::Lost;
use crate::tenant_api::Way;

/// The pod that was lost: lately, or before the control plane that there is came in its place.
pub(super) fn find(context: &Context, identity: &Identity, present: Option<&StatefulSet>) -> Option<Lost> {
    let lately = context.losses.of(&identity.id);
    lately.or_else(|| place::read_lost(present?))
}

/// Takes a pod away that was lost lately, without its kubelet. `incarnation` is what comes in its place: until the
/// StatefulSet's controller has seen that, it would make the same pod again.
pub(super) async fn remove(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    incarnation: u64,
) -> Result<(), ReconcileError> {
    let Some(lost) = context.losses.of(&identity.id) else {
        return Ok(());
    };
    let Some(pod) = observed.pods.iter().find(|pod| is_lost(pod, &lost)) else {
        return Ok(());
    };
    if !is_seen(observed.stateful_set.as_deref(), incarnation) {
        return Ok(());
    }
    delete::force(context, &[pod.as_ref()]).await?;
    context.apis.forget_way(&identity.id, Way::Inside);
    context.note_awake(&identity.id, |awake| awake.slow = None);
    Ok(())
}

/// The state of a control plane, but for a pod that was lost.
pub(super) fn plan_control_plane(
    context: &Context,
    identity: &Identity,
    set: Option<&StatefulSet>,
    observed: &Observed,
) -> ControlPlane {
    let lost = context.losses.of(&identity.id);
    let is_there = |pod: &&std::sync::Arc<Pod>| !lost.as_ref().is_some_and(|lost| is_lost(pod, lost));
    let pods: Vec<_> = observed.pods.iter().filter(is_there).collect();
    gate::plan_control_plane(set, &pods)
}

fn is_lost(pod: &Pod, lost: &Lost) -> bool {
    pod.metadata.uid.as_ref() == Some(&lost.pod)
}

/// Whether the controller of StatefulSets knows of a start.
fn is_seen(set: Option<&StatefulSet>, incarnation: u64) -> bool {
    let Some(set) = set else {
        return false;
    };
    gate::running_incarnation(Some(set)) == Some(incarnation) && gate::is_observed(set)
}
