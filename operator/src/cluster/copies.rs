//! Copies what was issued and drawn to where it is used: the control plane, the ingress, the tenant. What runs needs this
//! to go on for ever, whatever becomes of the spec.

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::DeleteParams;
use kube::runtime::reflector::ObjectRef;
use yoke_api::Reason;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::Plan;

use super::apply::Applied;
use super::build::hosted::{self, Asked};
use super::build::{Materials, secrets};
use super::gate;
use super::identity::Identity;
use super::kept::data_of;
use super::observe::Observed;
use crate::conditions::State;
use crate::context::Context;
use crate::error::ReconcileError;

/// Reads what was issued; `Ok(Err(names))` are those that are not issued yet.
pub(super) async fn read(
    context: &Context,
    identity: &Identity,
    plan: &Plan,
    service_account: &str,
    credentials: &str,
) -> Result<Result<Materials, Vec<String>>, ReconcileError> {
    let root = context.root().await?;
    let secrets = &context.caches.secrets;
    let key = ObjectRef::<Secret>::new(secrets::API_SERVER).within(identity.hosted().as_str());
    let copied = secrets.get(&key).map(|secret| data_of(&secret)).unwrap_or_default();
    let sources = secrets::Sources {
        copied: &copied,
        now: Timestamp::now(),
        secret: |name: &str| {
            let key = ObjectRef::<Secret>::new(name).within(PKI_NAMESPACE);
            secrets.get(&key).map(|secret| data_of(&secret))
        },
        root: &root,
        service_account,
        store_credentials: credentials,
        nats_ca: &context.nats_ca,
    };
    let materials = Materials::read(plan, &sources)?;
    if let Ok(materials) = &materials
        && !materials.former.is_empty()
    {
        tracing::warn!(cluster = %identity.id, leaves = materials.former.join(" "), "leaves are of a CA that was lost");
    }
    Ok(materials)
}

/// Copies materials to the control plane first, then to those who are sent to it. What is given back is whether the tenant
/// has the kubeconfig: the Tenant's namespace may be ending, and the control plane not.
pub(super) async fn apply(
    context: &Context,
    identity: &Identity,
    asked: Asked,
    materials: &Materials,
    applied: &mut Applied,
) -> Result<Result<(), ReconcileError>, ReconcileError> {
    let caches = &context.caches;
    let components = secrets::build_component_secrets(identity, materials)?;
    let kubeconfig = secrets::build_kubeconfig(identity, &context.config, materials)?;
    let ingress = hosted::build_ingress(identity, asked, materials);
    let copies = components
        .iter()
        .map(|secret| context.clusters.apply(&caches.secrets, secret));
    // All are tried, then the first failure is told.
    let (copies, kubeconfig, ingress) = tokio::join!(
        futures::future::join_all(copies),
        context.clusters.apply(&caches.secrets, &kubeconfig),
        context.clusters.apply(&caches.config_maps, &ingress),
    );
    for result in copies.into_iter().chain([ingress]) {
        result?;
    }
    applied.published = kubeconfig.is_ok();
    applied.ca_not_after = Some(materials.ca_not_after);
    let message = match materials.former.len() {
        0 => "Every certificate is issued and copied.".to_owned(),
        count => format!(
            "Every certificate is issued and copied; {count} are of a CA whose key was lost, which is trusted until they are renewed."
        ),
    };
    applied.certificates = State::yes(Reason::AsExpected, message);
    Ok(kubeconfig.map(|_| ()).map_err(ReconcileError::from))
}

/// Replaces a pod that waits in back-off.
pub(super) async fn replace_stuck(context: &Context, observed: &Observed) -> Result<(), ReconcileError> {
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
