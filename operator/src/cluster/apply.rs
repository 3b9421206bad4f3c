//! Applies the objects of an accepted spec in the order that makes its API available soonest.
//! Objects that depend on nothing are written at once. The Cluster controller calls [`apply`].

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use yoke_api::Cluster;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::cert_manager::Certificate;
use yoke_pki::plan::{LeafRole, SLEEPER_LEAF};

use crate::cluster::context::Context;
use crate::cluster::credentials::distribute::{self, Copied};
use crate::cluster::credentials::{fencing, persisted};
use crate::cluster::failover::admission::{find_wanted, must_wait_to_restart, must_wait_to_start};
use crate::cluster::failover::{node_loss, takeover};
use crate::cluster::lifecycle::revoke;
use crate::cluster::namespace::ensure_namespace;
use crate::cluster::network_access;
use crate::cluster::observe::Observed;
use crate::cluster::outcome::Applied;
use crate::cluster::resources::objects::{self, IngressIntent};
use crate::cluster::resources::{Blueprint, IssuedSummary, affinity, secrets, stateful_set};
use crate::cluster::sleep::ingress_message::{ingress_message_for, record_ingress_opened};
use crate::cluster::sleep::state::SleepState;
use crate::cluster::store::streams;
use crate::cluster::tenant_cluster::{addons, konnectivity, probe, workers};
use crate::error::ReconcileError;
use crate::host_api::apply::ApplyError;
use crate::model::control_plane;
use crate::model::identity::Identity;
use crate::nats::{Size, streams as nats_streams};

/// Applies an accepted spec as far as is possible now.
pub(super) async fn apply(
    context: &Context,
    cluster: &Cluster,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
) -> Result<Applied, ReconcileError> {
    let identity = blueprint.identity;
    if !is_begun(context, blueprint) && !context.queues.creations.try_admit(find_wanted(cluster, identity)) {
        return Ok(Applied::queued(observed));
    }
    let is_asleep = SleepState::of(cluster).is_asleep();
    let size = Size {
        quota: blueprint.accepted.quota,
        replicas: blueprint.accepted.class.store_replicas,
    };
    let (surroundings, certificates, service_account, store) = tokio::join!(
        apply_surroundings(context, blueprint, observed, is_asleep),
        apply_certificates(context, blueprint),
        persisted::ensure_service_account(context, cluster, identity),
        streams::ensure(context, cluster, identity, size),
    );
    surroundings?;
    certificates?;
    service_account?;
    let mut applied = Applied::new(store?, observed);
    let plan = &blueprint.accepted.plan;
    let mut asked = IngressIntent {
        asleep: ingress_message_for(
            context,
            cluster,
            identity,
            observed,
            (applied.store.state.status != Some(true)).then_some(applied.store.state.reason),
            SleepState::of(cluster).to_ingress_message(&identity.uid),
        ),
        ..IngressIntent::of(blueprint.spec)
    };
    applied.ingress_message.clone_from(&asked.asleep);
    let copied = distribute::bring(context, identity, plan, (asked.clone(), !is_asleep), &mut applied).await?;
    let gist = match copied {
        Some(Copied { gist, given }) => {
            given?;
            context.queues.creations.finish(&identity.id);
            Some(gist)
        }
        None => {
            // A caller must reach neither a pod that is being deleted, nor a sleeper in front of an
            // available API.
            revoke::publish_sleep_state(context, identity, asked.asleep.clone()).await?;
            None
        }
    };
    apply_control_plane(
        context,
        cluster,
        blueprint,
        observed,
        gist.as_ref(),
        is_asleep,
        &mut applied,
    )
    .await?;
    if is_asleep {
        context.forget_awake(&identity.id);
    }
    let Some(reach) = gist.and_then(|gist| gist.reach).filter(|_| !is_asleep) else {
        return Ok(applied);
    };
    // Callers reach the API as soon as it answers, and not before.
    if asked.asleep.is_some()
        && let Some(pod) = observed.staying_pod()
        && probe::answers(context, cluster, identity, observed, &reach).await
    {
        (asked.asleep, applied.ingress_message) = (None, None);
        let ingress = objects::build_ingress(identity, asked.clone(), &reach.trust);
        context
            .applier
            .apply(&context.host.caches.config_maps, &ingress)
            .await?;
        record_ingress_opened(context, identity, pod);
        context.queues.starts.finish(&identity.id);
    }
    probe::probe_api(context, identity, observed, &reach, &asked, &mut applied).await;
    let generation = cluster.metadata.generation;
    applied.addons = addons::ensure(context, blueprint, generation, &reach.kubelet_ca, &applied).await;
    let accepted = Some(blueprint.accepted.version);
    applied.workers = workers::ensure(context, cluster, &identity.id, accepted, &applied).await;
    Ok(applied)
}

