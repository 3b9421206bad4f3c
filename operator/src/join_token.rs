//! The JoinToken controller: a bootstrap token in the tenant's cluster, and what a worker needs beside it in the Tenant's namespace.
//!
//! ```text
//!  JoinToken ─▶ holds? room? Cluster ready? ─▶ Secret <name>-join (drawn once) ─▶ bootstrap token in the tenant's API
//!                ─▶ the Tenant's Role names the Secret? ─▶ status
//!                └─ over, used up, deleted: bootstrap token and Secret go; an hour after its end the JoinToken itself
//! ```
//!
//! What holds is decided here and by the [signer](crate::signer), by the JoinToken: a bootstrap token alone lets nobody have a
//! certificate.

mod build;
pub mod plan;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use yoke_api::cluster::DesiredState;
use yoke_api::join_token::{JoinTokenStatus, SecretRef, key, secret_name};
use yoke_api::{Cluster, ClusterId, ConditionType, GROUP, JoinToken, Lenient, Reason, VERSION, labels};
use yoke_pki::plan::{AuthorityRole, Generation};

use crate::apply::is_held;
use crate::cluster;
use crate::cluster::identity::Identity;
use crate::conditions::{self, State};
use crate::context::Context;
use crate::error::ReconcileError;
use crate::tenant::build::{ROLE, names_secret};
use crate::tenant_api::{BootstrapToken, TenantApi, Way};
use plan::Term;

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "join-token";

/// JoinTokens of one Tenant that are worked on at once.
pub const AT_ONCE: usize = 2;
/// Where so many others of the Tenant are at work that this one waits for a moment.
const BUSY: Duration = Duration::from_secs(2);
/// Where the JoinToken was changed since it was seen.
const AGAIN: Duration = Duration::from_secs(1);
/// What is written at last.
const STATUS: &str = "a JoinToken's status";
/// How often it is looked whether there is room.
const CROWDED: Duration = Duration::from_secs(300);

/// Whom a JoinToken lets in where.
struct Told<'a> {
    bootstrap: &'a BootstrapToken,
    cluster: &'a ClusterId,
}

/// Brings one JoinToken to what it asks for, and says when to look again.
pub async fn reconcile(token: Arc<JoinToken>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let began = Instant::now();
    let result = match Box::pin(reconcile_one(&context, &token)).await {
        // It was seen as it is no more: what is known is new in a moment.
        Err(ReconcileError::Contended(STATUS)) => Ok(Action::requeue(AGAIN)),
        other => other,
    };
    context.metrics.reconciled(CONTROLLER, began.elapsed().as_secs_f64());
    result
}

/// When to try again after a failure.
pub fn on_error(token: Arc<JoinToken>, error: &ReconcileError, context: Arc<Context>) -> Action {
    context.metrics.failed(CONTROLLER, error.reason());
    let (namespace, name) = (token.namespace().unwrap_or_default(), token.name_any());
    let said = crate::chain(error);
    match error {
        // Its Cluster goes to sleep, perhaps, and says so in a moment.
        ReconcileError::Tenant(api) if api.is_unanswered() => {
            tracing::info!(namespace, name, error = %said, "a JoinToken waits for the API of its Cluster");
        }
        _ => tracing::warn!(namespace, name, error = %said, "reconciliation of a JoinToken failed"),
    }
    Action::requeue(plan::plan_wait(&token, Timestamp::now()))
}

