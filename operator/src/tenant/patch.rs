//! Writes to the Tenant object itself: finalizer and status.

use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use yoke_api::tenant::TenantStatus;
use yoke_api::{ConditionType, GROUP, Reason, Tenant, VERSION, labels};

use crate::error::ReconcileError;
use crate::host_api::apply::is_held;
use crate::model::conditions::{self, State};
use crate::tenant::context::Context;
use crate::tenant::status::{self, Outcome};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TenantPatch<'a> {
    api_version: String,
    kind: &'static str,
    metadata: MetadataPatch<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a TenantStatus>,
}

#[derive(Debug, Serialize)]
struct MetadataPatch<'a> {
    name: String,
    /// Makes the patch fail if the object was replaced or deleted.
    uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finalizers: Option<&'a [&'a str]>,
}

fn build<'a>(tenant: &Tenant, finalizers: Option<&'a [&'a str]>, status: Option<&'a TenantStatus>) -> TenantPatch<'a> {
    TenantPatch {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "Tenant",
        metadata: MetadataPatch {
            name: tenant.name_any(),
            uid: tenant.uid().unwrap_or_default(),
            finalizers,
        },
        status,
    }
}

pub(super) async fn ensure_finalizer(context: &Context, tenant: &Tenant) -> Result<(), ReconcileError> {
    if is_held(tenant) {
        return Ok(());
    }
    write_finalizers(context, tenant, &[labels::FINALIZER]).await
}

pub(super) async fn release(context: &Context, tenant: &Tenant) -> Result<(), ReconcileError> {
    let api = Api::all(context.host.client.clone());
    context.applier.release(&api, tenant).await?;
    Ok(())
}

async fn write_finalizers(context: &Context, tenant: &Tenant, finalizers: &[&str]) -> Result<(), ReconcileError> {
    let patch = Patch::Apply(build(tenant, Some(finalizers), None));
    let api = Api::<Tenant>::all(context.host.client.clone());
    match api.patch(&tenant.name_any(), context.applier.params(), &patch).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refused)) if refused.code == 404 || refused.code == 409 => Ok(()),
        Err(error) => Err(ReconcileError::host("a Tenant's finalizer")(error)),
    }
}

pub(super) async fn write_status(context: &Context, tenant: &Tenant, outcome: &Outcome) -> Result<(), ReconcileError> {
    let (status, states) = status::plan_status(tenant, outcome, Timestamp::now());
    write(context, tenant, &status, &states).await
}

/// Writes the progress of a deletion.
pub(super) async fn write_deleting(
    context: &Context,
    tenant: &Tenant,
    clusters: usize,
    reason: Reason,
    message: String,
) -> Result<(), ReconcileError> {
    let states = vec![(ConditionType::Ready, State::no(reason, message))];
    let mut status = tenant.status.clone().unwrap_or_default();
    let built = conditions::build_conditions(
        &states,
        &status.conditions,
        tenant.metadata.generation,
        Timestamp::now(),
    );
    status
        .conditions
        .retain(|old| !built.iter().any(|new| new.type_ == old.type_));
    status.conditions.extend(built);
    status.clusters = i32::try_from(clusters).ok();
    write(context, tenant, &status, &states).await
}

async fn write(
    context: &Context,
    tenant: &Tenant,
    status: &TenantStatus,
    states: &[(ConditionType, State)],
) -> Result<(), ReconcileError> {
    if tenant.status.as_ref() == Some(status) {
        return Ok(());
    }
    let patch = Patch::Apply(build(tenant, None, Some(status)));
    let api = Api::<Tenant>::all(context.host.client.clone());
    match api
        .patch_status(&tenant.name_any(), context.applier.params(), &patch)
        .await
    {
        Ok(_) => {}
        Err(kube::Error::Api(refused)) if refused.code == 404 => return Ok(()),
        Err(error) => return Err(ReconcileError::host("a Tenant's status")(error)),
    }
    let before = tenant.status.clone().unwrap_or_default();
    let reported = [ConditionType::Accepted, ConditionType::Ready];
    let notices = conditions::build_notices(states, &before.conditions, &reported, "Reconcile");
    context.host.events.publish(tenant, &notices).await;
    Ok(())
}
