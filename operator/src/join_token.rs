//! The JoinToken controller: a bootstrap token in the tenant's cluster, and a Secret with the join
//! data in the Tenant's namespace.
//!
//! ```text
//!  JoinToken ─▶ valid? room? Cluster ready? ─▶ Secret <name>-join (generated once) ─▶ bootstrap token in the tenant's API
//!                ─▶ the Tenant's Role names the Secret? ─▶ status
//!                └─ expired, used up, deleted: bootstrap token and Secret are deleted; an hour after its end the JoinToken itself
//! ```
//!
//! The JoinToken decides what is valid, here and in the [signer](crate::signer): with a bootstrap
//! token alone, a client gets no certificate.

mod build;
mod context;
pub mod plan;

pub use crate::join_token::context::Context;

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

use crate::cluster;
use crate::error::ReconcileError;
use crate::host_api::Host;
use crate::host_api::apply::is_held;
use crate::host_api::certificate_authority;
use crate::model::conditions::{self, State};
use crate::model::identity::Identity;
use crate::model::join_token_term::{self, Term};
use crate::model::tenant_namespace::TENANT_MAX;
use crate::model::tenant_namespace::{ROLE, names_secret};
use crate::tenant_client::{BootstrapToken, TenantApi, Way};

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "join-token";

/// JoinTokens of one Tenant reconciled concurrently.
pub const AT_ONCE: usize = 2;
/// Requeue delay if that many other JoinTokens of the Tenant are in progress.
const BUSY: Duration = Duration::from_secs(2);
/// Requeue delay after a concurrent change of the JoinToken.
const AGAIN: Duration = Duration::from_secs(1);
/// Name of the final write, in errors.
const STATUS: &str = "a JoinToken's status";
/// Requeue delay while there are too many other JoinTokens.
const CROWDED: Duration = Duration::from_secs(300);

/// Bootstrap token and Cluster that the status names.
struct Published<'a> {
    bootstrap: &'a BootstrapToken,
    cluster: &'a ClusterId,
}

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

