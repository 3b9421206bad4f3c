//! Sends clusters to sleep, and wakes them, by the clock; and those to sleep that nobody uses, for which it asks their stores.
//!
//! Asked is only when it may be time: a cluster that sleeps after an hour is asked once an hour, if nobody uses it.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use yoke_api::sleep::SleepReason;
use yoke_api::{Cluster, Reason};

use super::gate::{self, ControlPlane};
use super::identity::Identity;
use super::idle::{self, Next};
use super::observe::Observed;
use super::obstacles::find_possible;
use super::probe::BASE_EVERY;
use super::rest::{self, Rest, Word};
use super::status::Outcome;
use super::store_api::StoreApiError;
use super::{patch, schedule, store_api};
use crate::conditions;
use crate::context::{ActivitySeen, Context};
use crate::error::ReconcileError;
use crate::events::Notice;

/// When to ask again who did not answer, and when to look again whether what stands against sleep is gone.
const AGAIN: Duration = Duration::from_secs(15);
/// The same, of what is not known yet.
const SOON: Duration = Duration::from_secs(1);

/// Notes of a Cluster that it is to sleep, or to wake, if it is time. `None`: the object is gone.
pub(super) async fn heed(
    context: &Context,
    cluster: Cluster,
    identity: &Identity,
    observed: &Observed,
) -> Result<Option<Cluster>, ReconcileError> {
    let Some(cluster) = heed_schedules(context, cluster, identity).await? else {
        return Ok(None);
    };
    match heed_workers(context, cluster).await? {
        Some(cluster) => heed_use(context, cluster, identity, observed).await,
        None => Ok(None),
    }
}

/// Says of it when it was used, and whether it could go to sleep by itself.
pub(super) async fn tell(context: &Context, cluster: &Cluster, identity: &Identity, outcome: &mut Outcome) {
    outcome.strands_nodes = rest::strands_nodes(cluster);
    outcome.used = context.awake(&identity.id).activity.and_then(|seen| seen.used);
    if matches!(outcome.control_plane, ControlPlane::Running { .. }) && !outcome.paused {
        let age = outcome.inside.is_ok().then_some(BASE_EVERY);
        outcome.sleep_possible = Some(find_possible(context, cluster, &identity.id, age).await);
    }
}

/// How long it may take until it is looked at again.
pub(super) fn find_pause(context: &Context, identity: &Identity) -> Duration {
    let Some(seen) = context.awake(&identity.id).activity else {
        return Duration::MAX;
    };
    seen.due.saturating_duration_since(Instant::now()).max(SOON)
}

/// Does what the schedules of a Cluster say.
async fn heed_schedules(
    context: &Context,
    cluster: Cluster,
    identity: &Identity,
) -> Result<Option<Cluster>, ReconcileError> {
    let due = schedule::plan_due(&cluster, Timestamp::now()).filter(|_| !cluster.spec.paused);
    let Some(due) = due else {
        return Ok(Some(cluster));
    };
    let sleeps = matches!(due.word, Some(Word::Sleep(_)));
    // A control plane whose spec is refused goes on: that it slept would be carried out long after, under those who use it.
    if sleeps && !is_carried_out(&cluster) {
        return patch::note(context, &cluster, None, Some(due.time)).await;
    }
    // It stays due.
    if sleeps && find_possible(context, &cluster, &identity.id, Some(AGAIN)).await.status != Some(true) {
        return Ok(Some(cluster));
    }
    if let Some(word) = due.word {
        tracing::info!(cluster = %identity.id, ?word, time = %due.time, "a schedule is done");
    }
    patch::note(context, &cluster, due.word, Some(due.time)).await
}

/// Wakes a Cluster whose workers could not come back if it slept on.
async fn heed_workers(context: &Context, cluster: Cluster) -> Result<Option<Cluster>, ReconcileError> {
    let remaining = rest::plan_renewal(&cluster, Timestamp::now());
    if remaining.is_none_or(|remaining| !remaining.is_zero()) {
        return Ok(Some(cluster));
    }
    let noted = patch::note(context, &cluster, Some(Word::Wake), None).await?;
    // Somebody may have woken it meanwhile.
    let woken = |cluster: &Cluster| {
        let activity = cluster.status.as_ref()?.activity.as_ref()?;
        activity.wake_requested_time.clone()
    };
    if noted
        .as_ref()
        .is_some_and(|noted| !Rest::of(noted).is_asleep() && woken(noted) == woken(&cluster))
    {
        let notice = Notice {
            warning: false,
            action: "Wake",
            reason: Reason::WokenForWorkers,
            note: "It has slept for as long as the certificates of its Nodes allow, and wakes for them to renew those."
                .to_owned(),
        };
        context.events.publish(&cluster, &[notice]).await;
    }
    Ok(noted)
}

/// Sends a Cluster to sleep that nobody has used for long enough.
async fn heed_use(
    context: &Context,
    cluster: Cluster,
    identity: &Identity,
    observed: &Observed,
) -> Result<Option<Cluster>, ReconcileError> {
    let id = &identity.id;
    let control_plane = gate::plan_control_plane(observed.stateful_set.as_deref(), &observed.pods);
    let (Some(after), ControlPlane::Running { pod, started, .. }, false) = (
        cluster.spec.sleep.inactivity(),
        control_plane,
        !is_carried_out(&cluster) || Rest::of(&cluster).is_asleep(),
    ) else {
        if context.awake(id).activity.is_some() {
            context.note_awake(id, |awake| awake.activity = None);
        }
        return Ok(Some(cluster));
    };
    let key = (pod, cluster.metadata.generation);
    if let Some(seen) = context.awake(id).activity
        && seen.key == key
        && Instant::now() < seen.due
    {
        return Ok(Some(cluster));
    }
    let mut pods = observed.pods.iter();
    let asked = match pods.find(|pod| pod.metadata.uid.as_ref() == Some(&key.0)) {
        Some(pod) => store_api::find_activity(pod).await,
        None => Err(StoreApiError::NoAddress),
    };
    let told = context.awake(id).told.filter(|(pod, _)| *pod == key.0);
    let served = told.map(|(_, since)| since.elapsed());
    let next = match &asked {
        Ok(report) => idle::plan_next(report, started, served, after),
        Err(error) => {
            tracing::info!(cluster = %id, error = %crate::chain(error), "not known when the cluster was last used");
            Next::Look(AGAIN)
        }
    };
    let (is_time, pause) = match next {
        Next::Sleep => (true, AGAIN),
        Next::Look(pause) => (false, pause),
    };
    let used = asked.ok().and_then(|report| report.used(started));
    // How many Nodes there are is known soon after the operator has started.
    let is_new = context.awake(id).nodes.is_none();
    let due = Instant::now() + if is_new { pause.min(SOON) } else { pause };
    context.note_awake(id, |awake| awake.activity = Some(ActivitySeen { key, due, used }));
    if !is_time || find_possible(context, &cluster, id, Some(AGAIN)).await.status != Some(true) {
        return Ok(Some(cluster));
    }
    tracing::info!(cluster = %id, ?used, "nobody uses the cluster: it goes to sleep");
    patch::note(context, &cluster, Some(Word::Sleep(SleepReason::Inactivity)), None).await
}

/// Whether it is known of the spec as it is now that it is carried out.
fn is_carried_out(cluster: &Cluster) -> bool {
    let observed = cluster.status.as_ref().and_then(|status| status.observed_generation);
    conditions::is_carried_out(cluster) && observed == cluster.metadata.generation
}
