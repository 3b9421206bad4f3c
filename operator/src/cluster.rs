//! The Cluster controller.
//!
//! ```text
//!  Cluster, its Tenant and objects ─observe─▶ validate ─▶ build ─▶ gate ─▶ apply ─▶ status, events
//!                                              └─ refused: status says why, what runs is kept alive (keep)
//! ```

mod activity;
mod addons;
mod agents;
mod apply;
pub mod build;
mod copies;
mod delete;
mod doors;
mod expiry;
#[cfg(test)]
mod fixtures;
pub mod gate;
mod guard;
pub mod identity;
pub mod idle;
mod incarnation;
mod keep;
mod kept;
mod lost;
mod observe;
mod obstacles;
pub mod orphans;
mod outline;
mod pace;
mod patch;
mod probe;
pub mod rest;
pub mod schedule;
pub mod status;
mod store;
mod store_api;
mod takeover;
mod turns;
pub mod validate;
mod withdraw;
mod workers;

pub(crate) use agents::are_due as agents_are_due;
pub use copies::COPIED_AT_ONCE;
pub use guard::{Guard, Keeper};
#[cfg(test)]
pub(crate) use kept::data_of;
pub(crate) use kept::{find_left, is_of_tenant};
pub(crate) use observe::find_authority as find_authority_of;
pub use outline::Outline;
pub use probe::Answer;
pub use turns::{Rule, Turns};
pub use workers::{Workers, WorkersSeen};

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use yoke_api::ingress::Asleep;
use yoke_api::{Cluster, ConditionType, KubernetesVersion, Reason};
use yoke_pki::ParsedCertificate;
use yoke_pki::plan::AuthorityRole;
use yoke_runtime::Drain;

use crate::cache::ByIdentity;
use crate::conditions::{self, State};
use crate::context::Context;
use crate::error::ReconcileError;
use build::Blueprint;
use build::hosted::Asked;
use identity::Identity;
use observe::Observed;
use rest::Rest;
use status::Outcome;
use validate::{Accepted, Refusal, Surroundings};

/// Who took so long the last time is one whose API is late.
const LATE: Duration = Duration::from_secs(1);
/// Such Clusters of one Tenant that are reconciled at once: half of all that are at once.
pub const LATE_AT_ONCE: usize = 16;
/// Pace of counting Clusters by phase, for metrics.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// When to look again at a Cluster that changes meanwhile, or is gone: not every change calls for it.
const AGAIN: Duration = Duration::from_secs(1);
/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "cluster";

/// Brings one Cluster to what its spec asks for, as far as it goes now, and says when to look again.
pub async fn reconcile(key: ObjectRef<Cluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let began = Instant::now();
    let Some(cluster) = context.caches.clusters.get(&key) else {
        return Ok(Action::await_change());
    };
    let id = cluster.id();
    let is_late = id.as_ref().is_some_and(|id| context.took(id) >= LATE);
    let tenant = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let slot = is_late.then(|| context.late_slots.enter(tenant));
    if matches!(slot, Some(None)) {
        return Ok(Action::requeue(spread(AGAIN)));
    }
    let result = if cluster.metadata.deletion_timestamp.is_some() {
        Box::pin(delete::delete(&context, &cluster)).await
    } else {
        // Large: each await below keeps its place in it, and hundreds run at once.
        Box::pin(reconcile_living(&context, &cluster)).await
    };
    let took = began.elapsed();
    if let Some(id) = &id {
        context.note_if_awake(id, |awake| awake.took = took);
    }
    context.metrics.reconciled(CONTROLLER, took.as_secs_f64());
    result
}

