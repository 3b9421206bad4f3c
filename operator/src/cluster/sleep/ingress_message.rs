//! Answers of the ingress to callers while no API runs.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use yoke_api::ingress::Asleep;
use yoke_api::{Cluster, Reason};

use crate::cluster::context::Context;
use crate::cluster::credentials::persisted;
use crate::cluster::failover::node_loss;
use crate::cluster::lifecycle::revoke;
use crate::cluster::observe::Observed;
use crate::cluster::sleep::state;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;

/// Returns the ingress message for callers while no API is available. `missing_store` is the reason
/// why there is no store.
pub(crate) fn ingress_message_for(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    missing_store: Option<Reason>,
    wanted: Option<Asleep>,
) -> Option<Asleep> {
    let before = revoke::read_ingress_config(context, identity).and_then(|told| told.asleep);
    let answers = answers(context, cluster, identity, observed);
    let set = observed.stateful_set.as_deref();
    let wait = || match (
        node_loss::plan_control_plane(context, identity, set, observed),
        missing_store,
    ) {
        _ if !context.queues.starts.started_before(&identity.id, state::LONGEST_WAKE) => None,
        (ControlPlane::Pending(why), _) => Some(why),
        (ControlPlane::Failing(failure), _) => Some(failure.to_string()),
        (ControlPlane::Running { .. }, _) => {
            let failure = observed.staying_pod().and_then(control_plane::find_restarted);
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
    };
    let message = state::next_ingress_message(wanted, before.as_ref(), answers, wait, Timestamp::now());
    if let (Some(Asleep::Waking { .. }), None, Some(pod)) = (&before, &message, observed.staying_pod()) {
        record_ingress_opened(context, identity, pod);
    }
    message
}

/// Records since when the ingress admits callers to this pod after a wake, unless that is recorded
/// already.
pub(crate) fn record_ingress_opened(context: &Context, identity: &Identity, pod: &Pod) {
    let Some(uid) = pod.uid() else {
        return;
    };
    context.memory.note_awake(&identity.id, |awake| {
        if awake.ingress_opened.as_ref().is_none_or(|(known, _)| *known != uid) {
            awake.ingress_opened = Some((uid, Instant::now()));
        }
    });
}

/// Whether the API is known to answer, in a pod that is not being deleted.
pub(crate) fn answers(context: &Context, cluster: &Cluster, identity: &Identity, observed: &Observed) -> bool {
    // The cache may lag behind the published configuration, and the kubelet behind the API. On a
    // first start the kubelet does not know when the start is complete.
    let known = context.memory.awake(&identity.id).ingress_opened.map(|(pod, _)| pod);
    let found = persisted::had_api(cluster) && observed.answers().is_ok();
    observed.staying_pod().is_some_and(|pod| {
        let uid = &pod.metadata.uid;
        // After a node loss the Pod status is stale, so it is not trusted.
        !context.losses.has(&identity.id, uid.as_deref()) && (found || known.is_some() && known == *uid)
    })
}
