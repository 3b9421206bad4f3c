//! A control plane whose pod was lost with its machine, or is never ended by it: what is known of it, and how the pod goes.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::build::place;
use super::delete;
use super::gate::{self, ControlPlane};
use super::identity::Identity;
use super::observe::Observed;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::loss::Lost;
use crate::tenant_api::Way;

/// The pod that was lost: lately, or that no kubelet ends though its time is over, or before the control plane that there is came in
/// its place.
pub(super) fn find(context: &Context, identity: &Identity, observed: &Observed) -> Option<Lost> {
    let before = || place::read_lost(observed.stateful_set.as_deref()?);
    let lately = context.losses.of(&identity.id);
    lately.or_else(|| find_stuck(observed)).or_else(before)
}

/// The pod in whose place no other one comes, nor sleep, for no kubelet ends it. It may run on.
pub(super) fn find_stuck(observed: &Observed) -> Option<Lost> {
    let pod = gate::plan_stuck(observed.stateful_set.as_deref(), &observed.pods, Timestamp::now())?;
    let machine = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Some(Lost {
        pod: pod.metadata.uid.clone()?,
        machines: machine.into_iter().collect(),
    })
}

/// Takes pods away, without their kubelets, that were lost lately, or whose time is over. `incarnation` is what comes in their
/// place, and `lost` what that was made for: until the StatefulSet's controller has seen it, it would make the same pod again.
pub(super) async fn remove(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    incarnation: u64,
    lost: Option<&Lost>,
) -> Result<(), ReconcileError> {
    let set = observed.stateful_set.as_deref();
    if !is_seen(set, incarnation) {
        return Ok(());
    }
    let lately = context.losses.of(&identity.id);
    let mut pods = plan_removed(&observed.pods, lost, lately.as_ref());
    if pods.is_empty() {
        pods = gate::plan_replaced(set, &observed.pods, Timestamp::now());
    }
    if pods.is_empty() {
        return Ok(());
    }
    delete::force(context, &pods).await?;
    context.apis.forget_way(&identity.id, Way::Inside);
    context.note_awake(&identity.id, |awake| awake.slow = None);
    Ok(())
}

/// Pods that are taken away at once. One whose loss was noted since `lost` was looked up comes next: nothing was made for it yet.
fn plan_removed<'p>(pods: &'p [Arc<Pod>], lost: Option<&Lost>, lately: Option<&Lost>) -> Vec<&'p Pod> {
    let is_of = |lost: Option<&Lost>, pod: &Pod| lost.is_some_and(|lost| Some(&lost.pod) == pod.metadata.uid.as_ref());
    let pods = pods.iter().map(AsRef::as_ref);
    pods.filter(|pod| is_of(lost, pod) && is_of(lately, pod)).collect()
}

/// The state of a control plane, but for a pod that was lost.
pub(super) fn plan_control_plane(
    context: &Context,
    identity: &Identity,
    set: Option<&StatefulSet>,
    observed: &Observed,
) -> ControlPlane {
    let went = |pod: &&Arc<Pod>| context.losses.has(&identity.id, pod.metadata.uid.as_deref());
    let pods: Vec<_> = observed.pods.iter().filter(|pod| !went(pod)).collect();
    gate::plan_control_plane(set, &pods)
}

/// Whether the controller of StatefulSets knows of a start.
fn is_seen(set: Option<&StatefulSet>, incarnation: u64) -> bool {
    let Some(set) = set else {
        return false;
    };
    gate::running_incarnation(Some(set)) == Some(incarnation) && gate::is_observed(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_goes_when_what_comes_next_was_made_for_its_loss() {
        let mut pod = Pod::default();
        pod.metadata.uid = Some("a".to_owned());
        let pods = [Arc::new(pod)];
        let lost = |pod: &str| Lost {
            pod: pod.to_owned(),
            machines: ["one".to_owned()].into(),
        };
        let (it, another) = (lost("a"), lost("b"));
        for (rule, made_for, lately, expected) in [
            ("nothing is lost", None, None, 0),
            ("its loss was noted after the template was made", None, Some(&it), 0),
            ("that was made for an earlier loss", Some(&another), Some(&it), 0),
            ("that was made for it", Some(&it), Some(&it), 1),
            ("which is long ago", Some(&it), None, 0),
        ] {
            assert_eq!(plan_removed(&pods, made_for, lately).len(), expected, "{rule}");
        }
    }
}
