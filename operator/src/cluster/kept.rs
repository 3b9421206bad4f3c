//! What is drawn once for a Cluster and kept for its life: the service-account key, the store's account and user.
//!
//! It lives in the namespace of certificate authorities, so that a lost hosted namespace takes nothing with it. A Secret
//! that is lost there is made again from the copy in the hosted namespace. Only a Cluster that never had an API is drawn
//! a service-account key or an account: another key voids every token of a cluster that runs, and another account has none
//! of its data. An account outlives its Cluster if the data does; the Secret then says whose it was, and whether anything may
//! have been written to it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, Patch};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource as _, ResourceExt as _};
use serde::Serialize;
use yoke_api::labels::component;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, ClusterId, Reason, labels};
use yoke_pki::service_account::ServiceAccountKey;

use super::build::secrets;
use super::identity::{Identity, store_secret};
use super::incarnation;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::events::Notice;
use crate::nats::account::{ACCOUNT, CREDENTIALS, QUOTA, REPLICAS};
use crate::nats::{Account, ClusterUser, Size};
use crate::quantity;

/// Key of the service-account key in the Secrets that hold it.
const SERVICE_ACCOUNT: &str = "sa.key";

/// Texts of a Secret by their keys.
pub(super) type Texts = BTreeMap<String, String>;

/// A Secret to keep.
struct Place<'a> {
    name: String,
    component: &'a str,
    /// The key that is asked for, here and in the copy.
    key: &'static str,
    /// The Secret in the hosted namespace that holds a copy.
    copy: &'a str,
}

/// Whether this very Cluster ever had an API, and so has state that hangs on what was drawn for it.
pub(super) fn had_api(cluster: &Cluster) -> bool {
    let mut history = cluster.status.iter().flat_map(|status| &status.history);
    history.any(|entry| entry.completed.is_some())
}

/// Whether anything may have been written to the store, be it by a Cluster of this identity that is gone: its status went
/// with it, and its store's Secret did not. The watch may lag behind, so a start that is not known is asked for.
pub(super) async fn has_state(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
) -> Result<bool, ReconcileError> {
    let name = identity.store_secret();
    let known = find_own(context, identity, &name, PKI_NAMESPACE);
    if had_api(cluster) || known.is_some_and(|secret| incarnation::is_noted(&secret)) {
        return Ok(true);
    }
    let api = Api::<Secret>::namespaced(context.client.clone(), PKI_NAMESPACE);
    let found = find(&api, &name).await?;
    Ok(found.is_some_and(|secret| incarnation::is_noted(&secret)))
}

/// Whether the service-account key and the credentials of the store's user are there.
pub(super) fn are_known(context: &Context, identity: &Identity) -> bool {
    let has = |name: &str, key: &str| {
        let secret = find_own(context, identity, name, PKI_NAMESPACE);
        secret.is_some_and(|secret| text_of(&secret, key).is_some())
    };
    has(&identity.service_account_secret(), SERVICE_ACCOUNT) && has(&identity.store_secret(), CREDENTIALS)
}

/// The service-account key in the Secret that keeps it, as it was read from the host API.
pub(super) fn read_service_account(identity: &Identity, secret: Option<&Secret>) -> Result<String, ReconcileError> {
    read_own(identity, secret, identity.service_account_secret(), SERVICE_ACCOUNT)
}

/// The same of the credentials of the store's user.
pub(super) fn read_credentials(identity: &Identity, secret: Option<&Secret>) -> Result<String, ReconcileError> {
    read_own(identity, secret, identity.store_secret(), CREDENTIALS)
}

fn read_own(
    identity: &Identity,
    secret: Option<&Secret>,
    name: String,
    key: &'static str,
) -> Result<String, ReconcileError> {
    let own = secret.filter(|secret| is_of(secret, identity));
    own.and_then(|secret| text_of(secret, key))
        .ok_or(ReconcileError::Kept { name, key })
}

