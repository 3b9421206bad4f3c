//! The fifth step of a reconcile: executes the action that was decided.

use yoke_api::ingress::Asleep;

use crate::cluster::apply;
use crate::cluster::context::Context;
use crate::cluster::decide::Action;
use crate::cluster::failover::takeover;
use crate::cluster::ingress_config;
use crate::cluster::intervals::BASE_EVERY;
use crate::cluster::lifecycle::revoke::{self, Remaining};
use crate::cluster::lifecycle::{maintain, ttl};
use crate::cluster::observe::View;
use crate::cluster::outcome::Outcome;
use crate::cluster::requests::Request;
use crate::cluster::resources::objects::IngressIntent;
use crate::cluster::resources::{Blueprint, stateful_set};
use crate::cluster::sleep::blockers::find_possible;
use crate::cluster::sleep::state::{self, SleepState};
use crate::cluster::sleep::{ingress_message, record};
use crate::cluster::status;
use crate::cluster::stop::Stop;
use crate::cluster::validate::Accepted;
use crate::error::ReconcileError;
use crate::model::CLUSTER_CONTROLLER;
use crate::model::conditions::State;
use crate::model::control_plane::ControlPlane;
use crate::model::refusal::Refusal;

/// The result of the action.
#[derive(Debug)]
pub(crate) enum Executed {
    /// The Cluster was deleted.
    Expired,
    /// Everything that is possible now was done.
    Done(Box<Outcome>),
    /// The action failed.
    Failed(Failure),
}

/// A failed reconcile.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: ReconcileError,
    /// State of the condition `Accepted`; `None` if the spec was not validated.
    pub(crate) accepted: Option<State>,
}

/// Records the requests, then executes the action. The view has the Cluster as recorded.
pub(crate) async fn execute(
    context: &Context,
    view: &mut View<'_>,
    requests: &[Request],
    action: Action<'_>,
) -> Result<Executed, Stop> {
    record::record_requests(context, view, requests).await?;
    let accepted = status::plan_accepted(action.refusal());
    // Boxed because the futures are large: they have room for every await below, and hundreds run at
    // once.
    let result = match action {
        Action::Expire => {
            ttl::delete_expired(context, &view.cluster).await?;
            return Ok(Executed::Expired);
        }
        Action::Fail(error) => {
            return Ok(Executed::Failed(Failure {
                error: ReconcileError::Shared(error),
                accepted: None,
            }));
        }
        Action::Apply(accepted) => Box::pin(apply_spec(context, view, &accepted)).await,
        Action::Maintain(refusal) => Box::pin(maintain_refused(context, view, refusal)).await,
        Action::CopyOnly(accepted) => Box::pin(copy_only(context, view, accepted)).await,
        Action::Idle(accepted) => Box::pin(observe_only(context, view, accepted)).await,
    };
    Ok(match result {
        Ok(mut outcome) => {
            observe_sleep(context, view, &mut outcome).await;
            Executed::Done(Box::new(outcome))
        }
        Err(error) => Executed::Failed(Failure {
            error,
            accepted: Some(accepted),
        }),
    })
}

async fn apply_spec(context: &Context, view: &View<'_>, accepted: &Accepted<'_>) -> Result<Outcome, ReconcileError> {
    revoke::revoke(context, view, None).await?;
    let blueprint = Blueprint {
        identity: &view.identity,
        accepted,
        spec: &view.cluster.spec,
        config: view.config,
    };
    let outcome = apply::apply_accepted(context, view, &blueprint).await?;
    Ok(Outcome {
        version: Some(accepted.version.to_string()),
        heads_for: accepted.heads_for.map(|version| version.to_string()),
        ..outcome
    })
}

async fn maintain_refused(context: &Context, view: &View<'_>, refusal: Refusal) -> Result<Outcome, ReconcileError> {
    let remaining = stop_changes(context, view, Some(&refusal)).await?;
    let intent = update_intent(context, view, Some(&refusal), remaining);
    let outcome = maintain::maintain(context, view, intent, current_run_state(view)).await?;
    Ok(Outcome {
        accepted: Err(refusal),
        maintained: true,
        ..outcome
    })
}

