//! Records requests to sleep and to wake in the status of a Cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use yoke_api::{Cluster, Reason};

use crate::cluster::context::Context;
use crate::cluster::object;
use crate::cluster::observe::View;
use crate::cluster::requests::Request;
use crate::cluster::sleep::state::SleepState;
use crate::cluster::stop::Stop;
use crate::error::ReconcileError;
use crate::host_api::events::Notice;

/// Records requests one after the other. The view then has the Cluster as it is now, by the host
/// API.
pub(crate) async fn record_requests(context: &Context, view: &mut View<'_>, requests: &[Request]) -> Result<(), Stop> {
    for request in requests {
        let recorded = record_request(context, view, request).await?.ok_or(Stop::Changed)?;
        if recorded.metadata.generation != view.cluster.metadata.generation {
            return Err(Stop::Changed);
        }
        (view.cluster.metadata, view.cluster.status) = (recorded.metadata, recorded.status);
    }
    Ok(())
}

/// Records one request. Returns the Cluster as it is then; `None` if the object is gone.
async fn record_request(
    context: &Context,
    view: &View<'_>,
    request: &Request,
) -> Result<Option<Cluster>, ReconcileError> {
    let (cluster, id) = (&view.cluster, &view.identity.id);
    match request {
        Request::Expire => Ok(Some(cluster.clone())),
        Request::WithdrawSleep => object::request_sleep(context, cluster, None).await,
        Request::Annotation(_) => object::consume_sleep_annotation(context, cluster).await,
        Request::Schedule { command, time } => {
            if let Some(command) = command {
                tracing::info!(cluster = %id, ?command, %time, "sleep schedule applied");
            }
            object::record_policy_request(context, cluster, *command, Some(*time)).await
        }
        Request::WakeForNodeCertificates => {
            let recorded = object::record_policy_request(context, cluster, request.command(), None).await?;
            if recorded
                .as_ref()
                .is_some_and(|recorded| is_woken_by_request(recorded, cluster))
            {
                publish_wake(context, cluster).await;
            }
            Ok(recorded)
        }
        Request::SleepUnused => {
            let used = context
                .memory
                .running(id)
                .activity
                .and_then(|activity| activity.last_used);
            tracing::info!(cluster = %id, ?used, "cluster is unused and goes to sleep");
            object::record_policy_request(context, cluster, request.command(), None).await
        }
    }
}

/// Whether the Cluster was woken by the request, and not by a client in between.
fn is_woken_by_request(recorded: &Cluster, before: &Cluster) -> bool {
    let woken = |cluster: &Cluster| -> Option<Time> {
        let activity = cluster.status.as_ref()?.activity.as_ref()?;
        activity.wake_requested_time.clone()
    };
    !SleepState::of(recorded).is_asleep() && woken(recorded) == woken(before)
}

async fn publish_wake(context: &Context, cluster: &Cluster) {
    let notice = Notice {
        warning: false,
        action: "Wake",
        reason: Reason::WokenForWorkers,
        note: "Woken so that its Nodes can renew their certificates; a longer sleep would outlast them.".to_owned(),
    };
    context.host.events.publish(cluster, &[notice]).await;
}
