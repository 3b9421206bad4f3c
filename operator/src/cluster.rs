//! The Cluster controller. It reads one Cluster and its objects from the watch caches, and writes
//! host objects, status and events.
//!
//! ```text
//!  Cluster, its Tenant and objects ─observe─▶ validate ─▶ build ─▶ gate ─▶ apply ─▶ status, events
//!                                              └─ refused: the status says why, and the running
//!                                                 control plane is maintained (keep)
//! ```

mod apply;
pub mod context;
pub mod credentials;
pub mod failover;
pub mod lifecycle;
pub mod memory;
pub mod metrics;
pub mod namespace;
pub(crate) mod network_access;
pub(crate) mod object;
mod observe;
pub mod outcome;
pub(crate) mod requeue;
pub mod resources;
pub mod sleep;
pub mod status;
pub mod store;
pub mod tenant_cluster;
pub mod validate;

pub(crate) use crate::cluster::credentials::persisted::{find_retained_stores, is_of_tenant};
pub use crate::cluster::failover::start_queue::QueueLimits;
pub use crate::cluster::tenant_cluster::endpoint_guard::{EndpointGuardHandle, EndpointGuardTask};
pub(crate) use crate::cluster::tenant_cluster::konnectivity::are_due as agents_are_due;
#[cfg(test)]
pub(crate) use crate::host_api::secrets::data_of;
pub use crate::model::cluster_summary::ClusterSummary;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use yoke_api::ingress::Asleep;
use yoke_api::{Cluster, ConditionType, Reason};
use yoke_pki::ParsedCertificate;
use yoke_pki::plan::AuthorityRole;
use yoke_runtime::Drain;

use crate::cluster::context::Context;
use crate::cluster::observe::Observed;
use crate::cluster::observe::{answered_version, running_version};
use crate::cluster::outcome::Outcome;
use crate::cluster::resources::Blueprint;
use crate::cluster::resources::objects::IngressIntent;
use crate::cluster::sleep::state::SleepState;
use crate::cluster::validate::{Accepted, ValidationContext};
use crate::error::ReconcileError;
use crate::host_api::cache::ByIdentity;
use crate::host_api::certificate_authority;
use crate::model::conditions::{self, State};
use crate::model::identity::Identity;
use crate::model::refusal::Refusal;
use crate::model::{control_plane, tenant_namespace};

/// A Cluster whose last reconcile took at least this long counts as slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Slow Clusters of one Tenant reconciled concurrently: half of all concurrent reconciles.
pub const SLOW_AT_ONCE: usize = 16;
/// Interval for counting Clusters by phase, for metrics.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// Requeue delay after a concurrent change; not every change produces a watch event.
const CONFLICT_REQUEUE: Duration = Duration::from_secs(1);
pub use crate::model::CLUSTER_CONTROLLER as CONTROLLER;

/// Reconciles one Cluster as far as is possible now, and returns when to reconcile it again.
pub async fn reconcile(key: ObjectRef<Cluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let began = Instant::now();
    let Some(cluster) = context.host.caches.clusters.get(&key) else {
        return Ok(Action::await_change());
    };
    let id = cluster.id();
    let is_late = id.as_ref().is_some_and(|id| context.memory.took(id) >= SLOW_AFTER);
    let tenant = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let slot = is_late.then(|| context.slow_cluster_slots.enter(tenant));
    if matches!(slot, Some(None)) {
        return Ok(Action::requeue(spread(CONFLICT_REQUEUE)));
    }
    let result = if cluster.metadata.deletion_timestamp.is_some() {
        Box::pin(lifecycle::delete::delete(&context, &cluster)).await
    } else {
        // Boxed because the future is large: it has room for every await below, and hundreds run at
        // once.
        Box::pin(reconcile_existing(&context, &cluster)).await
    };
    let took = began.elapsed();
    if let Some(id) = &id {
        context.memory.note_if_awake(id, |awake| awake.took = took);
    }
    context.reconciles.reconciled(CONTROLLER, took.as_secs_f64());
    result
}

