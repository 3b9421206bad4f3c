//! The answer of the ingress to callers of a Cluster while no API is available.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use yoke_api::Reason;
use yoke_api::ingress::Asleep;

use crate::cluster::context::Context;
use crate::cluster::failover::node_loss;
use crate::cluster::history::had_api;
use crate::cluster::ingress_config;
use crate::cluster::observe::View;
use crate::cluster::sleep::state;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;

/// Returns the next ingress message, and records since when callers reach the API if it opens now.
/// `missing_store` is the reason why there is no store; `wanted` is the message of a sleeping
/// Cluster.
pub(crate) fn update_message(
    context: &Context,
    view: &View<'_>,
    missing_store: Option<Reason>,
    wanted: Option<Asleep>,
) -> Option<Asleep> {
    let before = ingress_config::read_published(context, &view.identity).and_then(|published| published.asleep);
    let wait = || find_delay(context, view, missing_store);
    let message = state::next_ingress_message(
        wanted,
        before.as_ref(),
        is_answering(context, view),
        wait,
        Timestamp::now(),
    );
    if let (Some(Asleep::Waking { .. }), None, Some(pod)) = (&before, &message, view.observed.staying_pod()) {
        record_ingress_opened(context, &view.identity, pod);
    }
    message
}

/// The reason why a wake is delayed, as a sentence for callers; `None` while the wake is not late.
fn find_delay(context: &Context, view: &View<'_>, missing_store: Option<Reason>) -> Option<String> {
    let starts = &context.queues.starts;
    if !starts.started_before(&view.identity.id, state::LONGEST_WAKE) {
        return None;
    }
    let set = view.observed.stateful_set.as_deref();
    let control_plane = node_loss::plan_control_plane(context, &view.identity, set, &view.observed);
    match (control_plane, missing_store) {
        (ControlPlane::Pending(why), _) => Some(why),
        (ControlPlane::Failing(failure), _) => Some(failure.to_string()),
        (ControlPlane::Running { .. }, _) => {
            let failure = view.observed.staying_pod().and_then(control_plane::find_restarted);
            Some(failure.map_or_else(
                || "The API server does not answer yet.".to_owned(),
                |failure| failure.to_string(),
            ))
        }
        // Without the text of the host's NATS: every caller reads this message.
        (ControlPlane::Absent, Some(reason)) => Some(format!(
            "Its store is not available ({reason}). See the Cluster's condition StoreReady."
        )),
        (ControlPlane::Absent | ControlPlane::Asleep | ControlPlane::GoingToSleep, _) => {
            Some("No pod is created yet. See the Cluster's condition Ready.".to_owned())
        }
    }
}

/// Records since when the ingress admits callers to this pod after a wake, unless that is recorded
/// already.
pub(crate) fn record_ingress_opened(context: &Context, identity: &Identity, pod: &Pod) {
    let Some(uid) = pod.uid() else {
        return;
    };
    context.memory.update_running(&identity.id, |running| {
        if running.ingress_opened.as_ref().is_none_or(|(known, _)| *known != uid) {
            running.ingress_opened = Some((uid, Instant::now()));
        }
    });
}

/// Whether the API is known to answer, in a pod that is not being deleted.
pub(crate) fn is_answering(context: &Context, view: &View<'_>) -> bool {
    // The cache may lag behind the published configuration, and the kubelet behind the API. On a
    // first start the kubelet does not know when the start is complete.
    let id = &view.identity.id;
    let known = context.memory.running(id).ingress_opened.map(|(pod, _)| pod);
    let is_ready = had_api(&view.cluster) && view.observed.readiness().is_ok();
    view.observed.staying_pod().is_some_and(|pod| {
        let uid = &pod.metadata.uid;
        // After a node loss the Pod status is stale, so it is not trusted.
        !context.losses.has(id, uid.as_deref()) && (is_ready || known.is_some() && known == *uid)
    })
}
