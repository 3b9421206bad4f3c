//! Deletes the objects of a Cluster. Its data is deleted last, or retained with
//! `deletionPolicy: Retain`. First the ingress stops routing to it, then the control plane stops,
//! then its objects are deleted.
//!
//! Each step is repeated until its objects are gone, so an operator that restarts in between loses
//! nothing.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::PartialObjectMeta;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use yoke_api::cluster::{DeletionPolicy, Phase};
use yoke_api::names::{INGRESS_CONFIG_MAP, PKI_NAMESPACE, kubeconfig_secret};
use yoke_api::{Cluster, ConditionType, Reason, labels};

use crate::cluster::context::Context;
use crate::cluster::credentials::persisted;
use crate::cluster::failover::{pod_deletion, pods, takeover};
use crate::cluster::observed::{self, Observed};
use crate::cluster::resources::secrets;
use crate::cluster::{object, status, validate};
use crate::error::ReconcileError;
use crate::host_api::apply::is_held;
use crate::host_api::compact_store::CompactStore;
use crate::model::conditions::State;
use crate::model::identity::Identity;
use crate::nats::Account;

/// Requeue delay. Watches report that objects are gone; the delay covers everything else.
const STEP_REQUEUE: Duration = Duration::from_secs(2);

/// Runs one or more steps of the deletion, and removes the finalizer after the last one.
pub(crate) async fn delete_cluster(context: &Context, cluster: &Cluster) -> Result<Action, ReconcileError> {
    if !is_held(cluster) {
        return Ok(Action::await_change());
    }
    let Some(identity) = Identity::of(cluster, &context.host.config.base_domain) else {
        return finish_deletion(context, cluster, None).await;
    };
    let observed = observed::find_for_cluster(&context.host.caches, cluster, &identity);
    // Objects with this identity may belong to another Cluster, which had it first.
    if !owns_objects(context, cluster, &observed) {
        return finish_deletion(context, cluster, Some(&identity)).await;
    }
    context.queues.finish(&identity.id);
    let known = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
    let known = known.map(|storage| storage.account.as_str());
    let account = persisted::find_account(context, &identity, known, persisted::size_of(context, cluster)).await?;
    if let Some(waiting) = run_steps(context, cluster.spec.deletion_policy, &identity, &observed, account).await? {
        write_deleting(context, cluster, waiting).await?;
        return Ok(Action::requeue(STEP_REQUEUE));
    }
    finish_deletion(context, cluster, Some(&identity)).await
}

/// Writes the progress of a deletion to the status.
async fn write_deleting(context: &Context, cluster: &Cluster, message: &str) -> Result<(), ReconcileError> {
    let changes = vec![
        (
            ConditionType::Ready,
            State::no(Reason::Deleting, "The cluster is being deleted."),
        ),
        (ConditionType::Progressing, State::yes(Reason::Deleting, message)),
    ];
    let status = status::plan_partial_status(cluster, Phase::Deleting, &changes, Timestamp::now());
    object::write_status(context, cluster, &status).await.map(|_| ())
}

fn owns_objects(context: &Context, cluster: &Cluster, observed: &Observed) -> bool {
    if observed.namespace.is_some() || observed.is_foreign {
        return !observed.is_foreign;
    }
    validate::holds_identity(cluster, &context.host.caches.clusters.summaries_in_conflict(cluster))
}

async fn finish_deletion(
    context: &Context,
    cluster: &Cluster,
    identity: Option<&Identity>,
) -> Result<Action, ReconcileError> {
    object::remove_finalizer(context, cluster).await?;
    if let Some(identity) = identity {
        context.forget(&identity.id);
    }
    Ok(Action::await_change())
}

/// Deletes the objects in order. Returns what the deletion is waiting for, if anything.
async fn run_steps(
    context: &Context,
    policy: DeletionPolicy,
    identity: &Identity,
    observed: &Observed,
    account: Option<Account>,
) -> Result<Option<&'static str>, ReconcileError> {
    if let Some(waiting) = stop_control_plane(context, identity, observed, account.as_ref()).await? {
        return Ok(Some(waiting));
    }
    if let Some(waiting) = remove_objects(context, identity, observed).await? {
        return Ok(Some(waiting));
    }
    Ok(remove_store(context, policy, identity, account)
        .await?
        .then_some("The Secret of the store is being deleted."))
}