/// Has a service-account key.
pub(super) async fn ensure_service_account(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
) -> Result<(), ReconcileError> {
    let place = Place {
        name: identity.service_account_secret(),
        component: component::PKI,
        key: SERVICE_ACCOUNT,
        copy: secrets::API_SERVER,
    };
    let texts = |key: &ServiceAccountKey| -> Texts {
        [
            (SERVICE_ACCOUNT.to_owned(), key.private_pem().to_owned()),
            ("sa.pub".to_owned(), key.public_pem().to_owned()),
        ]
        .into()
    };
    let read = |text: String| ServiceAccountKey::from_pem(&text).ok().map(|key| texts(&key));
    let draw = async {
        match had_api(cluster) {
            true => Err(ReconcileError::Lost {
                name: identity.service_account_secret(),
            }),
            false => Ok(texts(&ServiceAccountKey::generate()?)),
        }
    };
    let secret = keep(context, identity, &place, read, draw).await?;
    let is_there = text_of(&secret, place.key).is_some();
    is_there.then_some(()).ok_or(ReconcileError::Kept {
        name: place.name,
        key: place.key,
    })
}

/// The account of the store, with its user. `size` is for one whose Secret is made now.
///
/// A lost user is replaced by another one, which harms no data: the account forgets the lost one.
pub(super) async fn ensure_account(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    size: Size,
) -> Result<Account, ReconcileError> {
    let place = Place {
        name: identity.store_secret(),
        component: component::STORE,
        key: CREDENTIALS,
        copy: secrets::STORE,
    };
    let now = Timestamp::now().as_second();
    let replace = |account: Account| {
        let mut texts = account.to_data();
        incarnation::note_unknown(&mut texts);
        texts
    };
    let read = |text: String| Some(replace(Account::of_user(ClusterUser::from_credentials(&text)?, size)));
    let draw = async {
        let had = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
        match had {
            Some(had) => {
                tell_of_lost_user(context, cluster, identity).await;
                let mut account = Account {
                    public_key: had.account.clone(),
                    user: None,
                    size,
                };
                account.renew_user(&identity.id, now)?;
                Ok(replace(account))
            }
            None if had_api(cluster) => Err(ReconcileError::Lost {
                name: identity.store_secret(),
            }),
            None => Ok(Account::draw(&identity.id, size, now)?.to_data()),
        }
    };
    let secret = keep(context, identity, &place, read, draw).await?;
    let mut account = Account::from_data(&data_of(&secret))?;
    if account.user.is_none() {
        // The data stayed when a Cluster of this identity went, and is this one's now.
        account.renew_user(&identity.id, now)?;
        write(context, &secret, account.to_data()).await?;
    }
    Ok(account)
}

/// What the account of a Cluster has room for if nothing says so but its spec, which may not be one that is accepted.
pub(super) fn size_of(context: &Context, cluster: &Cluster) -> Size {
    Size {
        quota: quantity::to_bytes(&cluster.spec.storage.quota).unwrap_or(0),
        replicas: context.config.max_store_replicas(),
    }
}

/// Notes what the account has room for.
pub(super) async fn note_size(context: &Context, identity: &Identity, account: &Account) -> Result<(), ReconcileError> {
    let api = Api::<Secret>::namespaced(context.client.clone(), PKI_NAMESPACE);
    let Some(secret) = find(&api, &identity.store_secret()).await? else {
        return Ok(());
    };
    let mut data = account.to_data();
    data.retain(|key, _| key == QUOTA || key == REPLICAS);
    write(context, &secret, data).await
}

async fn tell_of_lost_user(context: &Context, cluster: &Cluster, identity: &Identity) {
    tracing::warn!(cluster = %identity.id, "store's user was lost and another one is made");
    let notice = Notice {
        warning: true,
        action: "Reconcile",
        reason: Reason::KeyLost,
        note: "The store's user was lost, and another one is made; the lost one is let in no more.".into(),
    };
    context.events.publish(cluster, &[notice]).await;
}

