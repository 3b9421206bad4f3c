//! Writes what was built, in the order that gets an API soonest: whatever waits for nothing goes out at once.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::DeleteParams;
use kube::runtime::reflector::ObjectRef;
use yoke_api::Reason;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::LeafRole;

use super::build::{Blueprint, Materials, hosted, secrets, stateful_set};
use super::gate::{self, ControlPlane, Template};
use super::observe::{Observed, is_foreign};
use super::probe;
use super::store::{self, Store, data_of};
use crate::conditions::State;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::nats::streams::StreamsPlan;

/// How long what a predecessor found out is believed, while the operator itself reaches nothing.
const DOORS_OPEN: Duration = Duration::from_secs(10);
const NODES_EVERY: Duration = Duration::from_secs(30);

/// What was done and found.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) store: Store,
    pub(super) certificates: State,
    pub(super) ca_not_after: Option<Timestamp>,
    pub(super) control_plane: ControlPlane,
    pub(super) inside: Result<(), String>,
    pub(super) outside: Result<(), String>,
    pub(super) published: bool,
    pub(super) nodes: Option<i32>,
}

/// Carries out an accepted spec as far as it goes now.
pub(super) async fn apply(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
) -> Result<Applied, ReconcileError> {
    let identity = blueprint.identity;
    let keys = store::find_account(context, &identity.tenant)?;
    let streams = StreamsPlan {
        id: identity.id.clone(),
        quota: blueprint.accepted.quota,
        replicas: blueprint.accepted.class.store_replicas,
    };
    let credentials = async {
        match &keys {
            Some(keys) => store::ensure_user(context, identity, keys).await.map(Some),
            None => Ok(None),
        }
    };
    let (surroundings, certificates, service_account, credentials, store) = tokio::join!(
        apply_surroundings(context, blueprint, observed),
        apply_certificates(context, blueprint),
        store::ensure_service_account(context, identity),
        credentials,
        store::ensure_streams(context, &streams, keys.as_ref()),
    );
    surroundings?;
    certificates?;
    let (service_account, credentials) = (service_account?, credentials?);
    let mut applied = Applied {
        store,
        certificates: State::no(Reason::CertificatesPending, "Certificates are being issued."),
        ca_not_after: None,
        control_plane: gate::plan_control_plane(observed.stateful_set.as_deref(), &observed.pods, None),
        inside: Err("the control plane is not there yet".into()),
        outside: Err("the control plane is not there yet".into()),
        published: false,
        nodes: None,
    };
    let Some(credentials) = credentials else {
        return Ok(applied);
    };
    let materials = read_materials(context, blueprint, &service_account, &credentials).await?;
    match materials {
        Ok(materials) => apply_control_plane(context, blueprint, observed, &materials, &mut applied).await?,
        Err(missing) => {
            applied.certificates = State::no(
                Reason::CertificatesPending,
                format!("{} certificates are being issued.", missing.len()),
            );
        }
    }
    Ok(applied)
}

/// The hosted namespace, then what is in it and waits for nothing.
async fn apply_surroundings(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
) -> Result<(), ReconcileError> {
    let caches = &context.caches;
    ensure_namespace(context, blueprint, observed).await?;
    let (service, policy, files) = (
        hosted::build_service(blueprint.identity),
        hosted::build_network_policy(blueprint),
        hosted::build_api_server_files(blueprint),
    );
    tokio::try_join!(
        context.clusters.apply(&caches.services, &service),
        context.clusters.apply(&caches.network_policies, &policy),
        context.clusters.apply(&caches.config_maps, &files),
    )?;
    Ok(())
}

