//! Lets workers join with a JoinToken.

use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use yoke_api::join_token::secret_name;
use yoke_api::{Cluster, GROUP, JoinToken, Lenient, Reason, VERSION, labels};

use crate::error::ReconcileError;
use crate::host_api::apply::is_held;
use crate::join_token::context::Context;
use crate::join_token::plan;
use crate::join_token::secret::{ensure_secret, is_readable};
use crate::join_token::status::{Published, is_published, write_status};
use crate::model::conditions::State;
use crate::model::identity::Identity;
use crate::tenant_client::TenantApi;

/// Lets workers join. Sets Ready once the Tenant may read the Secret.
pub(super) async fn serve(
    context: &Context,
    token: &JoinToken,
    identity: &Identity,
    cluster: &Cluster,
    api: &TenantApi,
) -> Result<Action, ReconcileError> {
    let now = Timestamp::now();
    hold(context, token).await?;
    let Some(bootstrap) = ensure_secret(context, token, identity, cluster).await? else {
        let name = secret_name(&token.name_any());
        let message = format!(
            "Secret {name} exists and is not owned by the operator. Delete the Secret, or create a JoinToken \
         with another name."
        );
        write_status(context, token, State::no(Reason::SecretConflict, message), None).await?;
        return Ok(Action::requeue(plan::plan_wait(token, now)));
    };
    // The status comes first: the signer finds the JoinToken by its token ID.
    let waiting = State::no(
        Reason::ClusterNotReady,
        "The bootstrap token is being created in the Cluster.",
    );
    let published = Published {
        bootstrap: &bootstrap,
        cluster: &identity.id,
    };
    if !is_published(token, &published) {
        write_status(context, token, waiting, Some(&published)).await?;
    }
    api.ensure_token(&bootstrap, context.applier.params()).await?;
    if !is_readable(context, token) {
        let pending = State::no(
            Reason::RolePending,
            "The Tenant's Role does not grant access to the Secret yet.",
        );
        write_status(context, token, pending, Some(&published)).await?;
        return Ok(Action::requeue(plan::plan_wait(token, now)));
    }
    let message = format!(
        "Workers may join until {}.",
        bootstrap.expires.strftime("%Y-%m-%dT%H:%M:%SZ")
    );
    write_status(
        context,
        token,
        State::yes(Reason::AsExpected, message),
        Some(&published),
    )
    .await?;
    Ok(Action::requeue(plan::until_end(token, now)))
}

/// Sets the finalizer.
async fn hold(context: &Context, token: &JoinToken) -> Result<(), ReconcileError> {
    if is_held(token) {
        return Ok(());
    }
    let patch = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "JoinToken",
        "metadata": {"name": token.name_any(), "uid": token.uid(), "finalizers": [labels::FINALIZER]}});
    let tokens =
        Api::<Lenient<JoinToken>>::namespaced(context.host.client.clone(), &token.namespace().unwrap_or_default());
    let held = tokens
        .patch(&token.name_any(), context.applier.params(), &Patch::Apply(&patch))
        .await;
    held.map(|_| ())
        .map_err(ReconcileError::host("a JoinToken's finalizer"))
}
