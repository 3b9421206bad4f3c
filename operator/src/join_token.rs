//! The JoinToken controller: a bootstrap token in the tenant's cluster, and a Secret with the join
//! data in the Tenant's namespace.
//!
//! ```text
//!  JoinToken ─▶ valid? room? Cluster ready? ─▶ Secret <name>-join (generated once) ─▶ bootstrap token in the tenant's API
//!                ─▶ the Tenant's Role names the Secret? ─▶ status
//!                └─ expired, used up, deleted: bootstrap token and Secret are deleted; an hour after its end the JoinToken itself
//! ```
//!
//! The JoinToken decides what is valid, here and in the [signer](crate::csr_signer): with a bootstrap
//! token alone, a client gets no certificate.

mod build;
mod context;
mod end;
pub mod plan;
mod secret;
mod serve;
mod status;
mod target;

pub use crate::join_token::context::{CONTROLLER, Context};
pub(crate) use crate::join_token::secret::has_secret;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use yoke_api::{JoinToken, Reason};

use crate::cluster;
use crate::error::ReconcileError;
use crate::host_api::apply::is_held;
use crate::join_token::end::{end, revoke};
use crate::join_token::plan::BUSY;
use crate::join_token::serve::serve;
use crate::join_token::status::{STATUS, write_status};
use crate::join_token::target::find_cluster;
use crate::model::conditions::State;
use crate::model::join_token_term::{self, Term};
use crate::model::tenant_namespace::TENANT_MAX;

/// Requeue delay after a concurrent change of the JoinToken.
const AGAIN: Duration = Duration::from_secs(1);
/// Requeue delay while there are too many other JoinTokens.
const CROWDED: Duration = Duration::from_secs(300);

/// Reconciles one JoinToken. Returns when to do so again.
pub async fn reconcile(token: Arc<JoinToken>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let start = Instant::now();
    let result = match Box::pin(reconcile_one(&context, &token)).await {
        // A concurrent write: the watch delivers the new version in a moment.
        Err(ReconcileError::Contended(STATUS)) => Ok(Action::requeue(AGAIN)),
        other => other,
    };
    context.metrics.reconciled(CONTROLLER, start.elapsed().as_secs_f64());
    result
}

/// Returns when to retry after a failure.
pub fn on_error(token: Arc<JoinToken>, error: &ReconcileError, context: Arc<Context>) -> Action {
    context.metrics.failed(CONTROLLER, error.reason());
    let (namespace, name) = (token.namespace().unwrap_or_default(), token.name_any());
    let message = crate::chain(error);
    match error {
        // The Cluster may be going to sleep; its status tells in a moment.
        ReconcileError::Tenant(api) if api.is_unanswered() => {
            tracing::info!(namespace, name, error = %message, "JoinToken waits for the API of its Cluster");
        }
        _ => tracing::warn!(namespace, name, error = %message, "JoinToken reconcile failed"),
    }
    Action::requeue(plan::plan_wait(&token, Timestamp::now()))
}

async fn reconcile_one(context: &Context, token: &JoinToken) -> Result<Action, ReconcileError> {
    let now = Timestamp::now();
    let is_deleted = token.metadata.deletion_timestamp.is_some();
    if is_deleted && !is_held(token) {
        return Ok(Action::await_change());
    }
    if is_deleted || join_token_term::term(token, now) != Term::Holds {
        return end(context, token, now).await;
    }
    // Compares all other JoinTokens of the Tenant. This happens only until this one is admitted.
    let others = || {
        context
            .host
            .caches
            .join_tokens_of(&token.namespace().unwrap_or_default())
    };
    if !plan::is_served(token) && plan::exceeds_limit(token, &others(), now) {
        let message = format!(
            "Too many JoinTokens: at most {} of the Tenant and {} of the Cluster may be valid at a time, and \
         older ones come first. Delete one, or wait until one expires.",
            TENANT_MAX,
            plan::CLUSTER_MAX
        );
        write_status(context, token, State::no(Reason::QuotaExceeded, message), None).await?;
        return Ok(Action::requeue(CROWDED.min(plan::until_end(token, now))));
    }
    let (identity, cluster, api) = match find_cluster(context, token) {
        Ok(found) => found,
        Err(state) => {
            if let Some(state) = state {
                if state.reason == Reason::ClusterReplaced {
                    revoke(context, token, None).await?;
                }
                write_status(context, token, state, None).await?;
            }
            return Ok(Action::requeue(plan::plan_wait(token, now)));
        }
    };
    // From here on requests go to the tenant's API.
    let Some(_slot) = context.slots.enter(&identity.tenant) else {
        return Ok(Action::requeue(BUSY));
    };
    if join_token_term::is_used_up(token) {
        let joined = token.status.as_ref().map_or(0, |status| status.uses.len());
        let message = format!("{joined} of {} workers have joined.", token.spec.max_uses);
        write_status(context, token, State::no(Reason::UsedUp, message), None).await?;
        if plan::is_spent(token, now) {
            revoke(context, token, Some(&api)).await?;
            return Ok(Action::requeue(plan::until_end(token, now)));
        }
        return Ok(Action::requeue(plan::until_spent(token, now)));
    }
    // Only for new JoinTokens: workers can already join with the others.
    if !plan::is_served(token) && cluster::agents_are_due(&context.host.caches, &cluster, &identity) {
        let message = "The control plane restarts with konnectivity, through which it reaches workers.";
        write_status(context, token, State::no(Reason::ClusterNotReady, message), None).await?;
        return Ok(Action::requeue(plan::plan_wait(token, now)));
    }
    serve(context, token, &identity, &cluster, &api).await
}