async fn reconcile_living(context: &Context, cluster: &Cluster) -> Result<Action, ReconcileError> {
    let Some(cluster) = patch::ensure_identity(context, cluster).await? else {
        return Ok(Action::requeue(AGAIN));
    };
    let Some(cluster) = patch::catch_up(context, cluster).await? else {
        return Ok(Action::requeue(AGAIN));
    };
    let Some(cluster) = patch::take_word(context, cluster).await? else {
        return Ok(Action::requeue(AGAIN));
    };
    let Some(identity) = Identity::of(&cluster, &context.config.base_domain) else {
        return Ok(Action::await_change());
    };
    let lives = expiry::find_remaining(&context.client, &cluster, Timestamp::now()).await?;
    if lives.is_some_and(|remaining| remaining.is_zero()) {
        expiry::delete(context, &cluster).await?;
        // What was written meanwhile may have been a status, which calls for nobody.
        return Ok(Action::requeue(expiry::AGAIN));
    }
    let observed = observe::observe(&context.caches, &cluster, &identity);
    let Some(cluster) = activity::heed(context, cluster, &identity, &observed).await? else {
        return Ok(Action::requeue(AGAIN));
    };
    let cluster = agents::decide(&context.caches, cluster, &observed);
    let authority = match find_authority(context, &cluster, &identity).await {
        Ok(authority) => authority,
        // Nothing was judged yet.
        Err(error) => return fail(context, &cluster, &identity, &observed, error, None).await,
    };
    let verdict = judge(context, &cluster, &identity, &observed, authority.as_ref());
    if let Err(refusal) = &verdict {
        context.metrics.failed(CONTROLLER, refusal.reason);
    }
    let refusal = verdict.as_ref().err();
    let judged = || Some(status::plan_accepted(refusal));
    // Nothing takes over from a control plane that is left as it is.
    if refusal.is_some() || cluster.spec.paused {
        context.end_turns(&identity.id);
        takeover::release_ending(context, &identity, &observed).await;
        if let Err(error) = takeover::ensure_budget(context, &identity, false).await {
            return fail(context, &cluster, &identity, &observed, error.into(), judged()).await;
        }
    }
    let left = match withdraw(context, &cluster, &identity, &observed, refusal).await {
        Ok(left) => left,
        Err(error) => return fail(context, &cluster, &identity, &observed, error, judged()).await,
    };
    let told = plan_kept(context, &cluster, &identity, &observed, refusal, left);
    let mut outcome = match &verdict {
        verdict if cluster.spec.paused && observed.is_kept() => {
            match Box::pin(keep::copy(context, &cluster, &identity, &observed, told)).await {
                Ok(applied) => Outcome {
                    accepted: verdict.as_ref().map(|_| ()).map_err(Clone::clone),
                    rest: find_rest(&cluster, &observed),
                    paused: true,
                    ..translate(&cluster, None, applied)
                },
                Err(error) => return fail(context, &cluster, &identity, &observed, error, judged()).await,
            }
        }
        Err(refusal) if observed.is_kept() => {
            match Box::pin(keep::keep(context, &cluster, &identity, &observed, told)).await {
                Ok(applied) => Outcome {
                    accepted: Err(refusal.clone()),
                    rest: find_rest(&cluster, &observed),
                    kept: true,
                    ..translate(&cluster, None, applied)
                },
                Err(error) => return fail(context, &cluster, &identity, &observed, error, judged()).await,
            }
        }
        Err(refusal) => idle_outcome(&cluster, &observed, Err(refusal.clone())),
        Ok(_) if cluster.spec.paused => idle_outcome(&cluster, &observed, Ok(())),
        Ok(accepted) => {
            let blueprint = Blueprint {
                identity: &identity,
                accepted,
                spec: &cluster.spec,
                config: &context.config,
            };
            match Box::pin(apply::apply(context, &cluster, &blueprint, &observed)).await {
                Ok(applied) => translate(&cluster, Some(accepted), applied),
                Err(error) => return fail(context, &cluster, &identity, &observed, error, judged()).await,
            }
        }
    };
    activity::tell(context, &cluster, &identity, &mut outcome).await;
    patch::write_status(context, &cluster, &identity, &outcome).await?;
    let storeless = conditions::find_lacking(&cluster, ConditionType::StoreReady);
    let pause = pace::plan_pause(&outcome, storeless, Timestamp::now())
        .min(activity::find_pause(context, &identity))
        .min(addons::find_pause(context, &identity));
    let pause = match pause {
        pace::ASLEEP => spread(pause),
        _ if pause < pace::STEADY => pause,
        _ => jitter(pause),
    };
    let now = Timestamp::now();
    let due = [
        rest::plan_late(outcome.told.as_ref(), now),
        lives,
        schedule::plan_remaining(&cluster, now),
        rest::plan_renewal(&cluster, now),
    ];
    Ok(Action::requeue(due.into_iter().flatten().fold(pause, Duration::min)))
}

