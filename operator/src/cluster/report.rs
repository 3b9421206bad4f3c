//! The last step of a reconcile: writes the status, publishes events and metrics, and decides when to
//! reconcile the Cluster again.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::controller::Action as Requeue;
use yoke_api::cluster::{ClusterStatus, Phase};
use yoke_api::ingress::Asleep;
use yoke_api::{Cluster, ConditionType};

use crate::cluster::context::Context;
use crate::cluster::execute::{Executed, Failure};
use crate::cluster::lifecycle::ttl;
use crate::cluster::observe::View;
use crate::cluster::outcome::Outcome;
use crate::cluster::sleep::{ingress_message, inputs, schedule, state};
use crate::cluster::tenant_cluster::addons;
use crate::cluster::{ingress_config, jitter, object, requeue, status};
use crate::error::ReconcileError;
use crate::model::CLUSTER_CONTROLLER;
use crate::model::conditions::{self, State};

/// Reports what a reconcile did, and returns when to reconcile again.
pub(crate) async fn report(context: &Context, view: &View<'_>, executed: Executed) -> Result<Requeue, ReconcileError> {
    match executed {
        // The concurrent write may have been a status update, which triggers no reconcile.
        Executed::Expired => Ok(Requeue::requeue(ttl::DELETION_REQUEUE)),
        Executed::Failed(failure) => {
            report_failure(context, view, &failure).await;
            Err(failure.error)
        }
        Executed::Done(outcome) => {
            publish_outcome(context, view, &outcome).await?;
            Ok(Requeue::requeue(find_requeue_delay(context, view, &outcome)))
        }
    }
}

/// Time until the next reconcile: the shortest of all delays that apply.
fn find_requeue_delay(context: &Context, view: &View<'_>, outcome: &Outcome) -> Duration {
    let (cluster, now) = (&view.cluster, Timestamp::now());
    let store_missing_since = conditions::find_lacking(cluster, ConditionType::StoreReady);
    let delay = requeue::requeue_after(outcome, store_missing_since, now)
        .min(inputs::until_next_query(context, &view.identity))
        .min(addons::until_next_check(context, &view.identity));
    let due = [
        state::late_after(outcome.ingress_message.as_ref(), now),
        view.lifetime,
        schedule::plan_until_due(cluster, now),
        state::plan_renewal(cluster, now),
    ];
    due.into_iter()
        .flatten()
        .fold(jitter::spread_requeue(delay), Duration::min)
}

/// Writes the status that follows from an outcome, and publishes the events.
async fn publish_outcome(context: &Context, view: &View<'_>, outcome: &Outcome) -> Result<(), ReconcileError> {
    let (cluster, id) = (&view.cluster, &view.identity.id);
    let before = cluster.status.clone().unwrap_or_default();
    let (status, states) = status::plan_status(cluster, &view.identity, view.config, outcome, Timestamp::now());
    context.memory.update(id, |memory| memory.failures = None);
    if !object::write_status(context, cluster, &status).await? {
        return Ok(());
    }
    let event_types = list_event_types(&before, outcome);
    let notices = conditions::build_notices(&states, &before.conditions, &event_types, "Reconcile");
    context.host.events.publish(cluster, &notices).await;
    if let Some(woken) = state::plan_woken(&status) {
        object::request_sleep(context, cluster, None).await?;
        let seconds = Timestamp::now().duration_since(woken).as_secs_f64();
        context.metrics.observe_wake(seconds);
        tracing::info!(controller = CLUSTER_CONTROLLER, cluster = %id, seconds, "cluster is awake");
    }
    if let Some(seconds) = first_ready_seconds(cluster, &before, &status, Timestamp::now()) {
        context.metrics.observe_first_ready(seconds);
        tracing::info!(controller = CLUSTER_CONTROLLER, cluster = %id, seconds, "cluster is ready for the first time");
    }
    Ok(())
}

/// The condition types whose changes are published as events.
fn list_event_types(before: &ClusterStatus, outcome: &Outcome) -> Vec<ConditionType> {
    // A new Cluster that is awake is not worth an event.
    let is_new = conditions::find(&before.conditions, ConditionType::Asleep).is_none();
    let mut event_types = match is_new {
        true => status::REPORTED[1..].to_vec(),
        false => status::REPORTED.to_vec(),
    };
    // Every other cause of `Degraded` has an event of another condition.
    let is_degraded = outcome.takeover_failed() || outcome.fails_in_part();
    event_types.extend(is_degraded.then_some(ConditionType::Degraded));
    event_types
}

