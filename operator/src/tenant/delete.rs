//! Removes a Tenant once its Clusters are gone: the data that they left, then the namespace.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, Lenient, Reason, Tenant};

use super::{build, patch};
use crate::apply::is_held;
use crate::cluster;
use crate::context::Context;
use crate::error::ReconcileError;

const AGAIN: Duration = Duration::from_secs(2);
/// When to look again at a Tenant that still has Clusters.
const REMAIN: Duration = Duration::from_secs(30);
/// Of Clusters that cannot be read so many are counted.
const PAGE: u32 = 8;

pub(super) async fn delete(context: &Context, tenant: &Tenant) -> Result<Action, ReconcileError> {
    if !is_held(tenant) {
        return Ok(Action::await_change());
    }
    let name = tenant.name_any();
    let mut clusters = context.caches.clusters.outlines_in(&name).len();
    if clusters == 0 {
        clusters = count_clusters(context, &name).await?;
    }
    if clusters > 0 {
        let message = format!("{clusters} Clusters of the Tenant must be deleted first.");
        patch::write_deleting(context, tenant, clusters, Reason::ClustersRemain, message).await?;
        // What cannot be read calls for nobody when it goes.
        return Ok(Action::requeue(REMAIN));
    }
    if delete_left(context, &name).await? {
        let message = "What Clusters left is being removed.".to_owned();
        patch::write_deleting(context, tenant, 0, Reason::Deleting, message).await?;
        return Ok(Action::requeue(AGAIN));
    }
    let namespace = context.caches.namespaces.get(&ObjectRef::<Namespace>::new(&name));
    if let Some(namespace) = namespace.filter(|namespace| build::is_owned(namespace, tenant)) {
        if namespace.metadata.deletion_timestamp.is_none() {
            let api = Api::<Namespace>::all(context.client.clone());
            context.tenants.delete(&api, namespace.as_ref()).await?;
        }
        let message = format!("Namespace {name} is being deleted.");
        patch::write_deleting(context, tenant, 0, Reason::Deleting, message).await?;
        return Ok(Action::requeue(AGAIN));
    }
    patch::release(context, tenant).await?;
    Ok(Action::await_change())
}

/// How many Clusters the host's API has in a namespace, be it that one cannot be read: it is in no cache, and may live.
async fn count_clusters(context: &Context, namespace: &str) -> Result<usize, ReconcileError> {
    let api = Api::<Lenient<Cluster>>::namespaced(context.client.clone(), namespace);
    let found = api.list(&ListParams::default().limit(PAGE)).await;
    Ok(found
        .map_err(ReconcileError::host("the Tenant's Clusters"))?
        .items
        .len())
}

/// Says whether something must be gone before more can be removed.
async fn delete_left(context: &Context, tenant: &str) -> Result<bool, ReconcileError> {
    let secrets = |namespace: &str| Api::<Secret>::namespaced(context.client.clone(), namespace);
    let mut waits = false;
    for left in cluster::find_left(context, tenant) {
        // An account that is deleted must not come back from it.
        if let Some(copy) = left.copy {
            waits = true;
            let hosted = left.id.hosted_namespace();
            let is_own = |found: &PartialObjectMeta<Secret>| cluster::is_of_tenant(&found.metadata, tenant);
            context
                .tenants
                .delete_named(&secrets(hosted.as_str()), &copy, is_own)
                .await?;
            continue;
        }
        context.nats.delete_account(&left.id, &left.account.public_key).await?;
        context.tenants.delete(&secrets(PKI_NAMESPACE), &left.secret).await?;
    }
    Ok(waits)
}