/// The running version is the one whose rollout began last.
fn running_version(cluster: &Cluster) -> Option<KubernetesVersion> {
    let latest = cluster.status.as_ref()?.history.first()?;
    latest.version.parse().ok()
}

/// The version that was the last one to answer: what is stored is of it.
fn answered_version(cluster: &Cluster) -> Option<KubernetesVersion> {
    let mut history = cluster.status.as_ref()?.history.iter();
    history.find(|entry| entry.completed.is_some())?.version.parse().ok()
}

/// Holds a Cluster against everything that its spec is held against.
fn look_around<'c, T>(
    context: &'c Context,
    cluster: &Cluster,
    identity: &Identity,
    reserved: ByIdentity,
    look: impl FnOnce(&Surroundings<'c, '_>) -> T,
) -> T {
    let tenant = context.caches.tenants.get(&ObjectRef::new(&identity.tenant));
    look(&Surroundings {
        config: &context.config,
        tenant: tenant.as_deref(),
        namespace_is_tenants: tenant.as_deref().is_some_and(|tenant| {
            let namespace = context.caches.namespaces.get(&ObjectRef::new(&identity.tenant));
            namespace.is_some_and(|namespace| crate::tenant::build::is_owned(&namespace, tenant))
        }),
        tenants: &context.caches.tenants.state(),
        clusters: &context.caches.clusters.outlines_near(cluster),
        reserved,
        running: running_version(cluster),
        answered: answered_version(cluster),
    })
}

/// Takes back what a Cluster may not have any more. What is left of its host names and sources; `None` if nothing can be taken
/// back, or if what has its identity is not known to be its own.
async fn withdraw(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    refusal: Option<&Refusal>,
) -> Result<Option<withdraw::Left>, ReconcileError> {
    let is_anothers = refusal.is_some_and(|refusal| refusal.reason == Reason::IdentityConflict);
    if observed.namespace.is_none() || observed.is_foreign || is_anothers {
        return Ok(None);
    }
    let held = refusal.is_some() && !cluster.spec.paused;
    let Some(had) = withdraw::find(context, identity, held).await? else {
        return Ok(None);
    };
    // Neither names nor sources hang on what is reserved.
    let left = look_around(context, cluster, identity, ByIdentity::default(), |around| {
        withdraw::plan(had, cluster, identity, around)
    });
    withdraw::apply(context, identity, &left).await?;
    Ok(Some(left))
}

/// The CA that signs for the host names that a Cluster asks for, which most do not.
async fn find_authority(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
) -> Result<Option<ParsedCertificate>, ReconcileError> {
    match cluster.spec.endpoint.extra_sans.is_empty() {
        true => Ok(None),
        false => observe::find_authority(&context.client, &identity.id, AuthorityRole::Cluster).await,
    }
}

fn judge<'a>(
    context: &'a Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    authority: Option<&ParsedCertificate>,
) -> Result<Accepted<'a>, Refusal> {
    let reserved = context.caches.reserved.of(&identity.tenant);
    let accepted = look_around(context, cluster, identity, reserved, |around| {
        validate::validate(cluster, identity, around)
    })?;
    if observed.is_foreign {
        return Err(Refusal {
            reason: Reason::IdentityConflict,
            message: format!(
                "What has identity {} on this host belongs to somebody else.",
                identity.id
            ),
        });
    }
    let mut names = cluster.spec.endpoint.extra_sans.iter();
    let narrow = names.find(|name| authority.is_some_and(|authority| !authority.permits_dns(name)));
    match narrow {
        Some(name) => Err(Refusal {
            reason: Reason::HostnameNotAllowed,
            message: format!(
                "Host name {name} lies outside what the cluster's CA was issued for; the Tenant's domains were changed after it."
            ),
        }),
        None => Ok(accepted),
    }
}

/// Whether a control plane was asked for, of a spec that is not carried out.
fn find_rest(cluster: &Cluster, observed: &Observed) -> Rest {
    match Rest::of(cluster) {
        _ if !observed.is_asleep() => Rest::Awake,
        Rest::Awake => Rest::Kept,
        rest => rest,
    }
}