/// Seconds from the creation of a Cluster until now, if it is Ready for the first time.
fn first_ready_seconds(
    cluster: &Cluster,
    before: &ClusterStatus,
    status: &ClusterStatus,
    now: Timestamp,
) -> Option<f64> {
    let is_first = before.history.iter().all(|entry| entry.completed.is_none());
    let ready = conditions::find(&status.conditions, ConditionType::Ready)?;
    let created = cluster
        .creation_timestamp()
        .filter(|_| is_first && ready.status == "True")?;
    Some(now.duration_since(created.0).as_secs_f64())
}

/// Reports a failed reconcile: in the status, in events, and to callers that wait at the ingress.
async fn report_failure(context: &Context, view: &View<'_>, failure: &Failure) {
    let (cluster, id) = (&view.cluster, &view.identity.id);
    let (status, changes) = plan_failed_status(view, failure, Timestamp::now());
    let before = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let notices = conditions::build_notices(&changes, before, &status::REPORTED_ON_FAILURE, "Reconcile");
    context.host.events.publish(cluster, &notices).await;
    if let Err(error) = object::write_status(context, cluster, &status).await {
        tracing::warn!(cluster = %id, error = %crate::chain(&error), "status cannot be written");
    }
    if let Err(error) = publish_failure(context, view, &failure.error).await {
        tracing::warn!(cluster = %id, error = %crate::chain(&error), "failure cannot be published to the ingress");
    }
}

/// The status of a failed reconcile, and the states of the conditions that it changes.
fn plan_failed_status(
    view: &View<'_>,
    failure: &Failure,
    now: Timestamp,
) -> (ClusterStatus, Vec<(ConditionType, State)>) {
    let cluster = &view.cluster;
    let (reason, message) = (failure.error.reason(), format!("{}.", crate::chain(&failure.error)));
    let mut changes = vec![(ConditionType::Degraded, State::yes(reason, message.clone()))];
    let accepted = failure.accepted.clone();
    changes.extend(accepted.map(|accepted| (ConditionType::Accepted, accepted)));
    if view.observed.readiness().is_err() {
        changes.push((ConditionType::Ready, State::no(reason, message)));
    }
    let phase = cluster.status.as_ref().and_then(|status| status.phase);
    let mut status = status::plan_partial_status(cluster, phase.unwrap_or(Phase::Provisioning), &changes, now);
    if failure.accepted.is_none() {
        // The status still describes the previous spec, so its observed generation stays.
        status.observed_generation = cluster.status.as_ref().and_then(|status| status.observed_generation);
    }
    (status, changes)
}

/// Publishes the failure to callers that are waiting for the Cluster to wake.
async fn publish_failure(context: &Context, view: &View<'_>, error: &ReconcileError) -> Result<(), ReconcileError> {
    let cluster = &view.cluster;
    let owns_objects = view.observed.namespace.is_some() && !view.observed.is_foreign;
    let is_refused = conditions::status_of(cluster, ConditionType::Accepted) == Some("False");
    if !owns_objects || is_refused || cluster.spec.paused || state::SleepState::of(cluster).is_asleep() {
        return Ok(());
    }
    let before = ingress_config::read_published(context, &view.identity).and_then(|published| published.asleep);
    let answers = ingress_message::is_answering(context, view);
    // A problem that is published already stays: a reconcile without this failure found it, and
    // will find it again.
    if !answers && matches!(before, Some(Asleep::Waking { problem: Some(_), .. })) {
        return Ok(());
    }
    // The reason only, not its causes: they may concern the host, and every caller reads this text.
    let wait = || {
        Some(format!(
            "The host cannot apply the Cluster ({}). See its condition Degraded.",
            error.reason()
        ))
    };
    let message = state::next_ingress_message(None, before.as_ref(), answers, wait, Timestamp::now());
    ingress_config::publish_sleep_state(context, &view.identity, message).await
}