async fn reconcile_existing(context: &Context, cluster: &Cluster) -> Result<Action, ReconcileError> {
    let Some(cluster) = object::ensure_identity(context, cluster).await? else {
        return Ok(Action::requeue(CONFLICT_REQUEUE));
    };
    let Some(cluster) = object::overlay_pending_sleep(context, cluster).await? else {
        return Ok(Action::requeue(CONFLICT_REQUEUE));
    };
    let Some(cluster) = object::consume_sleep_annotation(context, cluster).await? else {
        return Ok(Action::requeue(CONFLICT_REQUEUE));
    };
    let Some(identity) = Identity::of(&cluster, &context.host.config.base_domain) else {
        return Ok(Action::await_change());
    };
    let lives = lifecycle::ttl::find_remaining(&context.host.client, &cluster, Timestamp::now()).await?;
    if lives.is_some_and(|remaining| remaining.is_zero()) {
        lifecycle::ttl::delete(context, &cluster).await?;
        // Requeue: the concurrent write may have been a status update, which triggers no reconcile.
        return Ok(Action::requeue(lifecycle::ttl::AGAIN));
    }
    let observed = observe::observe(&context.host.caches, &cluster, &identity);
    let Some(cluster) = sleep::policies::apply_sleep_policies(context, cluster, &identity, &observed).await? else {
        return Ok(Action::requeue(CONFLICT_REQUEUE));
    };
    let cluster = tenant_cluster::konnectivity::decide(&context.host.caches, cluster, &observed);
    let authority = match find_authority(context, &cluster, &identity).await {
        Ok(authority) => authority,
        // The spec is not validated yet.
        Err(error) => return fail(context, &cluster, &identity, &observed, error, None).await,
    };
    let verdict = validate_cluster(context, &cluster, &identity, &observed, authority.as_ref());
    if let Err(refusal) = &verdict {
        context.reconciles.failed(CONTROLLER, refusal.reason);
    }
    let refusal = verdict.as_ref().err();
    let judged = || Some(status::plan_accepted(refusal));
    // A refused or paused Cluster keeps its control plane as it is, so no other pod takes over.
    if refusal.is_some() || cluster.spec.paused {
        context.queues.finish(&identity.id);
        failover::takeover::release_ending(context, &identity, &observed).await;
        if let Err(error) = failover::takeover::ensure_budget(context, &identity, false).await {
            return fail(context, &cluster, &identity, &observed, error.into(), judged()).await;
        }
    }
    let left = match withdraw(context, &cluster, &identity, &observed, refusal).await {
        Ok(left) => left,
        Err(error) => return fail(context, &cluster, &identity, &observed, error, judged()).await,
    };
    let told = intent_of_unapplied_spec(context, &cluster, &identity, &observed, refusal, left);
    let mut outcome = match &verdict {
        verdict if cluster.spec.paused && observed.has_control_plane() => {
            match Box::pin(lifecycle::maintain::copy(context, &cluster, &identity, &observed, told)).await {
                Ok(applied) => Outcome {
                    accepted: verdict.as_ref().map(|_| ()).map_err(Clone::clone),
                    rest: present_run_state(&cluster, &observed),
                    paused: true,
                    ..applied_outcome(&cluster, None, applied)
                },
                Err(error) => return fail(context, &cluster, &identity, &observed, error, judged()).await,
            }
        }
        Err(refusal) if observed.has_control_plane() => {
            match Box::pin(lifecycle::maintain::keep(context, &cluster, &identity, &observed, told)).await {
                Ok(applied) => Outcome {
                    accepted: Err(refusal.clone()),
                    rest: present_run_state(&cluster, &observed),
                    kept: true,
                    ..applied_outcome(&cluster, None, applied)
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
                config: &context.host.config,
            };
            match Box::pin(apply::apply(context, &cluster, &blueprint, &observed)).await {
                Ok(applied) => applied_outcome(&cluster, Some(accepted), applied),
                Err(error) => return fail(context, &cluster, &identity, &observed, error, judged()).await,
            }
        }
    };
    sleep::policies::tell(context, &cluster, &identity, &mut outcome).await;
    object::write_status(context, &cluster, &identity, &outcome).await?;
    let storeless = conditions::find_lacking(&cluster, ConditionType::StoreReady);
    let pause = requeue::requeue_after(&outcome, storeless, Timestamp::now())
        .min(sleep::policies::find_pause(context, &identity))
        .min(tenant_cluster::addons::find_pause(context, &identity));
    let pause = match pause {
        requeue::ASLEEP => spread(pause),
        _ if pause < requeue::STEADY => pause,
        _ => jitter(pause),
    };
    let now = Timestamp::now();
    let due = [
        sleep::state::late_after(outcome.ingress_message.as_ref(), now),
        lives,
        sleep::schedule::plan_remaining(&cluster, now),
        sleep::state::plan_renewal(&cluster, now),
    ];
    Ok(Action::requeue(due.into_iter().flatten().fold(pause, Duration::min)))
}

/// Calls `look` with everything that the spec of a Cluster is validated against.
fn with_validation_context<'c, T>(
    context: &'c Context,
    cluster: &Cluster,
    identity: &Identity,
    reserved: ByIdentity,
    look: impl FnOnce(&ValidationContext<'c, '_>) -> T,
) -> T {
    let tenant = context.host.caches.tenants.get(&ObjectRef::new(&identity.tenant));
    look(&ValidationContext {
        config: &context.host.config,
        tenant: tenant.as_deref(),
        namespace_is_tenants: tenant.as_deref().is_some_and(|tenant| {
            let namespace = context.host.caches.namespaces.get(&ObjectRef::new(&identity.tenant));
            namespace.is_some_and(|namespace| tenant_namespace::is_owned(&namespace, tenant))
        }),
        tenants: &context.host.caches.tenants.state(),
        clusters: &context.host.caches.clusters.summaries_in_conflict(cluster),
        reserved,
        running: running_version(cluster),
        answered: answered_version(cluster),
    })
}