/// The account of the store as far as it is known: by its Secret, by the copy in the hosted namespace, or by its public key.
pub(super) async fn find_account(
    context: &Context,
    identity: &Identity,
    known: Option<&str>,
    size: Size,
) -> Result<Option<Account>, ReconcileError> {
    let kept = find_own(context, identity, &identity.store_secret(), PKI_NAMESPACE);
    if let Some(account) = kept.and_then(|secret| Account::from_data(&data_of(&secret)).ok()) {
        return Ok(Some(account));
    }
    if has_copy(context, identity) {
        let hosted = Api::<Secret>::namespaced(context.client.clone(), identity.hosted().as_str());
        let copy = find(&hosted, secrets::STORE).await?;
        let copy = copy.filter(|copy| is_of(copy, identity));
        let user = copy.and_then(|copy| ClusterUser::from_credentials(&text_of(&copy, CREDENTIALS)?));
        if let Some(user) = user {
            return Ok(Some(Account::of_user(user, size)));
        }
    }
    Ok(known.map(|public_key| Account {
        public_key: public_key.to_owned(),
        user: None,
        size,
    }))
}

/// Whether the hosted namespace has a copy of the credentials of the store's user.
pub(super) fn has_copy(context: &Context, identity: &Identity) -> bool {
    find_own(context, identity, secrets::STORE, identity.hosted().as_str()).is_some()
}

/// A Secret of this Cluster's, as the watch knows it.
fn find_own(context: &Context, identity: &Identity, name: &str, namespace: &str) -> Option<Arc<Secret>> {
    let secret = ObjectRef::<Secret>::new(name).within(namespace);
    let secret = context.caches.secrets.get(&secret)?;
    is_of(&secret, identity).then_some(secret)
}

/// Keeps what names an account whose data stays, and lets nobody use it.
pub(super) async fn retain(context: &Context, identity: &Identity, account: Account) -> Result<(), ReconcileError> {
    let api = Api::<Secret>::namespaced(context.client.clone(), PKI_NAMESPACE);
    let name = identity.store_secret();
    let Some(secret) = find(&api, &name).await? else {
        let mut texts = account.closed().to_data();
        incarnation::note_unknown(&mut texts);
        let secret = build(identity, &name, component::STORE, texts);
        context.clusters.create(&api, &secret).await?;
        return Ok(());
    };
    if !data_of(&secret).contains_key(CREDENTIALS) {
        return Ok(());
    }
    let patch = Removal {
        data: [(CREDENTIALS, None)].into(),
    };
    api.patch(&name, &context.clusters.merge_params(), &Patch::Merge(&patch))
        .await
        .map_err(ReconcileError::host("a kept Secret"))?;
    Ok(())
}

/// What a Cluster left that is gone.
pub(crate) struct Left {
    /// The identity that it had.
    pub(crate) id: ClusterId,
    /// The account with its data.
    pub(crate) account: Account,
    /// The Secret that names it.
    pub(crate) secret: Secret,
    /// The copy of its user's credentials in the hosted namespace, if that is still there.
    pub(crate) copy: Option<ObjectRef<Secret>>,
}

/// The stores of a Tenant's Clusters that are gone, be it that their data stays or that nobody has collected it yet.
pub(crate) fn find_left(context: &Context, tenant: &str) -> Vec<Left> {
    // Another that only claims the identity is refused, and has none of it.
    let clusters = context.caches.clusters.outlines_in(tenant);
    let had: HashSet<_> = clusters
        .iter()
        .filter_map(|cluster| Some((cluster.id.as_deref()?, &*cluster.name)))
        .collect();
    let secrets = &context.caches.secrets;
    let reserved = context.caches.reserved.of(tenant);
    let left = reserved.keys().filter_map(|id| {
        let secret = secrets.get(&ObjectRef::new(&store_secret(id)).within(PKI_NAMESPACE))?;
        let name = secret.labels().get(labels::CLUSTER).map(String::as_str);
        if name.is_some_and(|name| had.contains(&(id.as_str(), name))) {
            return None;
        }
        let account = Account::from_data(&data_of(&secret)).ok()?;
        let copy = ObjectRef::<Secret>::new(secrets::STORE).within(id.hosted_namespace().as_str());
        let is_there = secrets.get(&copy).is_some_and(|copy| is_of_tenant(copy.meta(), tenant));
        Some(Left {
            account,
            secret: (*secret).clone(),
            copy: is_there.then_some(copy),
            id: id.clone(),
        })
    });
    left.collect()
}