async fn reconcile_one(context: &Context, token: &JoinToken) -> Result<Action, ReconcileError> {
    let now = Timestamp::now();
    let is_deleted = token.metadata.deletion_timestamp.is_some();
    if is_deleted && !is_held(token) {
        return Ok(Action::await_change());
    }
    if is_deleted || plan::term(token, now) != Term::Holds {
        return end(context, token, now).await;
    }
    // All others are looked at for this: once for each, until it has its place.
    let others = || context.caches.join_tokens_of(&token.namespace().unwrap_or_default());
    if !plan::is_served(token) && plan::is_one_too_many(token, &others(), now) {
        let message = format!(
            "There are {} older ones of the Tenant, or {} of the Cluster, that hold.",
            plan::TENANT_MAX,
            plan::CLUSTER_MAX
        );
        say(context, token, State::no(Reason::QuotaExceeded, message), None).await?;
        return Ok(Action::requeue(CROWDED.min(plan::until_end(token, now))));
    }
    let (identity, cluster, api) = match find_cluster(context, token) {
        Ok(found) => found,
        Err(state) => {
            if let Some(state) = state {
                if state.reason == Reason::ClusterReplaced {
                    revoke(context, token, None).await?;
                }
                say(context, token, state, None).await?;
            }
            return Ok(Action::requeue(plan::plan_wait(token, now)));
        }
    };
    // From here on the tenant's API is asked.
    let Some(_slot) = context.join_token_slots.enter(&identity.tenant) else {
        return Ok(Action::requeue(BUSY));
    };
    if plan::is_used_up(token) {
        let joined = token.status.as_ref().map_or(0, |status| status.uses.len());
        let message = format!("{joined} of {} workers have joined.", token.spec.max_uses);
        say(context, token, State::no(Reason::UsedUp, message), None).await?;
        if plan::is_spent(token, now) {
            revoke(context, token, Some(&api)).await?;
            return Ok(Action::requeue(plan::until_end(token, now)));
        }
        return Ok(Action::requeue(plan::until_spent(token, now)));
    }
    // Those who may join already do.
    if !plan::is_served(token) && cluster::agents_are_due(&context.caches, &cluster, &identity) {
        let message = "The control plane starts with konnectivity, by which it reaches workers.";
        say(context, token, State::no(Reason::ClusterNotReady, message), None).await?;
        return Ok(Action::requeue(plan::plan_wait(token, now)));
    }
    serve(context, token, &identity, &cluster, &api).await
}

/// Lets workers join, and says so when the Tenant may read by what.
async fn serve(
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
        let message =
            format!("Secret {name} exists and is not the operator's: delete it, or use a JoinToken of another name.");
        say(context, token, State::no(Reason::SecretConflict, message), None).await?;
        return Ok(Action::requeue(plan::plan_wait(token, now)));
    };
    // Noted before anybody can use it: by its id the signer finds the JoinToken.
    let waiting = State::no(Reason::ClusterNotReady, "The Cluster's API is told of the token.");
    let told = Told {
        bootstrap: &bootstrap,
        cluster: &identity.id,
    };
    if !is_told(token, &told) {
        say(context, token, waiting, Some(&told)).await?;
    }
    api.ensure_token(&bootstrap, context.join_tokens.params()).await?;
    if !is_readable(context, token) {
        let pending = State::no(Reason::RolePending, "The Tenant's Role does not name the Secret yet.");
        say(context, token, pending, Some(&told)).await?;
        return Ok(Action::requeue(plan::plan_wait(token, now)));
    }
    let message = format!(
        "Workers may join until {}.",
        bootstrap.expires.strftime("%Y-%m-%dT%H:%M:%SZ")
    );
    say(context, token, State::yes(Reason::AsExpected, message), Some(&told)).await?;
    Ok(Action::requeue(plan::until_end(token, now)))
}

fn is_told(token: &JoinToken, told: &Told<'_>) -> bool {
    let status = token.status.clone().unwrap_or_default();
    status.token_id.as_ref() == Some(&told.bootstrap.id) && status.cluster_id.as_deref() == Some(told.cluster.as_str())
}

/// The Cluster that a JoinToken is for, and its API, if that answers; or what is to be said of it: nothing, if this operator has not
/// looked at that yet.
fn find_cluster(context: &Context, token: &JoinToken) -> Result<(Identity, Arc<Cluster>, TenantApi), Option<State>> {
    let tenant = token.namespace().unwrap_or_default();
    let name = &token.spec.cluster_name;
    let cluster = context.caches.clusters.get(&ObjectRef::new(name).within(&tenant));
    let cluster = cluster.filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    let missing = || {
        Some(State::no(
            Reason::ClusterMissing,
            format!("There is no Cluster {name}."),
        ))
    };
    let cluster = cluster.ok_or_else(missing)?;
    let identity = Identity::of(&cluster, &context.config.base_domain);
    if identity
        .as_ref()
        .is_some_and(|identity| plan::is_of_another(token, &identity.id))
    {
        let message =
            format!("The Cluster {name} that it was for is gone, and this one is another; make another JoinToken.");
        return Err(Some(State::no(Reason::ClusterReplaced, message)));
    }
    let is_ready = conditions::status_of(&cluster, ConditionType::APIServerAvailable) == Some("True")
        && cluster.spec.state == DesiredState::Running;
    let api = identity
        .as_ref()
        .and_then(|identity| context.apis.known(&identity.id, Way::Inside));
    match (identity, api) {
        (Some(identity), Some(api)) if is_ready => Ok((identity, cluster, api)),
        (Some(_), None) if is_ready => Err(None),
        _ => Err(Some(State::no(
            Reason::ClusterNotReady,
            format!("The API of Cluster {name} does not answer."),
        ))),
    }
}