/// Stops the control plane and closes its account. Afterwards nothing is written to the streams.
pub(crate) async fn stop_control_plane(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    account: Option<&Account>,
) -> Result<Option<&'static str>, ReconcileError> {
    let caches = &context.host.caches;
    let hosted = identity.hosted().to_string();
    let is_ingress = |name: &str| name == INGRESS_CONFIG_MAP;
    if delete_labelled(context, identity, &caches.config_maps, &hosted, is_ingress).await? {
        return Ok(Some("The ingress is removing its routes to the cluster."));
    }
    takeover::release_all(context, identity, observed).await;
    let stopping = delete_labelled(context, identity, &caches.stateful_sets, &hosted, |_| true).await?;
    let lost = pods::plan_forced(&observed.pods, Timestamp::now());
    // A stopping API server needs its store: without a store it waits for its whole grace period.
    if lost.is_empty() && (stopping || !observed.pods.is_empty()) {
        return Ok(Some("The control plane is being stopped."));
    }
    // A pod on a lost node may still run. From here on it cannot write.
    if let Some(account) = account {
        context.nats.close_account(&identity.id, account.clone()).await?;
    }
    if !lost.is_empty() {
        pod_deletion::force_delete(context, &lost).await?;
        return Ok(Some("Pods on an unresponsive node are being deleted by force."));
    }
    Ok(None)
}

/// Deletes the objects of a control plane that has stopped.
pub(crate) async fn remove_objects(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
) -> Result<Option<&'static str>, ReconcileError> {
    let caches = &context.host.caches;
    let store = identity.store_secret();
    let issuers = delete_labelled(context, identity, &caches.issuers, PKI_NAMESPACE, |_| true).await?;
    let certificates = delete_labelled(context, identity, &caches.certificates, PKI_NAMESPACE, |_| true).await?;
    if issuers || certificates {
        return Ok(Some("Certificates are being deleted."));
    }
    // cert-manager does not delete the Secrets of its Certificates.
    let secrets = delete_labelled(context, identity, &caches.secrets, PKI_NAMESPACE, |name| name != store).await?;
    let kubeconfig = kubeconfig_secret(&identity.cluster);
    let is_kubeconfig = |name: &str| name == kubeconfig;
    let kubeconfigs = delete_labelled(context, identity, &caches.secrets, &identity.tenant, is_kubeconfig).await?;
    if secrets || kubeconfigs {
        return Ok(Some("Keys and the kubeconfig are being deleted."));
    }
    if let Some(namespace) = observed.namespace.as_deref() {
        if namespace.metadata.deletion_timestamp.is_none() {
            let api = Api::<Namespace>::all(context.host.client.clone());
            context.applier.delete(&api, namespace).await?;
        }
        return Ok(Some("The control-plane namespace is being deleted."));
    }
    Ok(None)
}

/// Deletes this Cluster's objects that the cache lists in a namespace, if `selects` accepts their
/// names. Returns whether there were any.
async fn delete_labelled<K>(
    context: &Context,
    identity: &Identity,
    cached: &CompactStore<K>,
    namespace: &str,
    selects: impl Fn(&str) -> bool,
) -> Result<bool, ReconcileError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::namespaced(context.host.client.clone(), namespace);
    let mut names = cached.find(namespace, identity.id.as_str());
    names.retain(|name| selects(name));
    let mut found = false;
    for name in names {
        let key = ObjectRef::new(&name).within(namespace);
        let is_own = |object: &PartialObjectMeta<K>| is_labelled(object, identity);
        found |= context.applier.delete_named(&api, &key, is_own).await?;
    }
    Ok(found)
}

fn is_labelled<K: Resource>(object: &K, identity: &Identity) -> bool {
    let has = |key: &str, value: &str| object.labels().get(key).map(String::as_str) == Some(value);
    has(labels::ID, identity.id.as_str())
        && has(labels::CLUSTER, &identity.cluster)
        && has(labels::TENANT, &identity.tenant)
}

/// Deletes the streams with their account, then the Secret that names the account. Returns whether
/// that Secret still exists. Retained data keeps its account, without credentials, and its Secret.
pub(crate) async fn remove_store(
    context: &Context,
    policy: DeletionPolicy,
    identity: &Identity,
    account: Option<Account>,
) -> Result<bool, ReconcileError> {
    let Some(account) = account else {
        return Ok(false);
    };
    if policy == DeletionPolicy::Retain {
        persisted::retain(context, identity, account).await?;
        return Ok(false);
    }
    // A deleted account must not be restored from the copy of its user's credentials. The Secret
    // that names the account is deleted last.
    if persisted::has_copy(context, identity) {
        persisted::retain(context, identity, account).await?;
        let hosted = identity.hosted().to_string();
        let is_copy = |name: &str| name == secrets::STORE;
        return delete_labelled(context, identity, &context.host.caches.secrets, &hosted, is_copy).await;
    }
    context.nats.delete_account(&identity.id, &account.public_key).await?;
    let store = identity.store_secret();
    delete_labelled(context, identity, &context.host.caches.secrets, PKI_NAMESPACE, |name| {
        name == store
    })
    .await
}
