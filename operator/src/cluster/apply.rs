//! Applies the objects of an accepted spec in the order that makes its API available soonest.
//! Objects that depend on nothing are written at once. The Cluster controller calls [`apply_accepted`].

mod control_plane;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::cert_manager::Certificate;
use yoke_pki::plan::{LeafRole, SLEEPER_LEAF};

use crate::cluster::context::Context;
use crate::cluster::credentials::distribute::{self, Copied, CopyRequest};
use crate::cluster::credentials::persisted;
use crate::cluster::failover::admission::build_queue_entry;
use crate::cluster::ingress_config;
use crate::cluster::namespace::ensure_namespace;
use crate::cluster::network_access;
use crate::cluster::observe::View;
use crate::cluster::observed::Observed;
use crate::cluster::outcome::{Outcome, Store};
use crate::cluster::resources::objects::{self, IngressIntent};
use crate::cluster::resources::{ApiAccess, Blueprint, IssuedSummary, secrets};
use crate::cluster::sleep::ingress_message::{self, record_ingress_opened};
use crate::cluster::sleep::state::SleepState;
use crate::cluster::store::streams;
use crate::cluster::tenant_cluster::{addons, probe, workers};
use crate::error::ReconcileError;
use crate::host_api::apply::ApplyError;
use crate::model::identity::Identity;
use crate::nats::Size;

/// Applies an accepted spec as far as is possible now.
pub(super) async fn apply_accepted(
    context: &Context,
    view: &View<'_>,
    blueprint: &Blueprint<'_>,
) -> Result<Outcome, ReconcileError> {
    let (identity, observed) = (&view.identity, &view.observed);
    let run_state = SleepState::of(&view.cluster);
    let is_asleep = run_state.is_asleep();
    let entry = || build_queue_entry(&view.cluster, identity);
    if !is_started(context, blueprint) && !context.queues.creations.try_admit(entry()) {
        return Ok(Outcome::queued(observed, run_state));
    }
    let store = apply_prerequisites(context, view, blueprint, is_asleep).await?;
    let mut outcome = Outcome::with_store(observed, run_state, store);
    let missing_store = (!outcome.store.is_ready()).then_some(outcome.store.state.reason);
    let asleep = outcome.run_state.to_ingress_message(&identity.uid);
    let mut intent = IngressIntent {
        asleep: ingress_message::update_message(context, view, missing_store, asleep),
        ..IngressIntent::of(blueprint.spec)
    };
    outcome.ingress_message.clone_from(&intent.asleep);
    let request = CopyRequest {
        plan: &blueprint.accepted.plan,
        intent: &intent,
        needs_api: !is_asleep,
    };
    let issued = distribute_credentials(context, identity, &request, &mut outcome).await?;
    control_plane::apply_control_plane(context, view, blueprint, issued.as_ref(), &mut outcome).await?;
    if is_asleep {
        context.forget_running(&identity.id);
    }
    if let Some(access) = issued.and_then(|issued| issued.reach).filter(|_| !is_asleep) {
        open_ingress(context, view, &access, &mut intent, &mut outcome).await?;
        probe::probe_api(context, view, &access, &intent, &mut outcome).await;
        outcome.addons = addons::ensure_addons(context, view, blueprint, &access.kubelet_ca, &outcome).await;
        outcome.workers = workers::upgrade_workers(context, view, Some(blueprint.accepted.version), &outcome).await;
    }
    Ok(outcome)
}

/// Applies everything that depends on nothing else, and ensures the store.
async fn apply_prerequisites(
    context: &Context,
    view: &View<'_>,
    blueprint: &Blueprint<'_>,
    is_asleep: bool,
) -> Result<Store, ReconcileError> {
    let size = Size {
        quota: blueprint.accepted.quota,
        replicas: blueprint.accepted.class.store_replicas,
    };
    // Run all of them: a failure of one must not stop another.
    let (namespace_objects, certificates, service_account, store) = tokio::join!(
        apply_namespace_objects(context, blueprint, &view.observed, is_asleep),
        apply_certificates(context, blueprint),
        persisted::ensure_service_account(context, &view.cluster, &view.identity),
        streams::ensure_store(context, &view.cluster, &view.identity, size),
    );
    namespace_objects?;
    certificates?;
    service_account?;
    store
}

/// Copies certificates and credentials. `None` while a certificate is not issued yet.
async fn distribute_credentials(
    context: &Context,
    identity: &Identity,
    request: &CopyRequest<'_>,
    outcome: &mut Outcome,
) -> Result<Option<IssuedSummary>, ReconcileError> {
    if let Some(Copied { issued, delivered }) = distribute::distribute(context, identity, request, outcome).await? {
        delivered?;
        context.queues.creations.finish(&identity.id);
        return Ok(Some(issued));
    }
    // A caller must reach neither a pod that is being deleted, nor a sleeper in front of an
    // available API.
    ingress_config::publish_sleep_state(context, identity, request.intent.asleep.clone()).await?;
    Ok(None)
}

/// Publishes to the ingress that the API answers, as soon as it does, and not before.
async fn open_ingress(
    context: &Context,
    view: &View<'_>,
    access: &ApiAccess,
    intent: &mut IngressIntent,
    outcome: &mut Outcome,
) -> Result<(), ReconcileError> {
    if intent.asleep.is_none() {
        return Ok(());
    }
    let Some(pod) = view.observed.staying_pod() else {
        return Ok(());
    };
    if !probe::wait_for_answer(context, view, access).await {
        return Ok(());
    }
    (intent.asleep, outcome.ingress_message) = (None, None);
    let identity = &view.identity;
    let ingress = objects::build_ingress(identity, intent.clone(), &access.trust);
    context
        .applier
        .apply(&context.host.caches.config_maps, &ingress)
        .await?;
    record_ingress_opened(context, identity, pod);
    context.queues.starts.finish(&identity.id);
    Ok(())
}

/// Whether certificates of a Cluster were requested already: a creation that has started continues.
fn is_started(context: &Context, blueprint: &Blueprint<'_>) -> bool {
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
async fn apply_namespace_objects(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    is_asleep: bool,
) -> Result<(), ReconcileError> {
    ensure_namespace(context, blueprint.identity, blueprint.spec.deletion_policy, observed).await?;
    let files = objects::build_api_server_files(blueprint);
    tokio::try_join!(
        network_access::apply_service_and_policy(context, blueprint.identity, observed, blueprint.open(), is_asleep),
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
            remove_certificate(context, blueprint.identity, role, copy).await?;
        }
    }
    Ok(())
}

/// Removes a certificate that is no longer wanted. Its Secrets are deleted after its Certificate,
/// or cert-manager would issue it again.
async fn remove_certificate(
    context: &Context,
    identity: &Identity,
    role: LeafRole,
    copy: &str,
) -> Result<(), ApplyError> {
    let caches = &context.host.caches;
    let certificate = role.object_name(&identity.id);
    if caches.certificates.has(PKI_NAMESPACE, &certificate) {
        context
            .applier
            .delete_at::<Certificate>(PKI_NAMESPACE, &certificate)
            .await?;
        return Ok(());
    }
    let hosted = identity.hosted();
    for (namespace, name) in [(PKI_NAMESPACE, certificate.as_str()), (hosted.as_str(), copy)] {
        if caches.secrets.has(namespace, name) {
            context.applier.delete_at::<Secret>(namespace, name).await?;
        }
    }
    Ok(())
}