/// Ends one that is over or deleted.
async fn end(context: &Context, token: &JoinToken, now: Timestamp) -> Result<Action, ReconcileError> {
    let is_deleted = token.metadata.deletion_timestamp.is_some();
    let api = find_cluster(context, token);
    let was_told = token.status.as_ref().is_some_and(|status| status.token_id.is_some());
    let slot = context.join_token_slots.enter(&token.namespace().unwrap_or_default());
    if was_told && api.is_ok() && slot.is_none() {
        return Ok(Action::requeue(BUSY));
    }
    let has_ended = plan::end(token).is_none_or(|end| end <= now);
    let revoked = revoke(context, token, api.as_ref().ok().map(|(.., api)| api)).await;
    // Without its JoinToken, nothing is signed by the bootstrap token; when that has ended by itself it need not be removed.
    let gone = [Reason::ClusterMissing, Reason::ClusterReplaced];
    let is_gone = matches!(&api, Err(Some(state)) if gone.contains(&state.reason));
    let is_removed = has_ended || is_gone || !was_told || api.is_ok() && revoked.is_ok();
    if is_deleted {
        if !is_removed {
            revoked?;
            return Ok(Action::requeue(plan::plan_wait(token, now)));
        }
        let tokens = Api::namespaced(context.client.clone(), &token.namespace().unwrap_or_default());
        context.join_tokens.release(&tokens, token).await?;
        return Ok(Action::await_change());
    }
    if plan::term(token, now) == Term::Forgotten {
        delete(context, token).await?;
        return Ok(Action::await_change());
    }
    say(context, token, State::no(Reason::Expired, "It has ended."), None).await?;
    Ok(Action::requeue(plan::until_end(token, now)))
}

/// Removes the Secret with the token, and the token from the tenant's cluster if that can be reached.
async fn revoke(context: &Context, token: &JoinToken, api: Option<&TenantApi>) -> Result<(), ReconcileError> {
    let namespace = token.namespace().unwrap_or_default();
    if let Some(secret) = find_secret(context, token) {
        let secrets = Api::<Secret>::namespaced(context.client.clone(), &namespace);
        context.join_tokens.delete(&secrets, secret.as_ref()).await?;
    }
    let id = token.status.as_ref().and_then(|status| status.token_id.as_deref());
    if let (Some(id), Some(api)) = (id, api) {
        api.remove_token(id).await?;
    }
    Ok(())
}

async fn delete(context: &Context, token: &JoinToken) -> Result<(), ReconcileError> {
    let tokens = Api::<Lenient<JoinToken>>::namespaced(context.client.clone(), &token.namespace().unwrap_or_default());
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
        Err(error) => Err(ReconcileError::host("a JoinToken that has ended")(error)),
    }
}

/// Sets the finalizer.
async fn hold(context: &Context, token: &JoinToken) -> Result<(), ReconcileError> {
    if is_held(token) {
        return Ok(());
    }
    let patch = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "JoinToken",
        "metadata": {"name": token.name_any(), "uid": token.uid(), "finalizers": [labels::FINALIZER]}});
    let tokens = Api::<Lenient<JoinToken>>::namespaced(context.client.clone(), &token.namespace().unwrap_or_default());
    let held = tokens
        .patch(&token.name_any(), context.join_tokens.params(), &Patch::Apply(&patch))
        .await;
    held.map(|_| ())
        .map_err(ReconcileError::host("a JoinToken's finalizer"))
}

/// Whether the Secret of a JoinToken is there, as far as is known.
pub(crate) fn has_secret(context: &Context, token: &JoinToken) -> bool {
    find_secret(context, token).is_some()
}

/// Whether the Tenant may read the Secret, as far as is known.
fn is_readable(context: &Context, token: &JoinToken) -> bool {
    let key = ObjectRef::<Role>::new(ROLE).within(&token.namespace().unwrap_or_default());
    let role = context.caches.roles.get(&key);
    role.is_some_and(|role| names_secret(&role, &secret_name(&token.name_any())))
}

fn find_secret(context: &Context, token: &JoinToken) -> Option<Arc<Secret>> {
    let name = secret_name(&token.name_any());
    let key = ObjectRef::<Secret>::new(&name).within(&token.namespace().unwrap_or_default());
    let known = context.caches.secrets.get(&key);
    known.filter(|secret| build::is_of(secret, token))
}