/// Revokes host names and sources that a Cluster may no longer have, and returns those that remain.
///
/// Returns `None` if nothing can be revoked, or if the objects with its identity are not known to
/// belong to it.
async fn withdraw(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    refusal: Option<&Refusal>,
) -> Result<Option<lifecycle::revoke::Remaining>, ReconcileError> {
    let is_anothers = refusal.is_some_and(|refusal| refusal.reason == Reason::IdentityConflict);
    if observed.namespace.is_none() || observed.is_foreign || is_anothers {
        return Ok(None);
    }
    let held = refusal.is_some() && !cluster.spec.paused;
    let Some(had) = lifecycle::revoke::find(context, identity, held).await? else {
        return Ok(None);
    };
    // Reserved storage affects neither host names nor sources.
    let left = with_validation_context(context, cluster, identity, ByIdentity::default(), |around| {
        lifecycle::revoke::plan(had, cluster, identity, around)
    });
    lifecycle::revoke::apply(context, identity, &left).await?;
    Ok(Some(left))
}

/// The CA that limits the extra host names of a Cluster; `None` for a Cluster without any, as most
/// are.
async fn find_authority(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
) -> Result<Option<ParsedCertificate>, ReconcileError> {
    match cluster.spec.endpoint.extra_sans.is_empty() {
        true => Ok(None),
        false => {
            certificate_authority::find_authority(&context.host.client, &identity.id, AuthorityRole::Cluster).await
        }
    }
}