async fn copy_only(
    context: &Context,
    view: &View<'_>,
    accepted: Result<(), Refusal>,
) -> Result<Outcome, ReconcileError> {
    let refusal = accepted.as_ref().err();
    let remaining = stop_changes(context, view, refusal).await?;
    let intent = update_intent(context, view, refusal, remaining);
    let outcome = maintain::copy_certificates(context, view, intent, current_run_state(view)).await?;
    Ok(Outcome {
        accepted,
        paused: true,
        ..outcome
    })
}

async fn observe_only(
    context: &Context,
    view: &View<'_>,
    accepted: Result<(), Refusal>,
) -> Result<Outcome, ReconcileError> {
    stop_changes(context, view, accepted.as_ref().err()).await?;
    Ok(Outcome {
        accepted,
        paused: view.cluster.spec.paused,
        ..Outcome::observed(&view.observed, current_run_state(view))
    })
}

/// Stops every change of the control plane of a Cluster whose spec is refused or paused: it keeps its
/// pod, so no other pod takes over. Returns the host names and sources that it may keep.
async fn stop_changes(
    context: &Context,
    view: &View<'_>,
    refusal: Option<&Refusal>,
) -> Result<Option<Remaining>, ReconcileError> {
    if let Some(refusal) = refusal {
        context.reconciles.failed(CLUSTER_CONTROLLER, refusal.reason);
    }
    context.queues.finish(&view.identity.id);
    takeover::release_terminating(context, &view.identity, &view.observed).await;
    takeover::ensure_budget(context, &view.identity, false).await?;
    revoke::revoke(context, view, refusal).await
}

/// The run state of a Cluster whose spec is not applied: what its StatefulSet runs now.
fn current_run_state(view: &View<'_>) -> SleepState {
    match SleepState::of(&view.cluster) {
        _ if !view.observed.is_asleep() => SleepState::Awake,
        SleepState::Awake => SleepState::Unchanged,
        run_state => run_state,
    }
}

/// The ingress configuration of a Cluster whose spec is not applied: what was published before,
/// without what was revoked.
fn update_intent(
    context: &Context,
    view: &View<'_>,
    refusal: Option<&Refusal>,
    remaining: Option<Remaining>,
) -> IngressIntent {
    let published = ingress_config::read_published(context, &view.identity);
    let (names, sources) = match remaining.and_then(|remaining| remaining.ingress_config) {
        Some(remaining) => (remaining.extra_names, remaining.allowed_sources),
        // Without a published configuration, use the sources of the spec: the API must not be open
        // to all.
        None => (
            vec![],
            published.map_or_else(
                || IngressIntent::of(&view.cluster.spec).sources,
                |published| published.allowed_sources,
            ),
        ),
    };
    let set = view.observed.stateful_set.as_deref();
    let wanted = refusal_message(view, refusal);
    IngressIntent {
        names,
        sources,
        konnectivity: set.is_some_and(stateful_set::has_konnectivity),
        asleep: ingress_message::update_message(context, view, None, wanted),
    }
}

/// The ingress message of a sleeping Cluster whose spec is not applied: no client can wake it.
fn refusal_message(view: &View<'_>, refusal: Option<&Refusal>) -> Option<Asleep> {
    let until = match refusal {
        _ if view.cluster.spec.paused => "while it is paused by spec.paused".to_owned(),
        Some(refusal) => format!("while its spec is refused: {}", refusal.message),
        None => SleepState::ByOwner.until().to_owned(),
    };
    view.observed.is_asleep().then(|| state::no_wake_message(&until))
}

/// Sets the time of last use, and whether the cluster could go to sleep automatically.
async fn observe_sleep(context: &Context, view: &View<'_>, outcome: &mut Outcome) {
    let id = &view.identity.id;
    outcome.outlives_node_certificates = state::outlives_node_certificates(&view.cluster);
    outcome.last_used = context
        .memory
        .running(id)
        .activity
        .and_then(|activity| activity.last_used);
    if matches!(outcome.control_plane, ControlPlane::Running { .. }) && !outcome.paused {
        let age = outcome.inside.is_ok().then_some(BASE_EVERY);
        outcome.sleep_possible = Some(find_possible(context, &view.cluster, id, age).await);
    }
}
