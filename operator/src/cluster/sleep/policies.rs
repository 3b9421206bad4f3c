//! Sends clusters to sleep, and wakes them, by schedule or because no client uses them. The store
//! of a cluster reports its last use. A reconcile calls [`apply_sleep_policies`] before validation, and [`tell`]
//! before it writes the status.
//!
//! The store is queried only when sleep may be due: a cluster that sleeps after an hour is queried
//! once an hour while it is unused.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use yoke_api::sleep::SleepReason;
use yoke_api::{Cluster, Reason};

use crate::cluster::context::Context;
use crate::cluster::memory::ActivitySeen;
use crate::cluster::object;
use crate::cluster::observe::Observed;
use crate::cluster::outcome::Outcome;
use crate::cluster::sleep::blockers::find_possible;
use crate::cluster::sleep::idle::{self, Next};
use crate::cluster::sleep::schedule;
use crate::cluster::sleep::state::{self, SleepCommand, SleepState};
use crate::cluster::store::http::{self, StoreApiError};
use crate::cluster::tenant_cluster::probe::BASE_EVERY;
use crate::error::ReconcileError;
use crate::host_api::events::Notice;
use crate::model::conditions;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;

/// Interval for querying a store that did not answer, and for checking whether an obstacle to sleep
/// is gone.
const AGAIN: Duration = Duration::from_secs(15);
/// Interval while something is not known yet.
const SOON: Duration = Duration::from_secs(1);

/// Records a request to sleep or to wake in the status, if one is due. `None`: the object is gone.
pub(crate) async fn apply_sleep_policies(
    context: &Context,
    cluster: Cluster,
    identity: &Identity,
    observed: &Observed,
) -> Result<Option<Cluster>, ReconcileError> {
    let Some(cluster) = apply_schedule(context, cluster, identity).await? else {
        return Ok(None);
    };
    match wake_for_cert_renewal(context, cluster).await? {
        Some(cluster) => sleep_if_idle(context, cluster, identity, observed).await,
        None => Ok(None),
    }
}

/// Sets the time of last use, and whether the cluster could go to sleep automatically.
pub(crate) async fn tell(context: &Context, cluster: &Cluster, identity: &Identity, outcome: &mut Outcome) {
    outcome.outlives_node_certificates = state::outlives_node_certificates(cluster);
    outcome.used = context.memory.awake(&identity.id).activity.and_then(|seen| seen.used);
    if matches!(outcome.control_plane, ControlPlane::Running { .. }) && !outcome.paused {
        let age = outcome.inside.is_ok().then_some(BASE_EVERY);
        outcome.sleep_possible = Some(find_possible(context, cluster, &identity.id, age).await);
    }
}

/// Time until the next check for sleep is due.
pub(crate) fn find_pause(context: &Context, identity: &Identity) -> Duration {
    let Some(seen) = context.memory.awake(&identity.id).activity else {
        return Duration::MAX;
    };
    seen.due.saturating_duration_since(Instant::now()).max(SOON)
}

/// Applies the sleep schedules of a Cluster.
async fn apply_schedule(
    context: &Context,
    cluster: Cluster,
    identity: &Identity,
) -> Result<Option<Cluster>, ReconcileError> {
    let due = schedule::plan_due(&cluster, Timestamp::now()).filter(|_| !cluster.spec.paused);
    let Some(due) = due else {
        return Ok(Some(cluster));
    };
    let sleeps = matches!(due.word, Some(SleepCommand::Sleep(_)));
    // Skip the sleep of a refused spec: it would be applied long afterwards, while clients use the
    // cluster.
    if sleeps && !is_reconciled(&cluster) {
        return object::note(context, &cluster, None, Some(due.time)).await;
    }
    // The sleep stays due.
    if sleeps && find_possible(context, &cluster, &identity.id, Some(AGAIN)).await.status != Some(true) {
        return Ok(Some(cluster));
    }
    if let Some(word) = due.word {
        tracing::info!(cluster = %identity.id, ?word, time = %due.time, "sleep schedule applied");
    }
    object::note(context, &cluster, due.word, Some(due.time)).await
}