fn validate_cluster<'a>(
    context: &'a Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    authority: Option<&ParsedCertificate>,
) -> Result<Accepted<'a>, Refusal> {
    let reserved = context.host.caches.reserved.of(&identity.tenant);
    let accepted = with_validation_context(context, cluster, identity, reserved, |around| {
        validate::validate(cluster, identity, around)
    })?;
    if observed.is_foreign {
        return Err(Refusal {
            reason: Reason::IdentityConflict,
            message: format!(
                "Identity {} is in use on this host by objects of another owner. Delete this Cluster and create it \
         again without spec.id, or remove those objects.",
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
                "Host name {name} is outside the name constraints of the cluster's CA, which was issued before the \
         Tenant's domains changed. Remove it from spec.endpoint.extraSANs, or create a new Cluster."
            ),
        }),
        None => Ok(accepted),
    }
}

/// The run state of a Cluster whose spec is not applied: what its StatefulSet runs now.
fn present_run_state(cluster: &Cluster, observed: &Observed) -> SleepState {
    match SleepState::of(cluster) {
        _ if !observed.is_asleep() => SleepState::Awake,
        SleepState::Awake => SleepState::Unchanged,
        rest => rest,
    }
}

/// The ingress configuration of a Cluster whose spec is not applied: what was published before,
/// without what was revoked.
fn intent_of_unapplied_spec(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    refusal: Option<&Refusal>,
    left: Option<lifecycle::revoke::Remaining>,
) -> IngressIntent {
    let told = lifecycle::revoke::read_ingress_config(context, identity);
    let (names, sources) = match left.and_then(|left| left.ingress_config) {
        Some(left) => (left.extra_names, left.allowed_sources),
        // Without a published configuration, use the sources of the spec: the API must not be open
        // to all.
        None => (
            vec![],
            told.map_or_else(|| IngressIntent::of(&cluster.spec).sources, |told| told.allowed_sources),
        ),
    };
    IngressIntent {
        names,
        sources,
        konnectivity: observed
            .stateful_set
            .as_deref()
            .is_some_and(resources::stateful_set::has_konnectivity),
        asleep: sleep::ingress_message::ingress_message_for(
            context,
            cluster,
            identity,
            observed,
            None,
            held_message(cluster, observed, refusal),
        ),
    }
}

/// The ingress message of a sleeping Cluster whose spec is not applied: no client can wake it.
fn held_message(cluster: &Cluster, observed: &Observed, refusal: Option<&Refusal>) -> Option<Asleep> {
    let until = match refusal {
        _ if cluster.spec.paused => "while it is paused by spec.paused".to_owned(),
        Some(refusal) => format!("while its spec is refused: {}", refusal.message),
        None => SleepState::ByOwner.until().to_owned(),
    };
    observed.is_asleep().then(|| sleep::state::hold(&until))
}

