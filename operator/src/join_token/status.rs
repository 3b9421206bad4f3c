//! Writes the status of a JoinToken.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use yoke_api::join_token::{JoinTokenStatus, SecretRef, secret_name};
use yoke_api::{ClusterId, ConditionType, GROUP, JoinToken, Lenient, VERSION};

use crate::error::ReconcileError;
use crate::join_token::context::Context;
use crate::model::conditions::{self, State};
use crate::model::join_token_term;
use crate::tenant_client::BootstrapToken;

/// Name of the final write, in errors.
pub(super) const STATUS: &str = "a JoinToken's status";

/// Bootstrap token and Cluster that the status names.
pub(super) struct Published<'a> {
    pub(super) bootstrap: &'a BootstrapToken,
    pub(super) cluster: &'a ClusterId,
}

/// Returns whether the status names this bootstrap token and this Cluster.
pub(super) fn is_published(token: &JoinToken, published: &Published<'_>) -> bool {
    let status = token.status.clone().unwrap_or_default();
    status.token_id.as_ref() == Some(&published.bootstrap.id)
        && status.cluster_id.as_deref() == Some(published.cluster.as_str())
}

/// Writes the status, unless it is current. The signer owns its `uses`.
pub(super) async fn write_status(
    context: &Context,
    token: &JoinToken,
    state: State,
    published: Option<&Published<'_>>,
) -> Result<(), ReconcileError> {
    let before = token.status.clone().unwrap_or_default();
    let states = [(ConditionType::Ready, state)];
    let generation = token.metadata.generation;
    let name = secret_name(&token.name_any());
    let status = JoinTokenStatus {
        conditions: conditions::build_conditions(&states, &before.conditions, generation, Timestamp::now()),
        token_id: published
            .map(|published| published.bootstrap.id.clone())
            .or_else(|| before.token_id.clone()),
        cluster_id: published
            .map(|published| published.cluster.to_string())
            .or_else(|| before.cluster_id.clone()),
        expiration_time: join_token_term::end(token).map(Time),
        secret_ref: published.map(|_| SecretRef { name }),
        uses: vec![],
    };
    let same = JoinTokenStatus {
        uses: before.uses.clone(),
        ..status.clone()
    };
    if before == same {
        return Ok(());
    }
    let tokens =
        Api::<Lenient<JoinToken>>::namespaced(context.host.client.clone(), &token.namespace().unwrap_or_default());
    let name = token.name_any();
    let written = if status.token_id.is_some() {
        let patch = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "JoinToken",
            "metadata": {"name": name, "uid": token.uid()}, "status": status});
        let patch = Patch::Apply(patch);
        tokens.patch_status(&name, context.applier.params(), &patch).await
    } else {
        // The cache may be stale: a server-side apply without the token would remove it from the
        // status.
        let patch = json!({"metadata": {"uid": token.uid(), "resourceVersion": token.resource_version()},
            "status": {"conditions": status.conditions, "expirationTime": status.expiration_time}});
        let params = context.applier.merge_params();
        tokens.patch_status(&name, &params, &Patch::Merge(patch)).await
    };
    match written {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => return Err(ReconcileError::Contended(STATUS)),
        Err(error) => return Err(ReconcileError::host(STATUS)(error)),
    }
    let notices = conditions::build_notices(&states, &before.conditions, &[ConditionType::Ready], "Reconcile");
    context.host.events.publish(token, &notices).await;
    Ok(())
}
