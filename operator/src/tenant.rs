//! The Tenant controller: a namespace, a Role for the Tenant's subjects, and the retained data of
//! deleted Clusters that counts against the quota.

pub mod build;
mod context;
mod delete;
mod patch;
pub mod status;
pub mod validate;

pub use crate::tenant::context::{CONTROLLER, Context};

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::{Reason, Tenant};

use crate::error::ReconcileError;
use crate::model::join_token_term::Term;
use crate::model::{join_token_term, tenant_namespace};
use crate::tenant::status::Outcome;
use crate::tenant::validate::Refusal;
use crate::{cluster, join_token};

/// Requeue interval to count retained data. The end of a retention also requeues the Tenant.
const STEADY: Duration = Duration::from_secs(60);

/// Reconciles one Tenant.
pub async fn reconcile(tenant: Arc<Tenant>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let start = Instant::now();
    let result = if tenant.metadata.deletion_timestamp.is_some() {
        delete::delete(&context, &tenant).await
    } else {
        reconcile_existing(&context, &tenant).await
    };
    context.metrics.reconciled(CONTROLLER, start.elapsed().as_secs_f64());
    result
}

async fn reconcile_existing(context: &Context, tenant: &Tenant) -> Result<Action, ReconcileError> {
    let clusters = context.host.caches.clusters.summaries_in(&tenant.name_any());
    let mut outcome = Outcome::new(clusters.len());
    outcome.retained = cluster::find_retained_stores(&context.host, &tenant.name_any())
        .iter()
        .map(|store| store.account.size.quota)
        .sum();
    let result = match validate::validate(tenant, &context.host.caches.tenants.state(), &context.host.config) {
        Err(refusal) => {
            context.metrics.failed(CONTROLLER, refusal.reason);
            outcome.accepted = Err(refusal);
            // A removed subject loses access even if the spec is refused.
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
    // A removed subject loses access even if the quota cannot be applied.
    let bound = bind(context, tenant).await;
    both(bound, limit(context, tenant).await)?;
    // Clusters are validated against the namespace in the cache, so the Tenant is Ready only once
    // the namespace is there. Its watch event requeues the Tenant.
    outcome.is_bound = owns_namespace(context, tenant);
    Ok(())
}

/// Combines the errors of two independent steps.
fn both(first: Result<(), ReconcileError>, second: Result<(), ReconcileError>) -> Result<(), ReconcileError> {
    match (first, second) {
        (Err(first), Err(second)) => Err(ReconcileError::Both {
            first: Box::new(first),
            second: Box::new(second),
        }),
        (first, second) => first.and(second),
    }
}

/// Applies the ResourceQuota of the Tenant's namespace.
async fn limit(context: &Context, tenant: &Tenant) -> Result<(), ReconcileError> {
    let name = tenant.name_any();
    let wanted = build::build_quota(tenant);
    let known = context.host.caches.resource_quotas.get(&ObjectRef::from_obj(&wanted));
    let is_current = known.as_ref().is_some_and(|known| known.spec == wanted.spec);
    let is_due = || {
        let counts = (
            context.host.caches.clusters.summaries_in(&name).len(),
            context.host.caches.join_tokens_of(&name).len(),
        );
        build::is_settled(tenant, Timestamp::now()) || build::is_crowded(tenant, counts.0, counts.1)
    };
    if !is_current && (known.is_some() || is_due()) {
        context
            .applier
            .apply(&context.host.caches.resource_quotas, &wanted)
            .await?;
    }
    Ok(())
}

/// Applies the Role and the RoleBinding of the Tenant's subjects.
async fn bind(context: &Context, tenant: &Tenant) -> Result<(), ReconcileError> {
    let clusters = context.host.caches.clusters.summaries_in(&tenant.name_any());
    let mut join_tokens = context.host.caches.join_tokens_of(&tenant.name_any());
    join_tokens.retain(|token| {
        join_token_term::term(token, Timestamp::now()) == Term::Holds && join_token::has_secret(&context.host, token)
    });
    let role = build::build_role(tenant, &clusters, &join_tokens);
    let binding = build::build_role_binding(tenant);
    // In this order: the API server accepts a binding only if its Role exists and grants no more
    // than the operator has.
    context.applier.apply(&context.host.caches.roles, &role).await?;
    context
        .applier
        .apply(&context.host.caches.role_bindings, &binding)
        .await?;
    Ok(())
}

fn owns_namespace(context: &Context, tenant: &Tenant) -> bool {
    let known = context
        .host
        .caches
        .namespaces
        .get(&ObjectRef::<Namespace>::new(&tenant.name_any()));
    known.is_some_and(|known| tenant_namespace::is_owned(&known, tenant) && known.metadata.deletion_timestamp.is_none())
}

/// Creates the namespace. Takes over an existing one only from a deleted Tenant with the same name.
async fn ensure_namespace(context: &Context, tenant: &Tenant) -> Result<Result<(), Refusal>, ReconcileError> {
    let wanted = build::build_namespace(tenant);
    let name = tenant.name_any();
    if owns_namespace(context, tenant) {
        return Ok(Ok(()));
    }
    let api = Api::<Namespace>::all(context.host.client.clone());
    if context.applier.create(&api, &wanted).await?.is_some() {
        return Ok(Ok(()));
    }
    let found = api
        .get_opt(&name)
        .await
        .map_err(ReconcileError::host("the Tenant's namespace"))?;
    let message = match found {
        Some(found)
            if found.metadata.deletion_timestamp.is_none()
                && tenant_namespace::is_left(&found, tenant, &context.host.caches.tenants.state()) =>
        {
            return take_over(context, &api, &found, wanted).await.map(Ok);
        }
        Some(found) if !tenant_namespace::is_owned(&found, tenant) => {
            format!("Namespace {name} exists and is owned by another. Delete it, or use another name for the Tenant.")
        }
        Some(found) if found.metadata.deletion_timestamp.is_some() => {
            format!("Waiting for the deletion of namespace {name}.")
        }
        Some(_) => return Ok(Ok(())),
        None => format!("Namespace {name} is being deleted."),
    };
    Ok(Err(Refusal {
        reason: Reason::NamespaceConflict,
        message,
    }))
}

/// Takes over a left namespace, unless it has changed.
async fn take_over(
    context: &Context,
    api: &Api<Namespace>,
    found: &Namespace,
    mut wanted: Namespace,
) -> Result<(), ReconcileError> {
    wanted.metadata.resource_version = found.resource_version();
    let name = found.name_any();
    api.patch(&name, context.applier.params(), &Patch::Apply(&wanted))
        .await
        .map_err(ReconcileError::host("the Tenant's namespace"))?;
    tracing::info!(tenant = name, "took over the namespace of a restored Tenant");
    Ok(())
}

/// Returns when to retry after a failure.
pub fn on_error(tenant: Arc<Tenant>, error: &ReconcileError, context: Arc<Context>) -> Action {
    context.metrics.failed(CONTROLLER, error.reason());
    tracing::warn!(tenant = tenant.name_any(), error = %crate::chain(error), "Tenant reconcile failed");
    Action::requeue(Duration::from_secs(2))
}