/// Whether certificates of a Cluster were requested already: a creation that has started continues.
fn is_begun(context: &Context, blueprint: &Blueprint<'_>) -> bool {
    let mut certificates = blueprint.accepted.plan.certificates.iter();
    certificates.any(|certificate| {
        context
            .host
            .caches
            .certificates
            .has(PKI_NAMESPACE, &certificate.name_any())
    })
}

/// Applies the control-plane namespace, then the objects in it that depend on nothing else.
async fn apply_surroundings(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    is_asleep: bool,
) -> Result<(), ReconcileError> {
    ensure_namespace(context, blueprint.identity, blueprint.spec.deletion_policy, observed).await?;
    let files = objects::build_api_server_files(blueprint);
    tokio::try_join!(
        network_access::apply(context, blueprint.identity, observed, blueprint.open(), is_asleep),
        async { Ok(context.applier.apply(&context.host.caches.config_maps, &files).await?) },
    )?;
    Ok(())
}

async fn apply_certificates(context: &Context, blueprint: &Blueprint<'_>) -> Result<(), ReconcileError> {
    let plan = &blueprint.accepted.plan;
    let caches = &context.host.caches;
    let issuers = plan
        .issuers
        .iter()
        .map(|issuer| context.applier.apply(&caches.issuers, issuer));
    let certificates = plan
        .certificates
        .iter()
        .map(|certificate| context.applier.apply(&caches.certificates, certificate));
    tokio::try_join!(
        futures::future::try_join_all(issuers),
        futures::future::try_join_all(certificates)
    )?;
    for (role, copy) in [
        (LeafRole::Konnectivity, secrets::KONNECTIVITY),
        (LeafRole::Sleeper, SLEEPER_LEAF),
    ] {
        if plan.leaves.iter().all(|leaf| leaf.role != role) {
            remove_leaf(context, blueprint.identity, role, copy).await?;
        }
    }
    Ok(())
}

/// Removes a certificate that is no longer wanted. Its Secrets are deleted after its Certificate,
/// or cert-manager would issue it again.
async fn remove_leaf(context: &Context, identity: &Identity, role: LeafRole, copy: &str) -> Result<(), ApplyError> {
    let caches = &context.host.caches;
    let leaf = role.object_name(&identity.id);
    if caches.certificates.has(PKI_NAMESPACE, &leaf) {
        context.applier.delete_at::<Certificate>(PKI_NAMESPACE, &leaf).await?;
        return Ok(());
    }
    let hosted = identity.hosted();
    for (namespace, name) in [(PKI_NAMESPACE, leaf.as_str()), (hosted.as_str(), copy)] {
        if caches.secrets.has(namespace, name) {
            context.applier.delete_at::<Secret>(namespace, name).await?;
        }
    }
    Ok(())
}

