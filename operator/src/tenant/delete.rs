//! Removes a Tenant once its Clusters are gone: the account with what streams it still has, then the namespace.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::{Reason, Tenant};

use super::{account_secret, build, patch};
use crate::apply::is_held;
use crate::cluster::data_of;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::nats::AccountKeys;

const AGAIN: Duration = Duration::from_secs(2);

pub(super) async fn delete(context: &Context, tenant: &Tenant) -> Result<Action, ReconcileError> {
    if !is_held(tenant) {
        return Ok(Action::await_change());
    }
    let name = tenant.name_any();
    let clusters = context.caches.clusters_of(&name).len();
    if clusters > 0 {
        let message = format!("{clusters} Clusters of the Tenant must be deleted first.");
        patch::write_deleting(context, tenant, clusters, Reason::ClustersRemain, message).await?;
        return Ok(Action::await_change());
    }
    delete_account(context, tenant).await?;
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

async fn delete_account(context: &Context, tenant: &Tenant) -> Result<(), ReconcileError> {
    let api = Api::<Secret>::namespaced(context.client.clone(), &context.config.namespace);
    let name = account_secret(&tenant.name_any());
    let now = Timestamp::now().as_second();
    let Some(secret) = api
        .get_opt(&name)
        .await
        .map_err(ReconcileError::host("the account's Secret"))?
    else {
        // Without its keys the account is known by name only, which is all that its deletion needs.
        let account = tenant.status.as_ref().and_then(|status| status.account.as_deref());
        if let Some(account) = account {
            context.nats.delete_account(account, now).await?;
        }
        return Ok(());
    };
    let keys = AccountKeys::from_data(&data_of(&secret))?;
    context.nats.delete_account(&keys.public_key(), now).await?;
    context.tenants.delete(&api, &secret).await?;
    Ok(())
}