/// A namespace is made, never adopted: one that exists must say that it is this Cluster's.
async fn ensure_namespace(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
) -> Result<(), ReconcileError> {
    let wanted = hosted::build_namespace(blueprint.identity);
    if let Some(namespace) = observed.namespace.as_deref()
        && namespace.metadata.deletion_timestamp.is_none()
        && namespace.metadata.labels
            == wanted
                .metadata
                .labels
                .clone()
                .map(|labels| with_name(labels, blueprint))
    {
        return Ok(());
    }
    let api = Api::<Namespace>::all(context.client.clone());
    if context.clusters.create(&api, &wanted).await?.is_some() {
        return Ok(());
    }
    let name = blueprint.identity.hosted().to_string();
    let found = api
        .get_opt(&name)
        .await
        .map_err(ReconcileError::host("the hosted namespace"))?;
    match found {
        Some(namespace) if is_foreign(&namespace, blueprint.identity) => Err(ReconcileError::Foreign(name)),
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

/// The API server labels every namespace with its own name.
fn with_name(
    mut labels: std::collections::BTreeMap<String, String>,
    blueprint: &Blueprint<'_>,
) -> std::collections::BTreeMap<String, String> {
    labels.insert(
        "kubernetes.io/metadata.name".into(),
        blueprint.identity.hosted().to_string(),
    );
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
    Ok(())
}

async fn read_materials(
    context: &Context,
    blueprint: &Blueprint<'_>,
    service_account: &str,
    credentials: &str,
) -> Result<Result<Materials, Vec<String>>, ReconcileError> {
    let root = context.root().await?;
    let secrets = &context.caches.secrets;
    let sources = secrets::Sources {
        secret: |name: &str| {
            let key = ObjectRef::<Secret>::new(name).within(PKI_NAMESPACE);
            secrets.get(&key).map(|secret| data_of(&secret))
        },
        root: &root,
        service_account,
        store_credentials: credentials,
        nats_ca: &context.nats_ca,
    };
    Ok(Materials::read(&blueprint.accepted.plan, &sources)?)
}

async fn apply_control_plane(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    materials: &Materials,
    applied: &mut Applied,
) -> Result<(), ReconcileError> {
    let caches = &context.caches;
    let components = secrets::build_component_secrets(blueprint, materials)?;
    let kubeconfig = secrets::build_kubeconfig(blueprint, materials)?;
    let ingress = hosted::build_ingress(blueprint, materials);
    let copies = components
        .iter()
        .map(|secret| context.clusters.apply(&caches.secrets, secret));
    tokio::try_join!(
        futures::future::try_join_all(copies),
        context.clusters.apply(&caches.secrets, &kubeconfig),
        context.clusters.apply(&caches.config_maps, &ingress),
    )?;
    applied.published = true;
    applied.ca_not_after = Some(materials.ca_not_after);
    applied.certificates = State::yes(Reason::AsExpected, "Every certificate is issued and copied.");
    let asleep = blueprint.spec.state == yoke_api::cluster::DesiredState::Asleep;
    let store_ready = applied.store.state.status == Some(true);
    // Once there is a control plane it is kept in step even while NATS does not answer the operator.
    if !store_ready && observed.stateful_set.is_none() {
        return Ok(());
    }
    let start = stateful_set::Start {
        incarnation: gate::plan_incarnation(observed.stateful_set.as_deref(), 0),
        digest: materials.restart_digest(),
        replicas: i32::from(!asleep),
    };
    let set = stateful_set::build_stateful_set(blueprint, &start);
    context.clusters.apply(&caches.stateful_sets, &set).await?;
    replace_stuck(context, observed).await?;
    let template = Template {
        version: blueprint.accepted.version.to_string(),
        digest: start.digest,
    };
    applied.control_plane = gate::plan_control_plane(Some(&set), &observed.pods, Some(&template));
    if asleep {
        return Ok(());
    }
    look_at_api(context, blueprint, observed, materials, applied).await;
    Ok(())
}

async fn replace_stuck(context: &Context, observed: &Observed) -> Result<(), ReconcileError> {
    let Some(pod) = gate::plan_replacement(&observed.pods, Timestamp::now()) else {
        return Ok(());
    };
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let api = Api::<Pod>::namespaced(context.client.clone(), &namespace);
    let name = pod.metadata.name.clone().unwrap_or_default();
    tracing::info!(namespace, pod = name, "control plane waits in back-off and is replaced");
    match api.delete(&name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(ReconcileError::host("a stuck pod")(error)),
    }
}

async fn look_at_api(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    materials: &Materials,
    applied: &mut Applied,
) {
    let ControlPlane::Running { pod, .. } = &applied.control_plane else {
        return;
    };
    let Some(inside) = probe::inside(
        blueprint,
        observed.service.as_deref(),
        materials.leaf(LeafRole::Operator),
        materials,
    ) else {
        return;
    };
    let id = &blueprint.identity.id;
    let answer = probe::look(context, blueprint, pod, &inside).await;
    let works = answer.inside.is_ok() && answer.outside.is_ok();
    let mut began = Instant::now();
    let mut answered = works;
    context.note(id, |seen| {
        let (since, before) = seen.asked.unwrap_or((began, false));
        seen.asked = Some((since, before || works));
        (began, answered) = (since, before || works);
    });
    // An operator that has just started may not be let through yet: the doors open by its pod's address.
    if !answered && observed.is_trusted && began.elapsed() < DOORS_OPEN {
        (applied.inside, applied.outside) = (Ok(()), Ok(()));
        return;
    }
    applied.inside = answer.inside;
    applied.outside = answer.outside;
    if applied.inside.is_err() || applied.outside.is_err() {
        return;
    }
    let seen = context.seen(id);
    applied.nodes = match seen.nodes {
        Some((nodes, since)) if since.elapsed() < NODES_EVERY => Some(nodes),
        _ => probe::count_nodes(context, id, &inside).await,
    };
    if let Some(nodes) = applied.nodes {
        context.note(id, |seen| {
            let fresh = seen.nodes.is_some_and(|(_, since)| since.elapsed() < NODES_EVERY);
            if !fresh {
                seen.nodes = Some((nodes, Instant::now()));
            }
        });
    }
}
