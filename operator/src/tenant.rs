//! The Tenant controller: a namespace, a Role for the Tenant's subjects, and what their Clusters left that counts.

pub mod build;
mod delete;
mod patch;
pub mod status;
pub mod validate;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::{Reason, Tenant};

use crate::cluster;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::join_token;
use crate::join_token::plan::{self, Term};
use status::Outcome;
use validate::Refusal;

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "tenant";

/// Pace of looking at what Clusters left, which the end of one calls for too.
const STEADY: Duration = Duration::from_secs(60);

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
    let clusters = context.caches.clusters.outlines_in(&tenant.name_any());
    let mut outcome = Outcome::new(clusters.len());
    outcome.retained = cluster::find_left(context, &tenant.name_any())
        .iter()
        .map(|left| left.account.size.quota)
        .sum();
    let result = match validate::validate(tenant, &context.caches.tenants.state(), &context.config) {
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
    // Who was taken from the subjects loses access, whether or not the objects can be counted.
    let bound = bind(context, tenant).await;
    both(bound, limit(context, tenant).await)?;
    // Clusters are judged by what is known of the namespace: told of it, we come back.
    outcome.is_bound = owns_namespace(context, tenant);
    Ok(())
}

/// The errors of two things that were both done.
fn both(first: Result<(), ReconcileError>, second: Result<(), ReconcileError>) -> Result<(), ReconcileError> {
    match (first, second) {
        (Err(first), Err(second)) => Err(ReconcileError::Both {
            first: Box::new(first),
            second: Box::new(second),
        }),
        (first, second) => first.and(second),
    }
}

/// Has the API server count what is made in the Tenant's namespace.
async fn limit(context: &Context, tenant: &Tenant) -> Result<(), ReconcileError> {
    let name = tenant.name_any();
    let wanted = build::build_quota(tenant);
    let known = context.caches.resource_quotas.get(&ObjectRef::from_obj(&wanted));
    let is_so = known.as_ref().is_some_and(|known| known.spec == wanted.spec);
    let is_due = || {
        let counts = (
            context.caches.clusters.outlines_in(&name).len(),
            context.caches.join_tokens_of(&name).len(),
        );
        build::is_settled(tenant, Timestamp::now()) || build::is_crowded(tenant, counts.0, counts.1)
    };
    if !is_so && (known.is_some() || is_due()) {
        context.tenants.apply(&context.caches.resource_quotas, &wanted).await?;
    }
    Ok(())
}

/// Lets the Tenant's subjects do what they may, and nobody else.
async fn bind(context: &Context, tenant: &Tenant) -> Result<(), ReconcileError> {
    let clusters = context.caches.clusters.outlines_in(&tenant.name_any());
    let mut join_tokens = context.caches.join_tokens_of(&tenant.name_any());
    join_tokens
        .retain(|token| plan::term(token, Timestamp::now()) == Term::Holds && join_token::has_secret(context, token));
    let role = build::build_role(tenant, &clusters, &join_tokens);
    let binding = build::build_role_binding(tenant);
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

/// A namespace is made, and taken over from nobody but a Tenant of this one's name that is gone.
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
        Some(found)
            if found.metadata.deletion_timestamp.is_none()
                && build::is_left(&found, tenant, &context.caches.tenants.state()) =>
        {
            return take_over(context, &api, &found, wanted).await.map(Ok);
        }
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

/// Makes a namespace that was left this Tenant's, if it is still as it was seen.
async fn take_over(
    context: &Context,
    api: &Api<Namespace>,
    found: &Namespace,
    mut wanted: Namespace,
) -> Result<(), ReconcileError> {
    wanted.metadata.resource_version = found.resource_version();
    let name = found.name_any();
    api.patch(&name, context.tenants.params(), &Patch::Apply(&wanted))
        .await
        .map_err(ReconcileError::host("the Tenant's namespace"))?;
    tracing::info!(tenant = name, "namespace of a Tenant that was restored is taken over");
    Ok(())
}

/// When to try again after a failure.
pub fn on_error(tenant: Arc<Tenant>, error: &ReconcileError, context: Arc<Context>) -> Action {
    context.metrics.failed(CONTROLLER, error.reason());
    tracing::warn!(tenant = tenant.name_any(), error = %crate::chain(error), "reconciliation of a Tenant failed");
    Action::requeue(Duration::from_secs(2))
}
