//! Persists credentials that are generated once for the life of a Cluster: the service-account key,
//! and the account and user of the store.
//!
//! The Secrets are in the PKI namespace, so that they survive the loss of the control-plane
//! namespace. A lost Secret is restored from its copy in the control-plane namespace.
//!
//! A new service-account key or account is generated only for a Cluster that never had an API.
//! Another key would invalidate every token of a running cluster, and another account has none of
//! its data.
//!
//! An account outlives its Cluster if the data does. Its Secret then names the previous owner, and
//! says whether the store may have data.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use yoke_api::labels::component;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, Reason};
use yoke_pki::service_account::ServiceAccountKey;

use crate::cluster::context::Context;
use crate::cluster::credentials::fencing;
use crate::cluster::history::had_api;
use crate::cluster::ownership::is_owned_secret;
use crate::cluster::resources::secrets;
use crate::error::ReconcileError;
use crate::host_api::events::Notice;
use crate::host_api::secrets::get_secret;
use crate::host_api::secrets::{data_of, text_of};
use crate::model::identity::Identity;
use crate::model::quantity;
use crate::nats::account::{ACCOUNT, CREDENTIALS, QUOTA, REPLICAS};
use crate::nats::{Account, ClusterUser, Size};

/// Key of the service-account key in the Secrets that have it.
const SERVICE_ACCOUNT: &str = "sa.key";

/// Values of a Secret by their keys.
pub(crate) type Texts = BTreeMap<String, String>;

/// A persisted Secret and its copy.
struct PersistedSecret<'a> {
    name: String,
    component: &'a str,
    /// The required key, the same in the Secret and in its copy.
    key: &'static str,
    /// Name of the copy in the control-plane namespace.
    copy: &'a str,
}

/// Whether the store may have data, even from a deleted Cluster with this identity. The status of
/// that Cluster is gone, but the Secret of its store is not. The watch may lag behind, so an
/// unknown start is read from the host API.
pub(crate) async fn may_have_data(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
) -> Result<bool, ReconcileError> {
    let name = identity.store_secret();
    let known = find_own(context, identity, &name, PKI_NAMESPACE);
    if had_api(cluster) || known.is_some_and(|secret| fencing::has_start(&secret)) {
        return Ok(true);
    }
    let api = Api::<Secret>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let found = get_secret(&api, &name).await?;
    Ok(found.is_some_and(|secret| fencing::has_start(&secret)))
}

/// Whether the service-account key and the credentials of the store's user exist.
pub(crate) fn credentials_exist(context: &Context, identity: &Identity) -> bool {
    let has = |name: &str, key: &str| {
        let secret = find_own(context, identity, name, PKI_NAMESPACE);
        secret.is_some_and(|secret| text_of(&secret, key).is_some())
    };
    has(&identity.service_account_secret(), SERVICE_ACCOUNT) && has(&identity.store_secret(), CREDENTIALS)
}

/// Reads the service-account key from its Secret, which comes from the host API.
pub(crate) fn read_service_account(identity: &Identity, secret: Option<&Secret>) -> Result<String, ReconcileError> {
    read_own(identity, secret, identity.service_account_secret(), SERVICE_ACCOUNT)
}

/// Reads the credentials of the store's user from its Secret, which comes from the host API.
pub(crate) fn read_credentials(identity: &Identity, secret: Option<&Secret>) -> Result<String, ReconcileError> {
    read_own(identity, secret, identity.store_secret(), CREDENTIALS)
}

fn read_own(
    identity: &Identity,
    secret: Option<&Secret>,
    name: String,
    key: &'static str,
) -> Result<String, ReconcileError> {
    let own = secret.filter(|secret| is_owned_secret(secret, identity));
    own.and_then(|secret| text_of(secret, key))
        .ok_or(ReconcileError::CredentialMissing { name, key })
}

/// Ensures that the service-account key exists.
pub(crate) async fn ensure_service_account(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
) -> Result<(), ReconcileError> {
    let persisted = PersistedSecret {
        name: identity.service_account_secret(),
        component: component::PKI,
        key: SERVICE_ACCOUNT,
        copy: secrets::API_SERVER,
    };
    let to_texts = |key: &ServiceAccountKey| -> Texts {
        [
            (SERVICE_ACCOUNT.to_owned(), key.private_pem().to_owned()),
            ("sa.pub".to_owned(), key.public_pem().to_owned()),
        ]
        .into()
    };
    let read = |text: String| ServiceAccountKey::from_pem(&text).ok().map(|key| to_texts(&key));
    let generate = async {
        match had_api(cluster) {
            true => Err(ReconcileError::Lost {
                name: identity.service_account_secret(),
            }),
            false => Ok(to_texts(&ServiceAccountKey::generate()?)),
        }
    };
    let secret = ensure_secret(context, identity, &persisted, read, generate).await?;
    let exists = text_of(&secret, persisted.key).is_some();
    exists.then_some(()).ok_or(ReconcileError::CredentialMissing {
        name: persisted.name,
        key: persisted.key,
    })
}