/// What the ingress is told on, of a Cluster whose spec is not carried out.
fn plan_kept(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    refusal: Option<&Refusal>,
    left: Option<withdraw::Left>,
) -> Asked {
    let told = withdraw::find_told(context, identity);
    let (names, sources) = match left.and_then(|left| left.told) {
        Some(left) => (left.extra_names, left.allowed_sources),
        // Without what was told, what is asked for: not everybody.
        None => (
            vec![],
            told.map_or_else(|| Asked::of(&cluster.spec).sources, |told| told.allowed_sources),
        ),
    };
    Asked {
        names,
        sources,
        konnectivity: observed
            .stateful_set
            .as_deref()
            .is_some_and(build::stateful_set::has_konnectivity),
        asleep: apply::plan_told(
            context,
            cluster,
            identity,
            observed,
            None,
            plan_held(cluster, observed, refusal),
        ),
    }
}

/// What the ingress tells of a Cluster whose spec is not carried out: nobody wakes it.
fn plan_held(cluster: &Cluster, observed: &Observed, refusal: Option<&Refusal>) -> Option<Asleep> {
    let until = match refusal {
        _ if cluster.spec.paused => "while it is paused by spec.paused".to_owned(),
        Some(refusal) => format!("while its spec is refused: {}", refusal.message),
        None => Rest::Owner.until().to_owned(),
    };
    observed.is_asleep().then(|| rest::hold(&until))
}

fn idle_outcome(cluster: &Cluster, observed: &Observed, accepted: Result<(), Refusal>) -> Outcome {
    let unknown = State::unknown(Reason::Paused, "Not looked at.");
    Outcome {
        accepted,
        paused: cluster.spec.paused,
        kept: false,
        rest: find_rest(cluster, observed),
        told: None,
        version: None,
        heads_for: None,
        store: unknown.clone(),
        account: None,
        bytes: None,
        certificates: unknown,
        ca_not_after: None,
        control_plane: gate::plan_control_plane(observed.stateful_set.as_deref(), &observed.pods),
        inside: observed.answers(),
        outside: observed.answers().map_err(status::Lack::from),
        believed: false,
        published: false,
        nodes: None,
        strands_nodes: false,
        sleep_possible: None,
        used: None,
        addons: None,
        workers: None,
        lost: false,
        queued: false,
        leaving: None,
        failure: None,
    }
}

fn translate(cluster: &Cluster, accepted: Option<&Accepted<'_>>, applied: apply::Applied) -> Outcome {
    Outcome {
        accepted: Ok(()),
        paused: false,
        kept: false,
        rest: Rest::of(cluster),
        told: applied.told,
        version: accepted.map(|accepted| accepted.version.to_string()),
        heads_for: accepted.and_then(|accepted| Some(accepted.heads_for?.to_string())),
        store: applied.store.state,
        account: applied.store.account,
        bytes: applied.store.bytes,
        certificates: applied.certificates,
        ca_not_after: applied.ca_not_after,
        control_plane: applied.control_plane,
        inside: applied.inside,
        outside: applied.outside,
        believed: applied.believed,
        published: applied.published,
        nodes: applied.nodes,
        strands_nodes: false,
        sleep_possible: None,
        used: None,
        addons: applied.addons,
        workers: applied.workers,
        lost: applied.lost,
        queued: applied.queued,
        leaving: applied.leaving,
        failure: None,
    }
}

