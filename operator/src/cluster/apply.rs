//! Writes what was built, in the order that gets an API soonest: whatever waits for nothing goes out at once.

use std::time::Instant;

use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::cluster::DeletionPolicy;
use yoke_api::ingress::Asleep;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, Reason};
use yoke_pki::cert_manager::Certificate;
use yoke_pki::plan::{LeafRole, SLEEPER_LEAF};

use super::build::hosted::{self, Asked};
use super::build::{Blueprint, Gist, place, secrets, stateful_set};
use super::copies::{self, Copied};
use super::gate::{self, ControlPlane, Incarnation, Start};
use super::identity::Identity;
use super::observe::{Observed, is_foreign};
use super::rest::{self, Rest};
use super::status::Lack;
use super::store::{self, Store};
use super::turns::{Rule, Wanted};
use super::{addons, agents, doors, incarnation, kept, lost, probe, takeover, withdraw, workers};
use crate::apply::ApplyError;
use crate::conditions::State;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::nats::{Size, streams};
use crate::notice;

/// What was done and found.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) store: Store,
    pub(super) certificates: State,
    pub(super) ca_not_after: Option<Timestamp>,
    pub(super) control_plane: ControlPlane,
    pub(super) inside: Result<(), String>,
    pub(super) outside: Result<(), Lack>,
    /// Whether it is believed that the API answers, while the operator itself reaches nothing yet.
    pub(super) believed: bool,
    pub(super) published: bool,
    pub(super) nodes: Option<i32>,
    pub(super) addons: Option<State>,
    pub(super) workers: Option<workers::Workers>,
    /// What the ingress tells those who connect while no API answers.
    pub(super) told: Option<Asleep>,
    /// Whether its pod was lost lately with its machine.
    pub(super) lost: bool,
    /// Whether it waits for its turn to be made, or started.
    pub(super) queued: bool,
    /// What is to become of it, if its machine is about to go.
    pub(super) leaving: Option<notice::State>,
}

impl Applied {
    /// Nothing done yet; whether the API answers is what the kubelet finds.
    pub(super) fn new(store: Store, observed: &Observed) -> Self {
        Self {
            store,
            // Not how many: that would be a write for each.
            certificates: State::no(Reason::CertificatesPending, "Certificates are being issued."),
            ca_not_after: None,
            control_plane: gate::plan_control_plane(observed.stateful_set.as_deref(), &observed.pods),
            inside: observed.answers(),
            outside: observed.answers().map_err(Lack::from),
            believed: false,
            published: false,
            nodes: None,
            addons: None,
            workers: None,
            told: None,
            lost: false,
            leaving: None,
            queued: false,
        }
    }

    /// Nothing done before others are.
    fn queued(observed: &Observed) -> Self {
        // Not how many, as above.
        let waits = || {
            State::no(
                Reason::Queued,
                "Clusters are made a few at a time, and others come first.",
            )
        };
        let store = Store {
            state: waits(),
            account: None,
            bytes: None,
        };
        Self {
            certificates: waits(),
            queued: true,
            ..Self::new(store, observed)
        }
    }
}