/// Ensures the account of the store, with its user. `size` is for an account whose Secret is
/// created now.
///
/// A new user replaces a lost one without harm to the data: the account revokes the lost user.
pub(crate) async fn ensure_account(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    size: Size,
) -> Result<Account, ReconcileError> {
    let persisted = PersistedSecret {
        name: identity.store_secret(),
        component: component::STORE,
        key: CREDENTIALS,
        copy: secrets::STORE,
    };
    let now = Timestamp::now().as_second();
    let to_texts = |account: Account| {
        let mut texts = account.to_data();
        fencing::record_unknown_start(&mut texts);
        texts
    };
    let read = |text: String| Some(to_texts(Account::of_user(ClusterUser::from_credentials(&text)?, size)));
    let generate = async {
        let storage = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
        match storage {
            Some(storage) => {
                publish_lost_user(context, cluster, identity).await;
                let mut account = Account {
                    public_key: storage.account.clone(),
                    user: None,
                    size,
                };
                account.renew_user(&identity.id, now)?;
                Ok(to_texts(account))
            }
            None if had_api(cluster) => Err(ReconcileError::Lost {
                name: identity.store_secret(),
            }),
            None => Ok(Account::draw(&identity.id, size, now)?.to_data()),
        }
    };
    let secret = ensure_secret(context, identity, &persisted, read, generate).await?;
    let mut account = Account::from_data(&data_of(&secret))?;
    if account.user.is_none() {
        // The data of a deleted Cluster with this identity was retained, and belongs to this
        // Cluster now.
        account.renew_user(&identity.id, now)?;
        write_texts(context, &secret, account.to_data()).await?;
    }
    Ok(account)
}

/// The account size by the spec alone, which may be a spec that was not accepted.
pub(crate) fn size_of(context: &Context, cluster: &Cluster) -> Size {
    Size {
        quota: quantity::to_bytes(&cluster.spec.storage.quota).unwrap_or(0),
        replicas: context.host.config.max_store_replicas(),
    }
}

/// Records the size of the account in its Secret.
pub(crate) async fn record_size(
    context: &Context,
    identity: &Identity,
    account: &Account,
) -> Result<(), ReconcileError> {
    let api = Api::<Secret>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let Some(secret) = get_secret(&api, &identity.store_secret()).await? else {
        return Ok(());
    };
    let mut data = account.to_data();
    data.retain(|key, _| key == QUOTA || key == REPLICAS);
    write_texts(context, &secret, data).await
}

async fn publish_lost_user(context: &Context, cluster: &Cluster, identity: &Identity) {
    tracing::warn!(cluster = %identity.id, "user of the store was lost and is replaced");
    let notice = Notice {
        warning: true,
        action: "Reconcile",
        reason: Reason::KeyLost,
        note: "The NATS user of the store was lost and is replaced; the lost user is revoked.".into(),
    };
    context.host.events.publish(cluster, &[notice]).await;
}