/// Says in the status that a reconciliation failed, and passes the failure on.
async fn fail(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    error: ReconcileError,
    accepted: Option<State>,
) -> Result<Action, ReconcileError> {
    let idle = idle_outcome(cluster, observed, Ok(()));
    let is_judged = accepted.is_some();
    let phase = cluster.status.as_ref().and_then(|status| status.phase);
    let mut changes = vec![(
        ConditionType::Degraded,
        State::yes(error.reason(), format!("{}.", crate::chain(&error))),
    )];
    changes.extend(accepted.map(|accepted| (ConditionType::Accepted, accepted)));
    if idle.inside.is_err() {
        changes.push((
            ConditionType::Ready,
            State::no(error.reason(), format!("{}.", crate::chain(&error))),
        ));
    }
    let mut status = status::plan_short(
        cluster,
        phase.unwrap_or(yoke_api::cluster::Phase::Provisioning),
        &changes,
        Timestamp::now(),
    );
    let before = cluster.status.clone().unwrap_or_default();
    if !is_judged {
        // What is said of the spec is of the one before.
        status.observed_generation = before.observed_generation;
    }
    let notices = conditions::build_notices(&changes, &before.conditions, &status::TOLD_OF_FAILURE, "Reconcile");
    context.events.publish(cluster, &notices).await;
    if let Err(second) = patch::write(context, cluster, &status).await {
        tracing::warn!(cluster = %identity.id, error = %crate::chain(&second), "status cannot be written");
    }
    if let Err(second) = tell_failed(context, cluster, identity, observed, &error).await {
        tracing::warn!(cluster = %identity.id, error = %crate::chain(&second), "the ingress cannot be told of a failure");
    }
    Err(error)
}

/// Has the ingress tell those who wait for long until a Cluster is awake what its owner is to look at.
async fn tell_failed(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    error: &ReconcileError,
) -> Result<(), ReconcileError> {
    let is_its_own = observed.namespace.is_some() && !observed.is_foreign;
    let is_refused = conditions::status_of(cluster, ConditionType::Accepted) == Some("False");
    if !is_its_own || is_refused || cluster.spec.paused || Rest::of(cluster).is_asleep() {
        return Ok(());
    }
    let before = withdraw::find_told(context, identity).and_then(|told| told.asleep);
    let answers = apply::answers(context, cluster, identity, observed);
    // What they hear already stays: it was found where no failure was in the way, and will be again.
    if !answers && matches!(before, Some(Asleep::Waking { problem: Some(_), .. })) {
        return Ok(());
    }
    // Not its causes, which may be of the host: whoever connects reads it.
    let wait = || {
        Some(format!(
            "The host cannot carry it out ({}): see the Cluster's condition Degraded.",
            error.reason()
        ))
    };
    let told = rest::plan_told(None, before.as_ref(), answers, wait, Timestamp::now());
    withdraw::tell_asleep(context, identity, told).await
}

/// Spreads what would come at once: up to a tenth later.
fn jitter(duration: Duration) -> Duration {
    duration + duration / 1000 * draw(100)
}

/// Spreads what would come at once over the whole time: up to as much again later.
fn spread(duration: Duration) -> Duration {
    duration + duration / 1000 * draw(1000)
}

fn draw(below: u64) -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = std::hash::RandomState::new().build_hasher().finish();
    u32::try_from(random % below).unwrap_or(0)
}

/// When to try again after a failure.
pub fn on_error(key: &ObjectRef<Cluster>, error: &ReconcileError, context: &Context) -> Action {
    context.metrics.failed(CONTROLLER, error.reason());
    tracing::warn!(
        namespace = key.namespace,
        cluster = key.name,
        error = %crate::chain(error),
        "reconciliation of a Cluster failed"
    );
    let cluster = context.caches.clusters.get(key);
    let asked_for = |cluster: &Cluster| (cluster.metadata.generation, Rest::of(cluster).is_asleep());
    let known = cluster.and_then(|cluster| Some((cluster.id()?, asked_for(&cluster))));
    let failures = known.map_or(1, |(id, asked_for)| {
        let mut count = 1;
        context.note(&id, |seen| {
            // What failed with another spec, or while it slept, says nothing about this one.
            let before = seen.failures.filter(|(known, _)| *known == asked_for);
            count = before.map_or(0, |(_, count)| count).saturating_add(1);
            seen.failures = Some((asked_for, count));
        });
        count
    });
    Action::requeue(jitter(Duration::from_millis(250) * 2_u32.pow(failures.min(8))))
}

/// Tells from time to time how many Clusters are in each phase.
pub async fn count_phases(context: Arc<Context>, drain: Drain) {
    while drain.until_started(tokio::time::sleep(COUNT_EVERY)).await.is_some() {
        count(&context);
    }
}

fn count(context: &Context) {
    let clusters = context.caches.clusters.outlines();
    let phases: Vec<_> = clusters.iter().map(|cluster| cluster.phase).collect();
    context.metrics.count_clusters(&phases);
}