/// Whether what is labelled so is a Tenant's.
pub(crate) fn is_of_tenant(meta: &ObjectMeta, tenant: &str) -> bool {
    let label = meta.labels.as_ref().and_then(|labels| labels.get(labels::TENANT));
    label.map(String::as_str) == Some(tenant)
}

/// Whether a Secret names an account that lets nobody in: its Cluster is gone, and its data stays.
pub(super) fn is_retained(secret: &Secret) -> bool {
    let data = secret.data.as_ref();
    data.is_some_and(|data| data.contains_key(ACCOUNT) && !data.contains_key(CREDENTIALS))
}

#[derive(Debug, Serialize)]
struct Removal {
    data: BTreeMap<&'static str, Option<ByteString>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Addition {
    metadata: Version,
    string_data: Texts,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    resource_version: String,
}

/// Writes texts into a Secret, if it is still as it was seen.
async fn write(context: &Context, secret: &Secret, texts: Texts) -> Result<(), ReconcileError> {
    let patch = Addition {
        metadata: Version {
            resource_version: secret.resource_version().unwrap_or_default(),
        },
        string_data: texts,
    };
    let api = Api::<Secret>::namespaced(context.client.clone(), PKI_NAMESPACE);
    api.patch(
        &secret.name_any(),
        &context.clusters.merge_params(),
        &Patch::Merge(&patch),
    )
    .await
    .map_err(ReconcileError::host("a kept Secret"))?;
    Ok(())
}

/// The Secret that is kept; restored from the copy, or drawn, if there is none. The watch may lag behind, so absence is asked
/// for before anything is drawn.
async fn keep(
    context: &Context,
    identity: &Identity,
    place: &Place<'_>,
    read: impl Fn(String) -> Option<Texts>,
    draw: impl Future<Output = Result<Texts, ReconcileError>>,
) -> Result<Secret, ReconcileError> {
    let key = ObjectRef::<Secret>::new(&place.name).within(PKI_NAMESPACE);
    let api = Api::<Secret>::namespaced(context.client.clone(), PKI_NAMESPACE);
    let mut found = context.caches.secrets.get(&key).map(|secret| (*secret).clone());
    if found.is_none() {
        found = find(&api, &place.name).await?;
    }
    if found.is_none() {
        let hosted = Api::<Secret>::namespaced(context.client.clone(), identity.hosted().as_str());
        let copy = find(&hosted, place.copy).await?.filter(|copy| is_of(copy, identity));
        let copied = copy.and_then(|copy| read(text_of(&copy, place.key)?));
        let texts = match copied {
            Some(texts) => {
                tracing::warn!(cluster = %identity.id, secret = place.name, "kept Secret was lost and is restored");
                texts
            }
            None => draw.await?,
        };
        let secret = build(identity, &place.name, place.component, texts);
        found = match context.clusters.create(&api, &secret).await? {
            Some(made) => Some(made),
            None => find(&api, &place.name).await?,
        };
    }
    found
        .filter(|secret| is_of(secret, identity))
        .ok_or_else(|| ReconcileError::Kept {
            name: place.name.clone(),
            key: place.key,
        })
}

fn build(identity: &Identity, name: &str, component: &str, texts: Texts) -> Secret {
    let data = texts
        .into_iter()
        .map(|(key, text)| (key, ByteString(text.into_bytes())));
    Secret {
        metadata: identity.pki_meta(name, component),
        data: Some(data.collect()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

pub(super) async fn find(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, ReconcileError> {
    api.get_opt(name).await.map_err(ReconcileError::host("a kept Secret"))
}

/// Whether a Secret is this Cluster's: one of its identity may be left from another's.
pub(super) fn is_of(secret: &Secret, identity: &Identity) -> bool {
    let has = |key: &str, value: &str| secret.labels().get(key).map(String::as_str) == Some(value);
    has(labels::ID, identity.id.as_str())
        && has(labels::TENANT, &identity.tenant)
        && has(labels::CLUSTER, &identity.cluster)
}

fn text_of(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(data_of(secret).remove(key)?).ok()
}

/// Data of a Secret.
pub(crate) fn data_of(secret: &Secret) -> std::collections::BTreeMap<String, Vec<u8>> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone())).collect()
}
