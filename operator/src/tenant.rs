//! The Tenant controller: a namespace, a Role for the Tenant's subjects, an account at NATS.

pub mod build;
mod delete;
mod patch;
pub mod status;
pub mod validate;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::{Reason, Tenant, labels};

use crate::cluster::data_of;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::nats::account::{AccountKeys, revocations_of};
use crate::nats::claims::same_claims;
use crate::nats::{NatsError, limits};
use crate::quantity;
use status::Outcome;
use validate::Refusal;

pub use build::account_secret;

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "tenant";

/// NATS has no watch: accounts are looked at this often, and after a lost connection.
const STEADY: Duration = Duration::from_secs(60);

/// Pushes an account's claims if NATS has others, or none.
pub async fn push_account(context: &Context, tenant: &Tenant, secret: &Secret) -> Result<String, NatsError> {
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

/// Brings one Tenant to what its spec asks for.
pub async fn reconcile(tenant: Arc<Tenant>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let began = Instant::now();
    let result = if tenant.metadata.deletion_timestamp.is_some() {
        delete::delete(&context, &tenant).await
    } else {
        reconcile_living(&context, &tenant).await
    };
    context.metrics.reconciled(CONTROLLER, began.elapsed().as_secs_f64());
    result
}

async fn reconcile_living(context: &Context, tenant: &Tenant) -> Result<Action, ReconcileError> {
    let mut outcome = Outcome::new(context.caches.clusters_of(&tenant.name_any()).len());
    let result = match validate::validate(tenant, &context.config) {
        Err(refusal) => {
            context.metrics.failed(CONTROLLER, refusal.reason);
            outcome.accepted = Err(refusal);
            // Who was taken from the subjects loses access, whatever else is wrong.
            match owns_namespace(context, tenant) {
                true => bind(context, tenant).await,
                false => Ok(()),
            }
        }
        Ok(()) => apply(context, tenant, &mut outcome).await,
    };
    if let Err(error) = &result {
        outcome.failure = Some((error.reason(), crate::chain(error)));
    }
    patch::write_status(context, tenant, &outcome).await?;
    result.map(|()| Action::requeue(STEADY))
}

async fn apply(context: &Context, tenant: &Tenant, outcome: &mut Outcome) -> Result<(), ReconcileError> {
    patch::ensure_finalizer(context, tenant).await?;
    if let Err(refusal) = ensure_namespace(context, tenant).await? {
        outcome.accepted = Err(refusal);
        return Ok(());
    }
    bind(context, tenant).await?;
    match ensure_account(context, tenant).await? {
        Some(secret) => {
            outcome.account = Some(push_account(context, tenant, &secret).await?);
        }
        None => outcome.account_lost = true,
    }
    Ok(())
}

/// Lets the Tenant's subjects do what they may, and nobody else.
async fn bind(context: &Context, tenant: &Tenant) -> Result<(), ReconcileError> {
    let clusters = context.caches.clusters_of(&tenant.name_any());
    let (role, binding) = (build::build_role(tenant, &clusters), build::build_role_binding(tenant));
    // In turn: a binding is only taken if its Role is known, and says no more than the operator may.
    context.tenants.apply(&context.caches.roles, &role).await?;
    context.tenants.apply(&context.caches.role_bindings, &binding).await?;
    Ok(())
}

fn owns_namespace(context: &Context, tenant: &Tenant) -> bool {
    let known = context
        .caches
        .namespaces
        .get(&ObjectRef::<Namespace>::new(&tenant.name_any()));
    known.is_some_and(|known| build::is_owned(&known, tenant) && known.metadata.deletion_timestamp.is_none())
}

/// A namespace is made, never adopted.
async fn ensure_namespace(context: &Context, tenant: &Tenant) -> Result<Result<(), Refusal>, ReconcileError> {
    let wanted = build::build_namespace(tenant);
    let name = tenant.name_any();
    if owns_namespace(context, tenant) {
        return Ok(Ok(()));
    }
    let api = Api::<Namespace>::all(context.client.clone());
    if context.tenants.create(&api, &wanted).await?.is_some() {
        return Ok(Ok(()));
    }
    let found = api
        .get_opt(&name)
        .await
        .map_err(ReconcileError::host("the Tenant's namespace"))?;
    let message = match found {
        Some(found) if !build::is_owned(&found, tenant) => format!("Namespace {name} exists and is not the Tenant's."),
        Some(found) if found.metadata.deletion_timestamp.is_some() => {
            format!("Namespace {name} is being deleted and must be gone first.")
        }
        Some(_) => return Ok(Ok(())),
        None => format!("Namespace {name} is being deleted."),
    };
    Ok(Err(Refusal {
        reason: Reason::NamespaceConflict,
        message,
    }))
}

/// The Secret with the account's keys, made if the Tenant has had no account yet; `None` if it had one and the keys are gone.
async fn ensure_account(context: &Context, tenant: &Tenant) -> Result<Option<Secret>, ReconcileError> {
    let name = account_secret(&tenant.name_any());
    let api = Api::<Secret>::namespaced(context.client.clone(), &context.config.namespace);
    // The watch may lag behind, and keys that are drawn twice are data lost.
    if let Some(found) = api
        .get_opt(&name)
        .await
        .map_err(ReconcileError::host("the account's Secret"))?
    {
        return Ok(Some(found));
    }
    let had = tenant.status.as_ref().and_then(|status| status.account.as_ref());
    if had.is_some() {
        return Ok(None);
    }
    let data = AccountKeys::generate().to_data();
    let mut secret = build::build_account_secret(tenant, &context.config.namespace);
    secret.data = Some(data.into_iter().map(|(key, value)| (key, ByteString(value))).collect());
    if let Some(made) = context.tenants.create(&api, &secret).await? {
        return Ok(Some(made));
    }
    api.get_opt(&name)
        .await
        .map_err(ReconcileError::host("the account's Secret"))
}

/// When to try again after a failure.
pub fn on_error(tenant: Arc<Tenant>, error: &ReconcileError, context: Arc<Context>) -> Action {
    context.metrics.failed(CONTROLLER, error.reason());
    tracing::warn!(tenant = tenant.name_any(), error = %crate::chain(error), "reconciliation of a Tenant failed");
    Action::requeue(Duration::from_secs(2))
}

/// Whether an object's finalizers name the operator's.
fn has_finalizer(tenant: &Tenant) -> bool {
    tenant
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == labels::FINALIZER)
}
