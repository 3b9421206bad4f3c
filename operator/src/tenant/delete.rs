//! Deletes a Tenant once its Clusters are gone: first their retained data, then the namespace.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, Lenient, Reason, Tenant};

use crate::cluster;
use crate::error::ReconcileError;
use crate::host_api::apply::is_held;
use crate::model::tenant_namespace;
use crate::tenant::context::Context;
use crate::tenant::patch;

const AGAIN: Duration = Duration::from_secs(2);
/// Requeue delay while the Tenant has Clusters.
const REMAIN: Duration = Duration::from_secs(30);
/// Maximum number of Clusters counted, including those that cannot be decoded.
const PAGE: u32 = 8;

pub(super) async fn delete(context: &Context, tenant: &Tenant) -> Result<Action, ReconcileError> {
    if !is_held(tenant) {
        return Ok(Action::await_change());
    }
    let name = tenant.name_any();
    let mut clusters = context.host.caches.clusters.summaries_in(&name).len();
    if clusters == 0 {
        clusters = count_clusters(context, &name).await?;
    }
    if clusters > 0 {
        let message = format!("{clusters} Clusters of the Tenant exist. Delete them first.");
        patch::write_deleting(context, tenant, clusters, Reason::ClustersRemain, message).await?;
        // The deletion of a Cluster that cannot be decoded does not requeue the Tenant.
        return Ok(Action::requeue(REMAIN));
    }
    if delete_left(context, &name).await? {
        let message = "The retained data of deleted Clusters is being deleted.".to_owned();
        patch::write_deleting(context, tenant, 0, Reason::Deleting, message).await?;
        return Ok(Action::requeue(AGAIN));
    }
    let namespace = context.host.caches.namespaces.get(&ObjectRef::<Namespace>::new(&name));
    if let Some(namespace) = namespace.filter(|namespace| tenant_namespace::is_owned(namespace, tenant)) {
        if namespace.metadata.deletion_timestamp.is_none() {
            let api = Api::<Namespace>::all(context.host.client.clone());
            context.applier.delete(&api, namespace.as_ref()).await?;
        }
        let message = format!("Namespace {name} is being deleted.");
        patch::write_deleting(context, tenant, 0, Reason::Deleting, message).await?;
        return Ok(Action::requeue(AGAIN));
    }
    patch::release(context, tenant).await?;
    Ok(Action::await_change())
}

/// Counts the Clusters in a namespace through the host API. A Cluster that cannot be decoded is in
/// no cache, but exists.
async fn count_clusters(context: &Context, namespace: &str) -> Result<usize, ReconcileError> {
    let api = Api::<Lenient<Cluster>>::namespaced(context.host.client.clone(), namespace);
    let found = api.list(&ListParams::default().limit(PAGE)).await;
    Ok(found
        .map_err(ReconcileError::host("the Tenant's Clusters"))?
        .items
        .len())
}

/// Deletes the retained data of Clusters. Returns whether a deletion is still in progress.
async fn delete_left(context: &Context, tenant: &str) -> Result<bool, ReconcileError> {
    let secrets = |namespace: &str| Api::<Secret>::namespaced(context.host.client.clone(), namespace);
    let mut waits = false;
    for left in cluster::find_retained_stores(&context.host, tenant) {
        // Until the copy is gone, a deleted account could be restored from it.
        if let Some(copy) = left.copy {
            waits = true;
            let hosted = left.id.hosted_namespace();
            let is_own = |found: &PartialObjectMeta<Secret>| cluster::is_of_tenant(&found.metadata, tenant);
            context
                .applier
                .delete_named(&secrets(hosted.as_str()), &copy, is_own)
                .await?;
            continue;
        }
        context.nats.delete_account(&left.id, &left.account.public_key).await?;
        context.applier.delete(&secrets(PKI_NAMESPACE), &left.secret).await?;
    }
    Ok(waits)
}
