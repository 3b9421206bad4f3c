//! Creates the control-plane namespace.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};
use yoke_api::cluster::DeletionPolicy;

use crate::cluster::context::Context;
use crate::cluster::observed::Observed;
use crate::cluster::ownership::is_foreign;
use crate::cluster::resources::objects;
use crate::error::ReconcileError;
use crate::model::identity::Identity;

/// Creates the control-plane namespace. An existing namespace must be labeled as this Cluster's
/// own, or as that of a deleted Cluster with the same name.
pub(crate) async fn ensure_namespace(
    context: &Context,
    identity: &Identity,
    policy: DeletionPolicy,
    observed: &Observed,
) -> Result<(), ReconcileError> {
    let wanted = objects::build_namespace(identity, policy);
    if let Some(namespace) = observed.namespace.as_deref()
        && namespace.metadata.deletion_timestamp.is_none()
        && is_annotated(namespace, &wanted)
        && namespace.metadata.labels
            == wanted
                .metadata
                .labels
                .clone()
                .map(|labels| with_name_label(labels, identity))
    {
        return Ok(());
    }
    let api = Api::<Namespace>::all(context.host.client.clone());
    if context.applier.create(&api, &wanted).await?.is_some() {
        return Ok(());
    }
    let name = identity.hosted().to_string();
    let found = api
        .get_opt(&name)
        .await
        .map_err(ReconcileError::host("the control-plane namespace"))?;
    match found {
        Some(namespace) if is_foreign(&namespace, identity, || context.host.caches.clusters.summaries()) => {
            Err(ReconcileError::Foreign(name))
        }
        Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => Err(ReconcileError::Ending(name)),
        Some(_) => {
            let patch = kube::api::Patch::Apply(&wanted);
            api.patch(&name, context.applier.params(), &patch)
                .await
                .map_err(ReconcileError::host("the control-plane namespace"))?;
            Ok(())
        }
        None => Err(ReconcileError::Ending(name)),
    }
}

/// Whether a namespace has the wanted annotations. Other clients may have added more.
pub(crate) fn is_annotated(namespace: &Namespace, wanted: &Namespace) -> bool {
    let mut annotations = wanted.annotations().iter();
    annotations.all(|(key, value)| namespace.annotations().get(key) == Some(value))
}

/// The API server labels every namespace with its own name.
pub(crate) fn with_name_label(
    mut labels: std::collections::BTreeMap<String, String>,
    identity: &Identity,
) -> std::collections::BTreeMap<String, String> {
    labels.insert("kubernetes.io/metadata.name".into(), identity.hosted().to_string());
    labels
}