/// Wakes a Cluster whose workers could not reconnect after a longer sleep.
async fn wake_for_cert_renewal(context: &Context, cluster: Cluster) -> Result<Option<Cluster>, ReconcileError> {
    let remaining = state::plan_renewal(&cluster, Timestamp::now());
    if remaining.is_none_or(|remaining| !remaining.is_zero()) {
        return Ok(Some(cluster));
    }
    let noted = object::note(context, &cluster, Some(SleepCommand::Wake), None).await?;
    // A client may have woken it in between.
    let woken = |cluster: &Cluster| {
        let activity = cluster.status.as_ref()?.activity.as_ref()?;
        activity.wake_requested_time.clone()
    };
    if noted
        .as_ref()
        .is_some_and(|noted| !SleepState::of(noted).is_asleep() && woken(noted) == woken(&cluster))
    {
        let notice = Notice {
            warning: false,
            action: "Wake",
            reason: Reason::WokenForWorkers,
            note: "Woken so that its Nodes can renew their certificates; a longer sleep would outlast them.".to_owned(),
        };
        context.host.events.publish(&cluster, &[notice]).await;
    }
    Ok(noted)
}

/// Sends a Cluster to sleep that no client has used for long enough.
async fn sleep_if_idle(
    context: &Context,
    cluster: Cluster,
    identity: &Identity,
    observed: &Observed,
) -> Result<Option<Cluster>, ReconcileError> {
    let id = &identity.id;
    let control_plane = control_plane::plan_control_plane(observed.stateful_set.as_deref(), &observed.pods);
    let (Some(after), ControlPlane::Running { pod, started, .. }, false) = (
        cluster.spec.sleep.inactivity(),
        control_plane,
        !is_reconciled(&cluster) || SleepState::of(&cluster).is_asleep(),
    ) else {
        if context.memory.awake(id).activity.is_some() {
            context.memory.note_awake(id, |awake| awake.activity = None);
        }
        return Ok(Some(cluster));
    };
    let key = (pod, cluster.metadata.generation);
    if let Some(seen) = context.memory.awake(id).activity
        && seen.key == key
        && Instant::now() < seen.due
    {
        return Ok(Some(cluster));
    }
    let mut pods = observed.pods.iter();
    let asked = match pods.find(|pod| pod.metadata.uid.as_ref() == Some(&key.0)) {
        Some(pod) => http::find_activity(pod).await,
        None => Err(StoreApiError::NoAddress),
    };
    let ingress_opened = context.memory.awake(id).ingress_opened.filter(|(pod, _)| *pod == key.0);
    let served = ingress_opened.map(|(_, since)| since.elapsed());
    let next = match &asked {
        Ok(report) => idle::plan_next(report, started, served, after),
        Err(error) => {
            tracing::info!(cluster = %id, error = %crate::chain(error), "store did not report when the cluster was last used");
            Next::Look(AGAIN)
        }
    };
    let (is_time, pause) = match next {
        Next::Sleep => (true, AGAIN),
        Next::Look(pause) => (false, pause),
    };
    let used = asked.ok().and_then(|report| report.used(started));
    // The number of Nodes is known soon after the operator has started.
    let is_new = context.memory.awake(id).nodes.is_none();
    let due = Instant::now() + if is_new { pause.min(SOON) } else { pause };
    context
        .memory
        .note_awake(id, |awake| awake.activity = Some(ActivitySeen { key, due, used }));
    if !is_time || find_possible(context, &cluster, id, Some(AGAIN)).await.status != Some(true) {
        return Ok(Some(cluster));
    }
    tracing::info!(cluster = %id, ?used, "cluster is unused and goes to sleep");
    object::note(
        context,
        &cluster,
        Some(SleepCommand::Sleep(SleepReason::Inactivity)),
        None,
    )
    .await
}

/// Whether the current spec is known to be applied.
fn is_reconciled(cluster: &Cluster) -> bool {
    let observed = cluster.status.as_ref().and_then(|status| status.observed_generation);
    conditions::is_reconciled(cluster) && observed == cluster.metadata.generation
}