/// Applies the control plane as its spec wants it. `gist` is `None` while a certificate is
/// reissued; an existing control plane then continues with the files that it has.
async fn apply_control_plane(
    context: &Context,
    cluster: &Cluster,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    gist: Option<&IssuedSummary>,
    is_asleep: bool,
    applied: &mut Applied,
) -> Result<(), ReconcileError> {
    let caches = &context.host.caches;
    let present = observed.stateful_set.as_deref();
    applied.control_plane = node_loss::plan_control_plane(context, blueprint.identity, present, observed);
    let store_ready = applied.store.state.status == Some(true);
    // An existing control plane is updated even while NATS does not answer the operator.
    if !store_ready && observed.stateful_set.is_none() {
        return Ok(());
    }
    // NATS may not have the spare stream yet; a running control plane then continues without it.
    let has_spare = nats_streams::has_spare(blueprint.accepted.class.store_replicas)
        && (store_ready || present.is_some_and(stateful_set::uses_spare));
    // The konnectivity-server reads the serving certificate once, so it must not start with one
    // that lacks its name.
    let has_konnectivity = blueprint.spec.konnectivity.is_enabled()
        && (present.is_some_and(stateful_set::has_konnectivity) || gist.is_some_and(|gist| gist.serves_konnectivity));
    // A sleeping control plane has no node, and a wake schedules a new pod.
    let lost = match is_asleep {
        true => node_loss::find_stuck(observed),
        false => node_loss::find(context, blueprint.identity, observed),
    };
    let present = present.and_then(stateful_set::read_digest);
    // A reissued certificate changes nothing that is read only at the start.
    let digest = gist.map(|gist| gist.restart_digest(has_konnectivity));
    let Some(digest) = digest.or_else(|| present.cloned()) else {
        return Ok(());
    };
    let mut start = stateful_set::Start {
        incarnation: 0,
        digest,
        replicas: 0,
        first: takeover::find_first(context, blueprint.identity, observed.stateful_set.as_deref()),
        has_spare,
        has_konnectivity,
        lost,
    };
    let template = stateful_set::template_digest(blueprint, &start);
    let planned = fencing::plan(context, blueprint.identity, observed, &template);
    // A worker that joins is waiting for the agents.
    let had_agents = observed
        .stateful_set
        .as_deref()
        .is_some_and(stateful_set::has_konnectivity);
    let gets_agents = has_konnectivity && !had_agents && konnectivity::are_awaited(caches, cluster);
    let state = (&applied.control_plane, planned);
    if must_wait_to_restart(context, cluster, blueprint, observed, state, gets_agents) {
        return Ok(());
    }
    let is_lost = start.lost.is_some() && start.lost != observed.stateful_set.as_deref().and_then(affinity::read_lost);
    if must_wait_to_start(
        context,
        cluster,
        blueprint.identity,
        observed,
        &applied.control_plane,
        is_lost,
    ) {
        (applied.queued, applied.lost) = (true, is_lost);
        return Ok(());
    }
    start.incarnation = fencing::ensure(context, blueprint.identity, planned, &template).await?;
    let mut pods = match is_asleep {
        true => takeover::Pods::none(start.first),
        false => takeover::plan_pods(context, blueprint.identity, observed, start.incarnation),
    };
    let reach = gist.and_then(|gist| gist.reach.as_deref());
    // A ready pod receives callers before the previous pod terminates. A change of the StatefulSet,
    // or a release, makes that pod terminate.
    let mut has_taken = pods.step == takeover::Step::Replace;
    if pods.step == takeover::Step::TakeOver {
        let has_other = control_plane::has_other(observed.stateful_set.as_deref(), &observed.pods);
        has_taken = takeover::hand_over(context, blueprint, observed, reach, (pods.first, has_other)).await?;
        if !has_taken {
            (pods.first, pods.replicas) = (pods.first - 1, 2);
        }
    }
    (start.first, start.replicas) = (pods.first, pods.replicas);
    let set = stateful_set::build_stateful_set(blueprint, &start);
    let (applied_set, ()) = tokio::join!(
        context.applier.apply(&caches.stateful_sets, &set),
        takeover::release_others(context, blueprint.identity, observed, start.incarnation, &pods),
    );
    applied_set?;
    if has_taken {
        takeover::note_first(context, blueprint.identity, start.first);
    }
    if pods.step == takeover::Step::Replace {
        takeover::hand_over(context, blueprint, observed, reach, (start.first, false)).await?;
    }
    let holds = !is_asleep && takeover::holds_evictions(context, observed);
    takeover::ensure_budget(context, blueprint.identity, holds).await?;
    let lingers = pods.lingering.as_ref().map(|(_, state)| *state);
    applied.leaving = lingers.or_else(|| takeover::find_state(context, observed).filter(|_| !is_asleep));
    distribute::replace_stuck(context, observed).await?;
    let lost = start.lost.as_ref();
    node_loss::remove(context, blueprint.identity, observed, start.incarnation, lost).await?;
    applied.control_plane = takeover::plan_lingering(&pods, &set)
        .unwrap_or_else(|| node_loss::plan_control_plane(context, blueprint.identity, Some(&set), observed));
    applied.lost = context.losses.of(&blueprint.identity.id).is_some();
    Ok(())
}