/// Finds the account of the store: in its Secret, in the copy in the control-plane namespace, or by
/// its public key alone.
pub(crate) async fn find_account(
    context: &Context,
    identity: &Identity,
    known: Option<&str>,
    size: Size,
) -> Result<Option<Account>, ReconcileError> {
    let persisted = find_own(context, identity, &identity.store_secret(), PKI_NAMESPACE);
    if let Some(account) = persisted.and_then(|secret| Account::from_data(&data_of(&secret)).ok()) {
        return Ok(Some(account));
    }
    if has_copy(context, identity) {
        let hosted = Api::<Secret>::namespaced(context.host.client.clone(), identity.hosted().as_str());
        let copy = get_secret(&hosted, secrets::STORE).await?;
        let copy = copy.filter(|copy| is_owned_secret(copy, identity));
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

/// Whether the control-plane namespace has a copy of the credentials of the store's user.
pub(crate) fn has_copy(context: &Context, identity: &Identity) -> bool {
    find_own(context, identity, secrets::STORE, identity.hosted().as_str()).is_some()
}

/// A Secret of this Cluster, from the watch cache.
fn find_own(context: &Context, identity: &Identity, name: &str, namespace: &str) -> Option<Arc<Secret>> {
    let secret = ObjectRef::<Secret>::new(name).within(namespace);
    let secret = context.host.caches.secrets.get(&secret)?;
    is_owned_secret(&secret, identity).then_some(secret)
}

/// Retains the Secret that names an account with retained data, and removes the credentials from
/// it.
pub(crate) async fn retain(context: &Context, identity: &Identity, account: Account) -> Result<(), ReconcileError> {
    let api = Api::<Secret>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let name = identity.store_secret();
    let Some(secret) = get_secret(&api, &name).await? else {
        let mut texts = account.closed().to_data();
        fencing::record_unknown_start(&mut texts);
        let secret = build_secret(identity, &name, component::STORE, texts);
        context.applier.create(&api, &secret).await?;
        return Ok(());
    };
    if !data_of(&secret).contains_key(CREDENTIALS) {
        return Ok(());
    }
    let patch = RemovalPatch {
        data: [(CREDENTIALS, None)].into(),
    };
    api.patch(&name, &context.applier.merge_params(), &Patch::Merge(&patch))
        .await
        .map_err(ReconcileError::host("a credential Secret"))?;
    Ok(())
}

/// Whether a Secret names an account without credentials: its Cluster is deleted, and its data
/// retained.
pub(crate) fn is_retained(secret: &Secret) -> bool {
    let data = secret.data.as_ref();
    data.is_some_and(|data| data.contains_key(ACCOUNT) && !data.contains_key(CREDENTIALS))
}

#[derive(Debug, Serialize)]
struct RemovalPatch {
    data: BTreeMap<&'static str, Option<ByteString>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TextsPatch {
    metadata: VersionMetadata,
    string_data: Texts,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionMetadata {
    resource_version: String,
}

/// Writes values into a Secret, if it is unchanged since it was read.
async fn write_texts(context: &Context, secret: &Secret, texts: Texts) -> Result<(), ReconcileError> {
    let patch = TextsPatch {
        metadata: VersionMetadata {
            resource_version: secret.resource_version().unwrap_or_default(),
        },
        string_data: texts,
    };
    let api = Api::<Secret>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    api.patch(
        &secret.name_any(),
        &context.applier.merge_params(),
        &Patch::Merge(&patch),
    )
    .await
    .map_err(ReconcileError::host("a credential Secret"))?;
    Ok(())
}

/// Returns the persisted Secret. A missing one is restored from its copy, or generated. The watch
/// may lag behind, so the host API must confirm that it is missing.
async fn ensure_secret(
    context: &Context,
    identity: &Identity,
    persisted: &PersistedSecret<'_>,
    read: impl Fn(String) -> Option<Texts>,
    generate: impl Future<Output = Result<Texts, ReconcileError>>,
) -> Result<Secret, ReconcileError> {
    let key = ObjectRef::<Secret>::new(&persisted.name).within(PKI_NAMESPACE);
    let api = Api::<Secret>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let mut found = context.host.caches.secrets.get(&key).map(|secret| (*secret).clone());
    if found.is_none() {
        found = get_secret(&api, &persisted.name).await?;
    }
    if found.is_none() {
        let hosted = Api::<Secret>::namespaced(context.host.client.clone(), identity.hosted().as_str());
        let copy = get_secret(&hosted, persisted.copy)
            .await?
            .filter(|copy| is_owned_secret(copy, identity));
        let copied = copy.and_then(|copy| read(text_of(&copy, persisted.key)?));
        let texts = match copied {
            Some(texts) => {
                tracing::warn!(cluster = %identity.id, secret = persisted.name, "credential Secret was lost and is restored from its copy");
                texts
            }
            None => generate.await?,
        };
        let secret = build_secret(identity, &persisted.name, persisted.component, texts);
        found = match context.applier.create(&api, &secret).await? {
            Some(created) => Some(created),
            None => get_secret(&api, &persisted.name).await?,
        };
    }
    found
        .filter(|secret| is_owned_secret(secret, identity))
        .ok_or_else(|| ReconcileError::CredentialMissing {
            name: persisted.name.clone(),
            key: persisted.key,
        })
}

fn build_secret(identity: &Identity, name: &str, component: &str, texts: Texts) -> Secret {
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