/// Carries out an accepted spec as far as it goes now.
pub(super) async fn apply(
    context: &Context,
    cluster: &Cluster,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
) -> Result<Applied, ReconcileError> {
    let identity = blueprint.identity;
    if !is_begun(context, blueprint) && !context.turns.take(find_wanted(cluster, identity)) {
        return Ok(Applied::queued(observed));
    }
    let is_asleep = Rest::of(cluster).is_asleep();
    let size = Size {
        quota: blueprint.accepted.quota,
        replicas: blueprint.accepted.class.store_replicas,
    };
    let (surroundings, certificates, service_account, store) = tokio::join!(
        apply_surroundings(context, blueprint, observed, is_asleep),
        apply_certificates(context, blueprint),
        kept::ensure_service_account(context, cluster, identity),
        store::ensure(context, cluster, identity, size),
    );
    surroundings?;
    certificates?;
    service_account?;
    let mut applied = Applied::new(store?, observed);
    let plan = &blueprint.accepted.plan;
    let mut asked = Asked {
        asleep: plan_told(
            context,
            cluster,
            identity,
            observed,
            (applied.store.state.status != Some(true)).then_some(applied.store.state.reason),
            Rest::of(cluster).to_told(&identity.uid),
        ),
        ..Asked::of(blueprint.spec)
    };
    applied.told.clone_from(&asked.asleep);
    let copied = copies::bring(context, identity, plan, (asked.clone(), !is_asleep), &mut applied).await?;
    let gist = match copied {
        Some(Copied { gist, given }) => {
            given?;
            context.turns.finish(&identity.id);
            Some(gist)
        }
        None => {
            // Who connects must not find a pod that is to end, nor a sleeper before an API that answers.
            withdraw::tell_asleep(context, identity, asked.asleep.clone()).await?;
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
    // Who connects goes to the API as soon as that answers, and not before.
    if asked.asleep.is_some()
        && let Some(pod) = observed.staying_pod()
        && probe::answers(context, cluster, identity, observed, &reach).await
    {
        (asked.asleep, applied.told) = (None, None);
        let ingress = hosted::build_ingress(identity, asked.clone(), &reach.trust);
        context.clusters.apply(&context.caches.config_maps, &ingress).await?;
        note_let_in(context, identity, pod);
        context.starts.finish(&identity.id);
    }
    probe::look_at_api(context, identity, observed, &reach, &asked, &mut applied).await;
    let generation = cluster.metadata.generation;
    applied.addons = addons::ensure(context, blueprint, generation, &reach.kubelet_ca, &applied).await;
    let accepted = Some(blueprint.accepted.version);
    applied.workers = workers::ensure(context, cluster, &identity.id, accepted, &applied).await;
    Ok(applied)
}

/// Whether certificates of a Cluster were asked for already: what is begun goes on.
fn is_begun(context: &Context, blueprint: &Blueprint<'_>) -> bool {
    let mut certificates = blueprint.accepted.plan.certificates.iter();
    certificates.any(|certificate| context.caches.certificates.has(PKI_NAMESPACE, &certificate.name_any()))
}

fn find_wanted(cluster: &Cluster, identity: &Identity) -> Wanted {
    Wanted {
        id: identity.id.clone(),
        cluster: ObjectRef::from_obj(cluster),
        is_asleep: Rest::of(cluster).is_asleep(),
        created: cluster.creation_timestamp().map(|created| created.0),
    }
}

/// What the ingress tells those who connect while no API answers; `missing_store` is why there is no store, if there is none.
pub(super) fn plan_told(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    missing_store: Option<Reason>,
    wanted: Option<Asleep>,
) -> Option<Asleep> {
    let before = withdraw::find_told(context, identity).and_then(|told| told.asleep);
    let answers = answers(context, cluster, identity, observed);
    let set = observed.stateful_set.as_deref();
    let wait = || match (
        lost::plan_control_plane(context, identity, set, observed),
        missing_store,
    ) {
        _ if !context.starts.has_had_time(&identity.id, rest::LONGEST_WAKE) => None,
        (ControlPlane::Pending(why), _) => Some(why),
        (ControlPlane::Failing(failure), _) => Some(failure.to_string()),
        (ControlPlane::Running { .. }, _) => {
            let failure = observed.staying_pod().and_then(gate::find_restarted);
            Some(failure.map_or_else(
                || "The API server does not answer yet.".to_owned(),
                |failure| failure.to_string(),
            ))
        }
        // Not what the host's NATS says: whoever connects reads it.
        (ControlPlane::Absent, Some(reason)) => Some(format!(
            "Its store is not there ({reason}): see the Cluster's condition StoreReady."
        )),
        (ControlPlane::Absent | ControlPlane::Asleep | ControlPlane::GoingToSleep, _) => {
            Some("No pod is made yet: see the Cluster's condition Ready.".to_owned())
        }
    };
    let told = rest::plan_told(wanted, before.as_ref(), answers, wait, Timestamp::now());
    if let (Some(Asleep::Waking { .. }), None, Some(pod)) = (&before, &told, observed.staying_pod()) {
        note_let_in(context, identity, pod);
    }
    told
}

/// Notes that the ingress lets in those who woke a Cluster, as of now unless that is known.
fn note_let_in(context: &Context, identity: &Identity, pod: &Pod) {
    let Some(uid) = pod.uid() else {
        return;
    };
    context.note_awake(&identity.id, |awake| {
        if awake.told.as_ref().is_none_or(|(known, _)| *known != uid) {
            awake.told = Some((uid, Instant::now()));
        }
    });
}

/// Whether the API of a pod that stays is known to answer.
pub(super) fn answers(context: &Context, cluster: &Cluster, identity: &Identity, observed: &Observed) -> bool {
    // The cache may lag behind what the ingress was told, and the kubelet behind the API. Of a first start the kubelet does
    // not know when it is complete.
    let known = context.awake(&identity.id).told.map(|(pod, _)| pod);
    let found = kept::had_api(cluster) && observed.answers().is_ok();
    observed.staying_pod().is_some_and(|pod| {
        let uid = &pod.metadata.uid;
        // Of one that was lost the kubelet's last word stays.
        !context.losses.has(&identity.id, uid.as_deref()) && (found || known.is_some() && known == *uid)
    })
}

/// The hosted namespace, then what is in it and waits for nothing.
async fn apply_surroundings(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    is_asleep: bool,
) -> Result<(), ReconcileError> {
    ensure_namespace(context, blueprint.identity, blueprint.spec.deletion_policy, observed).await?;
    let files = hosted::build_api_server_files(blueprint);
    tokio::try_join!(
        doors::apply(context, blueprint.identity, observed, blueprint.open(), is_asleep),
        async { Ok(context.clusters.apply(&context.caches.config_maps, &files).await?) },
    )?;
    Ok(())
}

/// A namespace is made, and adopted from nobody but a Cluster of this one's name that is gone: one that exists must say so.
pub(super) async fn ensure_namespace(
    context: &Context,
    identity: &Identity,
    policy: DeletionPolicy,
    observed: &Observed,
) -> Result<(), ReconcileError> {
    let wanted = hosted::build_namespace(identity, policy);
    if let Some(namespace) = observed.namespace.as_deref()
        && namespace.metadata.deletion_timestamp.is_none()
        && is_annotated(namespace, &wanted)
        && namespace.metadata.labels == wanted.metadata.labels.clone().map(|labels| with_name(labels, identity))
    {
        return Ok(());
    }
    let api = Api::<Namespace>::all(context.client.clone());
    if context.clusters.create(&api, &wanted).await?.is_some() {
        return Ok(());
    }
    let name = identity.hosted().to_string();
    let found = api
        .get_opt(&name)
        .await
        .map_err(ReconcileError::host("the hosted namespace"))?;
    match found {
        Some(namespace) if is_foreign(&namespace, identity, || context.caches.clusters.outlines()) => {
            Err(ReconcileError::Foreign(name))
        }
        Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => Err(ReconcileError::Ending(name)),
        Some(_) => {
            let patch = kube::api::Patch::Apply(&wanted);
            api.patch(&name, context.clusters.params(), &patch)
                .await
                .map_err(ReconcileError::host("the hosted namespace"))?;
            Ok(())
        }
        None => Err(ReconcileError::Ending(name)),
    }
}

/// Whether a namespace has the annotations that it should, of which others may have added some.
fn is_annotated(namespace: &Namespace, wanted: &Namespace) -> bool {
    let mut annotations = wanted.annotations().iter();
    annotations.all(|(key, value)| namespace.annotations().get(key) == Some(value))
}

/// The API server labels every namespace with its own name.
fn with_name(
    mut labels: std::collections::BTreeMap<String, String>,
    identity: &Identity,
) -> std::collections::BTreeMap<String, String> {
    labels.insert("kubernetes.io/metadata.name".into(), identity.hosted().to_string());
    labels
}

async fn apply_certificates(context: &Context, blueprint: &Blueprint<'_>) -> Result<(), ReconcileError> {
    let plan = &blueprint.accepted.plan;
    let caches = &context.caches;
    let issuers = plan
        .issuers
        .iter()
        .map(|issuer| context.clusters.apply(&caches.issuers, issuer));
    let certificates = plan
        .certificates
        .iter()
        .map(|certificate| context.clusters.apply(&caches.certificates, certificate));
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

/// Removes a leaf that is not asked for any more; its Secrets after its Certificate, or cert-manager would issue it again.
async fn remove_leaf(context: &Context, identity: &Identity, role: LeafRole, copy: &str) -> Result<(), ApplyError> {
    let caches = &context.caches;
    let leaf = role.object_name(&identity.id);
    if caches.certificates.has(PKI_NAMESPACE, &leaf) {
        context.clusters.delete_at::<Certificate>(PKI_NAMESPACE, &leaf).await?;
        return Ok(());
    }
    let hosted = identity.hosted();
    for (namespace, name) in [(PKI_NAMESPACE, leaf.as_str()), (hosted.as_str(), copy)] {
        if caches.secrets.has(namespace, name) {
            context.clusters.delete_at::<Secret>(namespace, name).await?;
        }
    }
    Ok(())
}

/// Whether a control plane that runs is not started anew yet, because others are. What its owner asked for is done at once,
/// by a JoinToken too, and so is what would end it anyway. One of which a part fails already would keep its turn for long.
fn waits_for_turn(
    context: &Context,
    cluster: &Cluster,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    (control_plane, planned): (&ControlPlane, Incarnation),
    gets_agents: bool,
) -> bool {
    let identity = blueprint.identity;
    if context.losses.of(&identity.id).is_some() {
        context.restarts.finish(&identity.id);
        return false;
    }
    let asked_for = gate::running_incarnation(observed.stateful_set.as_deref());
    match (control_plane, planned) {
        (ControlPlane::Running { failing, .. }, Incarnation::New(_)) => {
            let seen = cluster.status.as_ref().and_then(|status| status.observed_generation);
            // On the way to the version that was asked for.
            let is_next = super::running_version(cluster).is_some_and(|noted| noted != blueprint.accepted.version);
            let is_at_once = gets_agents
                || is_next
                || failing.is_some()
                || seen != cluster.metadata.generation
                || Rest::of(cluster).is_asleep()
                || takeover::is_leaving(context, observed)
                || takeover::is_ending(observed);
            if is_at_once {
                context.restarts.finish(&identity.id);
            }
            !is_at_once && !context.restarts.take(find_wanted(cluster, identity))
        }
        (ControlPlane::Running { current: true, .. }, Incarnation::Same(number))
            if asked_for == Some(number) && observed.is_whole() =>
        {
            context.restarts.finish(&identity.id);
            false
        }
        (ControlPlane::Asleep, _) => {
            context.restarts.finish(&identity.id);
            false
        }
        _ => false,
    }
}

/// Whether a control plane is not started yet where none runs, because others are.
fn waits_to_start(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    control_plane: &ControlPlane,
    is_lost: bool,
) -> bool {
    let is_asleep = Rest::of(cluster).is_asleep();
    let answers = answers(context, cluster, identity, observed);
    match gate::plan_start(control_plane, &observed.pods, is_asleep, is_lost, answers) {
        Start::Begins => {
            let machines = context.caches.machines.state();
            let taints = &context.config.planned_takeover.taints;
            let classes = context.config.classes.iter();
            let classes: Vec<_> = classes.map(|class| class.tolerations.as_slice()).collect();
            let cores = notice::plan::count_cores(&machines, taints, &classes);
            context.starts.set_rule(Rule::of_starts(cores));
            !context.starts.take(find_wanted(cluster, identity))
        }
        Start::Goes => false,
        Start::Over => {
            context.starts.finish(&identity.id);
            false
        }
    }
}

/// Brings the control plane to what its spec asks for. Without a gist, while a certificate is issued again, one that is
/// there goes on with what it was given.
async fn apply_control_plane(
    context: &Context,
    cluster: &Cluster,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    gist: Option<&Gist>,
    is_asleep: bool,
    applied: &mut Applied,
) -> Result<(), ReconcileError> {
    let caches = &context.caches;
    let present = observed.stateful_set.as_deref();
    applied.control_plane = lost::plan_control_plane(context, blueprint.identity, present, observed);
    let store_ready = applied.store.state.status == Some(true);
    // Once there is a control plane it is kept in step even while NATS does not answer the operator.
    if !store_ready && observed.stateful_set.is_none() {
        return Ok(());
    }
    // What NATS could not be given yet, a control plane that runs without it goes on without.
    let has_spare = streams::has_spare(blueprint.accepted.class.store_replicas)
        && (store_ready || present.is_some_and(stateful_set::uses_spare));
    // It reads the serving certificate once: it is not started with one that lacks its name.
    let has_konnectivity = blueprint.spec.konnectivity.is_enabled()
        && (present.is_some_and(stateful_set::has_konnectivity) || gist.is_some_and(|gist| gist.serves_konnectivity));
    // Asleep it has no machine, and begins anew.
    let lost = match is_asleep {
        true => lost::find_stuck(observed),
        false => lost::find(context, blueprint.identity, observed),
    };
    let present = present.and_then(stateful_set::read_digest);
    // A certificate that is issued again changes nothing that is read once.
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
    let planned = incarnation::plan(context, blueprint.identity, observed, &template);
    // Somebody waits for it.
    let had_agents = observed
        .stateful_set
        .as_deref()
        .is_some_and(stateful_set::has_konnectivity);
    let gets_agents = has_konnectivity && !had_agents && agents::are_awaited(caches, cluster);
    let state = (&applied.control_plane, planned);
    if waits_for_turn(context, cluster, blueprint, observed, state, gets_agents) {
        return Ok(());
    }
    let is_lost = start.lost.is_some() && start.lost != observed.stateful_set.as_deref().and_then(place::read_lost);
    if waits_to_start(
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
    start.incarnation = incarnation::ensure(context, blueprint.identity, planned, &template).await?;
    let mut pods = match is_asleep {
        true => takeover::Pods::none(start.first),
        false => takeover::plan_pods(context, blueprint.identity, observed, start.incarnation),
    };
    let reach = gist.and_then(|gist| gist.reach.as_deref());
    // One that is ready is reached before the former ends, which begins by the change of the set, or by its release.
    let mut has_taken = pods.step == takeover::Step::Replace;
    if pods.step == takeover::Step::TakeOver {
        let has_other = gate::takeover::has_other(observed.stateful_set.as_deref(), &observed.pods);
        has_taken = takeover::hand_over(context, blueprint, observed, reach, (pods.first, has_other)).await?;
        if !has_taken {
            (pods.first, pods.replicas) = (pods.first - 1, 2);
        }
    }
    (start.first, start.replicas) = (pods.first, pods.replicas);
    let set = stateful_set::build_stateful_set(blueprint, &start);
    let (applied_set, ()) = tokio::join!(
        context.clusters.apply(&caches.stateful_sets, &set),
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
    copies::replace_stuck(context, observed).await?;
    let lost = start.lost.as_ref();
    lost::remove(context, blueprint.identity, observed, start.incarnation, lost).await?;
    applied.control_plane = takeover::plan_lingering(&pods, &set)
        .unwrap_or_else(|| lost::plan_control_plane(context, blueprint.identity, Some(&set), observed));
    applied.lost = context.losses.of(&blueprint.identity.id).is_some();
    Ok(())
}
