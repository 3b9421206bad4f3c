//! Removes everything of a Cluster, the stored data last: first nobody is sent to it any more, then it ends, then what it
//! was made of goes.
//!
//! Each step is done again until what it removes is gone, so an operator that ends in between loses nothing.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PartialObjectMeta, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use yoke_api::cluster::DeletionPolicy;
use yoke_api::names::{INGRESS_CONFIG_MAP, PKI_NAMESPACE, kubeconfig_secret};
use yoke_api::{Cluster, labels};

use super::build::secrets;
use super::identity::Identity;
use super::observe::{self, Observed};
use super::{gate, kept, patch, takeover, validate};
use crate::apply::is_held;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::ledger::Ledger;
use crate::nats::Account;

/// Watches tell when something is gone; this is for what they do not tell.
const AGAIN: Duration = Duration::from_secs(2);

/// Goes one or more steps, and releases the object after the last.
pub(super) async fn delete(context: &Context, cluster: &Cluster) -> Result<Action, ReconcileError> {
    if !is_held(cluster) {
        return Ok(Action::await_change());
    }
    let Some(identity) = Identity::of(cluster, &context.config.base_domain) else {
        return release(context, cluster, None).await;
    };
    let observed = observe::observe(&context.caches, cluster, &identity);
    // What has this identity may belong to another Cluster, whose it was first.
    if !owns(context, cluster, &observed) {
        return release(context, cluster, Some(&identity)).await;
    }
    context.end_turns(&identity.id);
    let known = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
    let known = known.map(|storage| storage.account.as_str());
    let account = kept::find_account(context, &identity, known, kept::size_of(context, cluster)).await?;
    if let Some(waiting) = remove(context, cluster.spec.deletion_policy, &identity, &observed, account).await? {
        patch::write_deleting(context, cluster, waiting).await?;
        return Ok(Action::requeue(AGAIN));
    }
    release(context, cluster, Some(&identity)).await
}

fn owns(context: &Context, cluster: &Cluster, observed: &Observed) -> bool {
    if observed.namespace.is_some() || observed.is_foreign {
        return !observed.is_foreign;
    }
    validate::holds_identity(cluster, &context.caches.clusters.outlines_near(cluster))
}

async fn release(context: &Context, cluster: &Cluster, identity: Option<&Identity>) -> Result<Action, ReconcileError> {
    patch::release(context, cluster).await?;
    if let Some(identity) = identity {
        context.forget(&identity.id);
    }
    Ok(Action::await_change())
}

/// Removes what there is, in order; says what is waited for, if anything.
async fn remove(
    context: &Context,
    policy: DeletionPolicy,
    identity: &Identity,
    observed: &Observed,
    account: Option<Account>,
) -> Result<Option<&'static str>, ReconcileError> {
    if let Some(waiting) = stop(context, identity, observed, account.as_ref()).await? {
        return Ok(Some(waiting));
    }
    if let Some(waiting) = remove_objects(context, identity, observed).await? {
        return Ok(Some(waiting));
    }
    Ok(remove_store(context, policy, identity, account)
        .await?
        .then_some("What named the store is being removed."))
}

/// Ends the control plane and closes its account: from here on nothing is written to the streams.
pub(super) async fn stop(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    account: Option<&Account>,
) -> Result<Option<&'static str>, ReconcileError> {
    let caches = &context.caches;
    let hosted = identity.hosted().to_string();
    let is_ingress = |name: &str| name == INGRESS_CONFIG_MAP;
    if remove_all(context, identity, &caches.config_maps, &hosted, is_ingress).await? {
        return Ok(Some("The ingress stops to send clients to the cluster."));
    }
    takeover::release_all(context, identity, observed).await;
    let stopping = remove_all(context, identity, &caches.stateful_sets, &hosted, |_| true).await?;
    let lost = gate::plan_forced(&observed.pods, Timestamp::now());
    // Until it has ended it needs its store: without it the API server waits for its whole grace period.
    if lost.is_empty() && (stopping || !observed.pods.is_empty()) {
        return Ok(Some("The control plane is being stopped."));
    }
    // A pod on a machine that is lost may run on: from here on it writes nothing.
    if let Some(account) = account {
        context.nats.close_account(&identity.id, account.clone()).await?;
    }
    if !lost.is_empty() {
        force(context, &lost).await?;
        return Ok(Some("What is left of the control plane is being taken away."));
    }
    Ok(None)
}