/// Lets workers join. Sets Ready once the Tenant may read the Secret.
async fn serve(
    context: &Context,
    token: &JoinToken,
    identity: &Identity,
    cluster: &Cluster,
    api: &TenantApi,
) -> Result<Action, ReconcileError> {
    let now = Timestamp::now();
    ensure_finalizer(context, token).await?;
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

fn is_published(token: &JoinToken, published: &Published<'_>) -> bool {
    let status = token.status.clone().unwrap_or_default();
    status.token_id.as_ref() == Some(&published.bootstrap.id)
        && status.cluster_id.as_deref() == Some(published.cluster.as_str())
}

/// Returns the Cluster of a JoinToken and its API. If that does not answer, returns the state to
/// report: `None` if this operator has not probed the API yet.
fn find_cluster(context: &Context, token: &JoinToken) -> Result<(Identity, Arc<Cluster>, TenantApi), Option<State>> {
    let tenant = token.namespace().unwrap_or_default();
    let name = &token.spec.cluster_name;
    let cluster = context.host.caches.clusters.get(&ObjectRef::new(name).within(&tenant));
    let cluster = cluster.filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    let missing = || {
        Some(State::no(
            Reason::ClusterMissing,
            format!("No Cluster named {name} exists."),
        ))
    };
    let cluster = cluster.ok_or_else(missing)?;
    let identity = Identity::of(&cluster, &context.host.config.base_domain);
    if identity
        .as_ref()
        .is_some_and(|identity| plan::is_of_another(token, &identity.id))
    {
        let message = format!(
            "Cluster {name} was deleted and created again. This JoinToken is for the deleted one: create a new \
         JoinToken."
        );
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

/// Ends a JoinToken that has expired or is being deleted.
async fn end(context: &Context, token: &JoinToken, now: Timestamp) -> Result<Action, ReconcileError> {
    let is_deleted = token.metadata.deletion_timestamp.is_some();
    let api = find_cluster(context, token);
    let had_token = token.status.as_ref().is_some_and(|status| status.token_id.is_some());
    let slot = context.slots.enter(&token.namespace().unwrap_or_default());
    if had_token && api.is_ok() && slot.is_none() {
        return Ok(Action::requeue(BUSY));
    }
    let is_expired = join_token_term::end(token).is_none_or(|end| end <= now);
    let revoked = revoke(context, token, api.as_ref().ok().map(|(.., api)| api)).await;
    // The signer accepts no bootstrap token without its JoinToken. A token that has expired needs
    // no deletion.
    let reasons = [Reason::ClusterMissing, Reason::ClusterReplaced];
    let is_cluster_deleted = matches!(&api, Err(Some(state)) if reasons.contains(&state.reason));
    let is_removed = is_expired || is_cluster_deleted || !had_token || api.is_ok() && revoked.is_ok();
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
async fn revoke(context: &Context, token: &JoinToken, api: Option<&TenantApi>) -> Result<(), ReconcileError> {
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

/// Sets the finalizer.
async fn ensure_finalizer(context: &Context, token: &JoinToken) -> Result<(), ReconcileError> {
    if is_held(token) {
        return Ok(());
    }
    let patch = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "JoinToken",
        "metadata": {"name": token.name_any(), "uid": token.uid(), "finalizers": [labels::FINALIZER]}});
    let tokens =
        Api::<Lenient<JoinToken>>::namespaced(context.host.client.clone(), &token.namespace().unwrap_or_default());
    let patched = tokens
        .patch(&token.name_any(), context.applier.params(), &Patch::Apply(&patch))
        .await;
    patched
        .map(|_| ())
        .map_err(ReconcileError::host("a JoinToken's finalizer"))
}

/// Returns whether the Secret of a JoinToken exists, by the watch cache.
pub(crate) fn has_secret(host: &Host, token: &JoinToken) -> bool {
    find_secret(host, token).is_some()
}

/// Returns whether the Tenant may read the Secret, by the watch cache.
fn is_readable(context: &Context, token: &JoinToken) -> bool {
    let key = ObjectRef::<Role>::new(ROLE).within(&token.namespace().unwrap_or_default());
    let role = context.host.caches.roles.get(&key);
    role.is_some_and(|role| names_secret(&role, &secret_name(&token.name_any())))
}

fn find_secret(host: &Host, token: &JoinToken) -> Option<Arc<Secret>> {
    let name = secret_name(&token.name_any());
    let key = ObjectRef::<Secret>::new(&name).within(&token.namespace().unwrap_or_default());
    let known = host.caches.secrets.get(&key);
    known.filter(|secret| build::is_of(secret, token))
}

/// Returns the token in the Secret with the join data. Creates the Secret if it does not exist, and
/// never changes it. `None` if a Secret with this name is owned by another.
async fn ensure_secret(
    context: &Context,
    token: &JoinToken,
    identity: &Identity,
    cluster: &Cluster,
) -> Result<Option<BootstrapToken>, ReconcileError> {
    let secrets = Api::<Secret>::namespaced(context.host.client.clone(), &identity.tenant);
    let name = secret_name(&token.name_any());
    let expires = join_token_term::end(token).unwrap_or(Timestamp::MIN);
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
        // Left over from a JoinToken with the same name, or from one whose Cluster was deleted
        // before the Secret was published.
        context.applier.delete(&secrets, &found).await?;
        return Err(ReconcileError::Contended("a JoinToken's Secret"));
    }
    let drawn = build::draw_token(expires);
    let materials = build::Materials {
        root: context.host.root_certificate().await?,
        client_ca: find_client_ca(context, identity).await?,
        version: cluster
            .status
            .as_ref()
            .and_then(|status| status.version.clone())
            .unwrap_or_default(),
        pod_network: cluster.spec.addons.pod_network.enabled,
    };
    let secret = build::build_secret(token, identity, &context.host.config, &materials, &drawn);
    match context.applier.create(&secrets, &secret).await? {
        Some(_) => Ok(Some(drawn)),
        None => Err(ReconcileError::Contended("a JoinToken's Secret")),
    }
}

/// Returns the cluster's own CA, without the certificates above it.
async fn find_client_ca(context: &Context, identity: &Identity) -> Result<String, ReconcileError> {
    let role = AuthorityRole::Cluster;
    let found = certificate_authority::find_authority(&context.host.client, &identity.id, role).await?;
    let missing = || ReconcileError::CredentialMissing {
        name: role.object_name(&identity.id, Generation::FIRST),
        key: "tls.crt",
    };
    found.map(|found| found.to_pem()).ok_or_else(missing)
}

/// Writes the status, unless it is current. The signer owns its `uses`.
async fn write_status(
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