fn idle_outcome(cluster: &Cluster, observed: &Observed, accepted: Result<(), Refusal>) -> Outcome {
    let unknown = State::unknown(Reason::Paused, "Not checked.");
    Outcome {
        accepted,
        paused: cluster.spec.paused,
        kept: false,
        rest: present_run_state(cluster, observed),
        ingress_message: None,
        version: None,
        heads_for: None,
        store: unknown.clone(),
        account: None,
        bytes: None,
        certificates: unknown,
        ca_not_after: None,
        control_plane: control_plane::plan_control_plane(observed.stateful_set.as_deref(), &observed.pods),
        inside: observed.answers(),
        outside: observed.answers().map_err(outcome::NotReady::from),
        assumed_ready: false,
        published: false,
        nodes: None,
        outlives_node_certificates: false,
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

fn applied_outcome(cluster: &Cluster, accepted: Option<&Accepted<'_>>, applied: outcome::Applied) -> Outcome {
    Outcome {
        accepted: Ok(()),
        paused: false,
        kept: false,
        rest: SleepState::of(cluster),
        ingress_message: applied.ingress_message,
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
        assumed_ready: applied.assumed_ready,
        published: applied.published,
        nodes: applied.nodes,
        outlives_node_certificates: false,
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

/// Records a failed reconcile in the status and in events, and returns the error.
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
        // The status still describes the previous spec, so its observed generation stays.
        status.observed_generation = before.observed_generation;
    }
    let notices = conditions::build_notices(&changes, &before.conditions, &status::REPORTED_ON_FAILURE, "Reconcile");
    context.host.events.publish(cluster, &notices).await;
    if let Err(second) = object::write(context, cluster, &status).await {
        tracing::warn!(cluster = %identity.id, error = %crate::chain(&second), "status cannot be written");
    }
    if let Err(second) = publish_failure(context, cluster, identity, observed, &error).await {
        tracing::warn!(cluster = %identity.id, error = %crate::chain(&second), "failure cannot be published to the ingress");
    }
    Err(error)
}

/// Publishes the failure to callers that are waiting for the Cluster to wake.
async fn publish_failure(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    error: &ReconcileError,
) -> Result<(), ReconcileError> {
    let is_its_own = observed.namespace.is_some() && !observed.is_foreign;
    let is_refused = conditions::status_of(cluster, ConditionType::Accepted) == Some("False");
    if !is_its_own || is_refused || cluster.spec.paused || SleepState::of(cluster).is_asleep() {
        return Ok(());
    }
    let before = lifecycle::revoke::read_ingress_config(context, identity).and_then(|told| told.asleep);
    let answers = sleep::ingress_message::answers(context, cluster, identity, observed);
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
    let told = sleep::state::next_ingress_message(None, before.as_ref(), answers, wait, Timestamp::now());
    lifecycle::revoke::publish_sleep_state(context, identity, told).await
}

/// Spreads requeues that would be simultaneous: adds up to a tenth of the duration.
fn jitter(duration: Duration) -> Duration {
    duration + duration / 1000 * draw(100)
}

/// Spreads requeues that would be simultaneous over the whole time: adds up to the duration again.
fn spread(duration: Duration) -> Duration {
    duration + duration / 1000 * draw(1000)
}

fn draw(below: u64) -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = std::hash::RandomState::new().build_hasher().finish();
    u32::try_from(random % below).unwrap_or(0)
}

/// Backoff per Cluster after failures in a row: 0.5 s after the first, doubled up to 64 s, with
/// jitter.
pub fn on_error(key: &ObjectRef<Cluster>, error: &ReconcileError, context: &Context) -> Action {
    context.reconciles.failed(CONTROLLER, error.reason());
    tracing::warn!(
        namespace = key.namespace,
        cluster = key.name,
        error = %crate::chain(error),
        "Cluster reconcile failed"
    );
    let cluster = context.host.caches.clusters.get(key);
    let asked_for = |cluster: &Cluster| (cluster.metadata.generation, SleepState::of(cluster).is_asleep());
    let known = cluster.and_then(|cluster| Some((cluster.id()?, asked_for(&cluster))));
    let failures = known.map_or(1, |(id, asked_for)| {
        let mut count = 1;
        context.memory.note(&id, |seen| {
            // Failures with another spec, or in the other run state, do not count for this one.
            let before = seen.failures.filter(|(known, _)| *known == asked_for);
            count = before.map_or(0, |(_, count)| count).saturating_add(1);
            seen.failures = Some((asked_for, count));
        });
        count
    });
    Action::requeue(jitter(Duration::from_millis(250) * 2_u32.pow(failures.min(8))))
}

/// Publishes the number of Clusters by phase as a metric, until the drain starts.
pub async fn count_phases(context: Arc<Context>, drain: Drain) {
    while drain.until_started(tokio::time::sleep(COUNT_EVERY)).await.is_some() {
        count(&context);
    }
}

fn count(context: &Context) {
    let clusters = context.host.caches.clusters.summaries();
    let phases: Vec<_> = clusters.iter().map(|cluster| cluster.phase).collect();
    context.metrics.count_clusters(&phases);
}
