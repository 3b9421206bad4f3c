//! A Tenant's account at NATS: its keys in a Secret, its claims at the server.
//!
//! A Secret that is lost is made anew: claims are signed by the operator, not by the account, so new keys may sign for an
//! account that goes on. The server's own copy of the claims tells by which key the users that live were signed.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use yoke_api::{Reason, Tenant};

use super::build::{account_secret, build_account_secret};
use crate::cluster::data_of;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::events::Notice;
use crate::nats::account::{AccountKeys, expired_revocations, revocations_of, to_retained};
use crate::nats::claims::same_claims;
use crate::nats::{NatsError, limits};
use crate::quantity;

type Data = BTreeMap<String, Vec<u8>>;

/// Pushes an account's claims if NATS has others, or none.
pub(crate) async fn push(context: &Context, tenant: &Tenant, secret: &Secret) -> Result<String, NatsError> {
    let data = data_of(secret);
    let keys = AccountKeys::from_data(&data).map_err(|error| NatsError::Malformed {
        what: "account keys",
        source: error.into(),
    })?;
    let quota = &tenant.spec.quota;
    let storage = quantity::to_bytes(&quota.storage).unwrap_or(1);
    let limits = limits::account_limits(quota.clusters, storage, context.config.max_store_replicas());
    let jwt = keys.account_jwt(
        &tenant.name_any(),
        limits,
        revocations_of(&data),
        Timestamp::now().as_second(),
        context.nats.signer(),
    )?;
    let account = keys.public_key();
    let found = context.nats.find_account(&account).await?;
    if !found.is_some_and(|found| same_claims(&found, &jwt)) {
        context.nats.push_account(&jwt).await?;
        tracing::info!(tenant = tenant.name_any(), "account is pushed to NATS");
    }
    Ok(account)
}

/// The Secret with the account's keys, made if there is none; `None` if the Tenant had an account, and the server knows
/// nothing of it either.
pub(crate) async fn ensure(context: &Context, tenant: &Tenant) -> Result<Option<Secret>, ReconcileError> {
    let name = account_secret(&tenant.name_any());
    let api = Api::<Secret>::namespaced(context.client.clone(), &context.config.namespace);
    // The watch may lag behind, and keys that are drawn twice are data lost.
    if let Some(found) = find(&api, &name).await? {
        return Ok(Some(found));
    }
    let had = tenant.status.as_ref().and_then(|status| status.account.clone());
    let clusters = context.caches.clusters_of(&tenant.name_any());
    // A Tenant that was restored may be without its status, and its Clusters with theirs.
    let accounts = clusters
        .iter()
        .filter_map(|cluster| Some(cluster.status.as_ref()?.storage.as_ref()?.account.clone()));
    let data = match had.or_else(|| accounts.min()) {
        None => AccountKeys::generate().to_data(),
        Some(account) => match recover(context, tenant, &account).await? {
            Some(data) => data,
            None => return Ok(None),
        },
    };
    let mut secret = build_account_secret(tenant, &context.config.namespace);
    secret.data = Some(data.into_iter().map(|(key, value)| (key, ByteString(value))).collect());
    if let Some(made) = context.tenants.create(&api, &secret).await? {
        return Ok(Some(made));
    }
    find(&api, &name).await
}

async fn find(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, ReconcileError> {
    let found = api.get_opt(name).await;
    found.map_err(ReconcileError::host("the account's Secret"))
}

/// New keys for an account that the server knows.
async fn recover(context: &Context, tenant: &Tenant, account: &str) -> Result<Option<Data>, ReconcileError> {
    let Some(jwt) = context.nats.find_account(account).await? else {
        return Ok(None);
    };
    let (keys, revocations) = AccountKeys::recover(account, &jwt)?;
    let mut data = keys.to_data();
    data.extend(revocations.into_iter().map(|(user, time)| to_retained(&user, time)));
    tracing::warn!(
        tenant = tenant.name_any(),
        "keys of the NATS account were lost and new ones are made"
    );
    let notice = Notice {
        warning: true,
        action: "Reconcile",
        reason: Reason::AccountKeyLost,
        note: "The keys of the NATS account were lost; new ones are made for the same account.".into(),
    };
    context.events.publish(tenant, &[notice]).await;
    Ok(Some(data))
}

/// Takes the revocations out of the Secret that need not be kept any longer.
pub(super) async fn prune(context: &Context, secret: Secret) -> Result<Secret, ReconcileError> {
    let expired = expired_revocations(&data_of(&secret), Timestamp::now().as_second());
    if expired.is_empty() {
        return Ok(secret);
    }
    tracing::info!(
        secret = secret.name_any(),
        count = expired.len(),
        "old revocations are dropped"
    );
    let patch = Pruning {
        data: expired.into_iter().map(|key| (key, None)).collect(),
    };
    let api = Api::<Secret>::namespaced(context.client.clone(), &context.config.namespace);
    api.patch(&secret.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(ReconcileError::host("the account's Secret"))
}

#[derive(Debug, Serialize)]
struct Pruning {
    data: BTreeMap<String, Option<String>>,
}