/// The Secret with what a worker needs: drawn once, and kept. `None` if one of its name is somebody else's.
async fn ensure_secret(
    context: &Context,
    token: &JoinToken,
    identity: &Identity,
    cluster: &Cluster,
) -> Result<Option<BootstrapToken>, ReconcileError> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), &identity.tenant);
    let name = secret_name(&token.name_any());
    let expires = plan::end(token).unwrap_or(Timestamp::MIN);
    let found = secrets.get_opt(&name).await.map_err(ReconcileError::host("a Secret"))?;
    if let Some(found) = found {
        let text = found.data.as_ref().and_then(|data| data.get(key::TOKEN));
        let text = text.and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
        if let (true, Some(drawn)) = (
            build::is_of(&found, token) && build::is_for(&found, identity),
            text.and_then(|text| build::read_token(text, expires)),
        ) {
            return Ok(Some(drawn));
        }
        if !build::is_ours(&found) {
            return Ok(None);
        }
        // It was left by one of the same name, or drawn for a Cluster that went before anybody was told.
        context.join_tokens.delete(&secrets, &found).await?;
        return Err(ReconcileError::Contended("a JoinToken's Secret"));
    }
    let drawn = build::draw_token(expires);
    let materials = build::Materials {
        root: context.root().await?,
        client_ca: find_client_ca(context, identity).await?,
        version: cluster
            .status
            .as_ref()
            .and_then(|status| status.version.clone())
            .unwrap_or_default(),
        pod_network: cluster.spec.addons.pod_network.enabled,
    };
    let secret = build::build_secret(token, identity, &context.config, &materials, &drawn);
    match context.join_tokens.create(&secrets, &secret).await? {
        Some(_) => Ok(Some(drawn)),
        None => Err(ReconcileError::Contended("a JoinToken's Secret")),
    }
}

/// The cluster's own CA, without what it is under.
async fn find_client_ca(context: &Context, identity: &Identity) -> Result<String, ReconcileError> {
    let role = AuthorityRole::Cluster;
    let found = cluster::find_authority_of(&context.client, &identity.id, role).await?;
    let missing = || ReconcileError::Kept {
        name: role.object_name(&identity.id, Generation::FIRST),
        key: "tls.crt",
    };
    found.map(|found| found.to_pem()).ok_or_else(missing)
}

/// Writes the status, unless it says so already. Its uses are the signer's.
async fn say(
    context: &Context,
    token: &JoinToken,
    state: State,
    told: Option<&Told<'_>>,
) -> Result<(), ReconcileError> {
    let before = token.status.clone().unwrap_or_default();
    let states = [(ConditionType::Ready, state)];
    let generation = token.metadata.generation;
    let name = secret_name(&token.name_any());
    let status = JoinTokenStatus {
        conditions: conditions::build_conditions(&states, &before.conditions, generation, Timestamp::now()),
        token_id: told
            .map(|told| told.bootstrap.id.clone())
            .or_else(|| before.token_id.clone()),
        cluster_id: told
            .map(|told| told.cluster.to_string())
            .or_else(|| before.cluster_id.clone()),
        expiration_time: plan::end(token).map(Time),
        secret_ref: told.map(|_| SecretRef { name }),
        uses: vec![],
    };
    let same = JoinTokenStatus {
        uses: before.uses.clone(),
        ..status.clone()
    };
    if before == same {
        return Ok(());
    }
    let tokens = Api::<Lenient<JoinToken>>::namespaced(context.client.clone(), &token.namespace().unwrap_or_default());
    let name = token.name_any();
    let written = if status.token_id.is_some() {
        let patch = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "JoinToken",
            "metadata": {"name": name, "uid": token.uid()}, "status": status});
        let patch = Patch::Apply(patch);
        tokens.patch_status(&name, context.join_tokens.params(), &patch).await
    } else {
        // What is known may be old: an apply without the token would take it from the status.
        let patch = json!({"metadata": {"uid": token.uid(), "resourceVersion": token.resource_version()},
            "status": {"conditions": status.conditions, "expirationTime": status.expiration_time}});
        let params = context.join_tokens.merge_params();
        tokens.patch_status(&name, &params, &Patch::Merge(patch)).await
    };
    match written {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => return Err(ReconcileError::Contended(STATUS)),
        Err(error) => return Err(ReconcileError::host(STATUS)(error)),
    }
    let notices = conditions::build_notices(&states, &before.conditions, &[ConditionType::Ready], "Reconcile");
    context.events.publish(token, &notices).await;
    Ok(())
}