/// Removes what a control plane was made of, when it has ended.
pub(super) async fn remove_objects(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
) -> Result<Option<&'static str>, ReconcileError> {
    let caches = &context.caches;
    let kept = identity.store_secret();
    let issuers = remove_all(context, identity, &caches.issuers, PKI_NAMESPACE, |_| true).await?;
    let certificates = remove_all(context, identity, &caches.certificates, PKI_NAMESPACE, |_| true).await?;
    if issuers || certificates {
        return Ok(Some("Certificates are being removed."));
    }
    // cert-manager leaves the Secrets of its Certificates behind.
    let secrets = remove_all(context, identity, &caches.secrets, PKI_NAMESPACE, |name| name != kept).await?;
    let kubeconfig = kubeconfig_secret(&identity.cluster);
    let is_given = |name: &str| name == kubeconfig;
    let given = remove_all(context, identity, &caches.secrets, &identity.tenant, is_given).await?;
    if secrets || given {
        return Ok(Some("Keys and the kubeconfig are being removed."));
    }
    if let Some(namespace) = observed.namespace.as_deref() {
        if namespace.metadata.deletion_timestamp.is_none() {
            let api = Api::<Namespace>::all(context.client.clone());
            context.clusters.delete(&api, namespace).await?;
        }
        return Ok(Some("The namespace of the control plane is being removed."));
    }
    Ok(None)
}

/// Deletes what a ledger knows of this Cluster in a namespace, of the names that are picked; says whether there was anything.
async fn remove_all<K>(
    context: &Context,
    identity: &Identity,
    ledger: &Ledger<K>,
    namespace: &str,
    pick: impl Fn(&str) -> bool,
) -> Result<bool, ReconcileError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::namespaced(context.client.clone(), namespace);
    let mut names = ledger.find(namespace, identity.id.as_str());
    names.retain(|name| pick(name));
    let mut found = false;
    for name in names {
        let key = ObjectRef::new(&name).within(namespace);
        let is_own = |object: &PartialObjectMeta<K>| is_labelled(object, identity);
        found |= context.clusters.delete_named(&api, &key, is_own).await?;
    }
    Ok(found)
}

fn is_labelled<K: Resource>(object: &K, identity: &Identity) -> bool {
    let has = |key: &str, value: &str| object.labels().get(key).map(String::as_str) == Some(value);
    has(labels::ID, identity.id.as_str())
        && has(labels::CLUSTER, &identity.cluster)
        && has(labels::TENANT, &identity.tenant)
}

/// Takes away pods that no kubelet has ended in time.
pub(super) async fn force(context: &Context, pods: &[&Pod]) -> Result<(), ReconcileError> {
    for pod in pods {
        let deleted = remove_pod(context, pod, Some(0)).await;
        if deleted.map_err(ReconcileError::host("a pod that does not end"))? {
            tracing::warn!(pod = pod.name_any(), "pod did not end in time and is removed by force");
        }
    }
    Ok(())
}

/// Deletes a pod, with its own grace period if none is given, and no other of its name; whether it was there.
pub(super) async fn remove_pod(context: &Context, pod: &Pod, grace_seconds: Option<u32>) -> kube::Result<bool> {
    let api = Api::<Pod>::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    let params = DeleteParams {
        grace_period_seconds: grace_seconds,
        preconditions: Some(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&pod.name_any(), &params).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the streams with their account, and then the Secret that names it; says whether that is still there. Data that
/// stays keeps its account, which lets nobody in, and its Secret.
pub(super) async fn remove_store(
    context: &Context,
    policy: DeletionPolicy,
    identity: &Identity,
    account: Option<Account>,
) -> Result<bool, ReconcileError> {
    let Some(account) = account else {
        return Ok(false);
    };
    if policy == DeletionPolicy::Retain {
        kept::retain(context, identity, account).await?;
        return Ok(false);
    }
    // An account that is deleted must not come back from the copy of its user's credentials; what names it goes last.
    if kept::has_copy(context, identity) {
        kept::retain(context, identity, account).await?;
        let hosted = identity.hosted().to_string();
        let is_copy = |name: &str| name == secrets::STORE;
        return remove_all(context, identity, &context.caches.secrets, &hosted, is_copy).await;
    }
    context.nats.delete_account(&identity.id, &account.public_key).await?;
    let store = identity.store_secret();
    remove_all(context, identity, &context.caches.secrets, PKI_NAMESPACE, |name| {
        name == store
    })
    .await
}
