//! Ends a JoinToken: deletes its bootstrap token, its Secret, and an hour later the JoinToken itself.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use yoke_api::{JoinToken, Lenient, Reason};

use crate::error::ReconcileError;
use crate::join_token::context::Context;
use crate::join_token::plan::{self, BUSY};
use crate::join_token::secret::find_secret;
use crate::join_token::status::write_status;
use crate::join_token::target::find_cluster;
use crate::model::conditions::State;
use crate::model::join_token_term::{self, Term};
use crate::tenant_client::TenantApi;

/// Ends a JoinToken that has expired or is being deleted.
pub(super) async fn end(context: &Context, token: &JoinToken, now: Timestamp) -> Result<Action, ReconcileError> {
    let is_deleted = token.metadata.deletion_timestamp.is_some();
    let api = find_cluster(context, token);
    let was_told = token.status.as_ref().is_some_and(|status| status.token_id.is_some());
    let slot = context.slots.enter(&token.namespace().unwrap_or_default());
    if was_told && api.is_ok() && slot.is_none() {
        return Ok(Action::requeue(BUSY));
    }
    let has_ended = join_token_term::end(token).is_none_or(|end| end <= now);
    let revoked = revoke(context, token, api.as_ref().ok().map(|(.., api)| api)).await;
    // The signer accepts no bootstrap token without its JoinToken. A token that has expired needs
    // no deletion.
    let gone = [Reason::ClusterMissing, Reason::ClusterReplaced];
    let is_gone = matches!(&api, Err(Some(state)) if gone.contains(&state.reason));
    let is_removed = has_ended || is_gone || !was_told || api.is_ok() && revoked.is_ok();
    if is_deleted {
        if !is_removed {
            revoked?;
            return Ok(Action::requeue(plan::plan_wait(token, now)));
        }
        let tokens = Api::namespaced(context.host.client.clone(), &token.namespace().unwrap_or_default());
        context.applier.release(&tokens, token).await?;
        return Ok(Action::await_change());
    }
    if join_token_term::term(token, now) == Term::Forgotten {
        delete(context, token).await?;
        return Ok(Action::await_change());
    }
    write_status(
        context,
        token,
        State::no(Reason::Expired, "The JoinToken has expired."),
        None,
    )
    .await?;
    Ok(Action::requeue(plan::until_end(token, now)))
}

/// Deletes the Secret, and the bootstrap token in the tenant's cluster if its API is reachable.
pub(super) async fn revoke(
    context: &Context,
    token: &JoinToken,
    api: Option<&TenantApi>,
) -> Result<(), ReconcileError> {
    let namespace = token.namespace().unwrap_or_default();
    if let Some(secret) = find_secret(&context.host, token) {
        let secrets = Api::<Secret>::namespaced(context.host.client.clone(), &namespace);
        context.applier.delete(&secrets, secret.as_ref()).await?;
    }
    let id = token.status.as_ref().and_then(|status| status.token_id.as_deref());
    if let (Some(id), Some(api)) = (id, api) {
        api.remove_token(id).await?;
    }
    Ok(())
}

async fn delete(context: &Context, token: &JoinToken) -> Result<(), ReconcileError> {
    let tokens =
        Api::<Lenient<JoinToken>>::namespaced(context.host.client.clone(), &token.namespace().unwrap_or_default());
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: token.uid(),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    match tokens.delete(&token.name_any(), &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(error) => Err(ReconcileError::host("an expired JoinToken")(error)),
    }
}
