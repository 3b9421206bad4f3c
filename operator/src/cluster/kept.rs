//! What is drawn once for a Cluster and kept for its life: the service-account key, the store's user.
//!
//! It lives in the namespace of certificate authorities, so that a lost hosted namespace takes nothing with it. A Secret
//! that is lost there is made again from the copy in the hosted namespace. Only a Cluster that never had an API is drawn
//! a service-account key: another one voids every token of a cluster that runs.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::reflector::ObjectRef;
use yoke_api::labels::component;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, Reason, labels};
use yoke_pki::service_account::ServiceAccountKey;

use super::build::secrets;
use super::identity::Identity;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::events::Notice;
use crate::nats::{AccountKeys, ClusterUser};

/// Key of the credentials in the Secrets that hold them.
pub(super) const CREDENTIALS: &str = "user.creds";
/// Key of the user's public key.
pub(super) const PUBLIC_KEY: &str = "user.pub";
/// Key of the service-account key in the Secrets that hold it.
const SERVICE_ACCOUNT: &str = "sa.key";

type Texts = BTreeMap<String, String>;

/// A Secret to keep.
struct Place<'a> {
    name: String,
    component: &'a str,
    /// The key that is asked for, here and in the copy.
    key: &'static str,
    /// The Secret in the hosted namespace that holds a copy.
    copy: &'a str,
}

/// Whether the Cluster ever had an API, and so has state that hangs on what was drawn for it.
fn has_state(cluster: &Cluster) -> bool {
    let mut history = cluster.status.iter().flat_map(|status| &status.history);
    history.any(|entry| entry.completed.is_some())
}

/// The service-account key and the credentials of the store's user, if both are there.
pub(super) fn find_known(context: &Context, identity: &Identity) -> Option<(String, String)> {
    let find = |name: &str, key: &str| {
        let secret = ObjectRef::<Secret>::new(name).within(PKI_NAMESPACE);
        text_of(context.caches.secrets.get(&secret)?.as_ref(), identity, key)
    };
    Some((
        find(&identity.service_account_secret(), SERVICE_ACCOUNT)?,
        find(&identity.store_secret(), CREDENTIALS)?,
    ))
}

/// The service-account key.
pub(super) async fn ensure_service_account(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
) -> Result<String, ReconcileError> {
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
    let lost = || ReconcileError::Lost {
        name: identity.service_account_secret(),
    };
    let draw = async {
        match has_state(cluster) {
            true => Err(lost()),
            false => Ok(Some(texts(&ServiceAccountKey::generate()?))),
        }
    };
    keep(context, identity, &place, read, draw).await?.ok_or_else(lost)
}

/// The credentials of the store's user; `None` if there are none and no keys to sign them with.
///
/// A lost user is replaced by another one, which harms no data: but the lost one cannot be revoked, so it is told.
pub(super) async fn ensure_user(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    keys: Option<&AccountKeys>,
) -> Result<Option<String>, ReconcileError> {
    let place = Place {
        name: identity.store_secret(),
        component: component::STORE,
        key: CREDENTIALS,
        copy: secrets::STORE,
    };
    let texts = |user: ClusterUser| -> Texts {
        [
            (CREDENTIALS.to_owned(), user.credentials),
            (PUBLIC_KEY.to_owned(), user.public_key),
        ]
        .into()
    };
    let read = |text: String| ClusterUser::from_credentials(&text).map(texts);
    let draw = async {
        let Some(keys) = keys else {
            return Ok(None);
        };
        let user = ClusterUser::mint(&identity.id, keys, Timestamp::now().as_second())?;
        if has_state(cluster) {
            let note = "The store's user was lost, and another one is made; the lost one cannot be revoked.";
            tracing::warn!(cluster = %identity.id, "store's user was lost and another one is made");
            let notice = Notice {
                warning: true,
                action: "Reconcile",
                reason: Reason::KeyLost,
                note: note.into(),
            };
            context.events.publish(cluster, &[notice]).await;
        }
        Ok(Some(texts(user)))
    };
    keep(context, identity, &place, read, draw).await
}

/// The text that is kept; restored from the copy, or drawn, if there is none. The watch may lag behind, so absence is asked
/// for before anything is drawn.
async fn keep(
    context: &Context,
    identity: &Identity,
    place: &Place<'_>,
    read: impl Fn(String) -> Option<Texts>,
    draw: impl Future<Output = Result<Option<Texts>, ReconcileError>>,
) -> Result<Option<String>, ReconcileError> {
    let key = ObjectRef::<Secret>::new(&place.name).within(PKI_NAMESPACE);
    let api = Api::<Secret>::namespaced(context.client.clone(), PKI_NAMESPACE);
    let mut found = context.caches.secrets.get(&key).map(|secret| (*secret).clone());
    if found.is_none() {
        found = find(&api, &place.name).await?;
    }
    if found.is_none() {
        let hosted = Api::<Secret>::namespaced(context.client.clone(), identity.hosted().as_str());
        let copy = find(&hosted, place.copy).await?;
        let copied = copy.and_then(|copy| read(text_of(&copy, identity, place.key)?));
        let texts = match copied {
            Some(texts) => {
                tracing::warn!(cluster = %identity.id, secret = place.name, "kept Secret was lost and is restored");
                texts
            }
            None => match draw.await? {
                Some(texts) => texts,
                None => return Ok(None),
            },
        };
        let data = texts
            .into_iter()
            .map(|(key, text)| (key, ByteString(text.into_bytes())));
        let secret = Secret {
            metadata: identity.pki_meta(&place.name, place.component),
            data: Some(data.collect()),
            type_: Some("Opaque".into()),
            ..Secret::default()
        };
        found = match context.clusters.create(&api, &secret).await? {
            Some(made) => Some(made),
            None => find(&api, &place.name).await?,
        };
    }
    let text = found.and_then(|secret| text_of(&secret, identity, place.key));
    text.map(Some).ok_or_else(|| ReconcileError::Kept {
        name: place.name.clone(),
        key: place.key,
    })
}

async fn find(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, ReconcileError> {
    api.get_opt(name).await.map_err(ReconcileError::host("a kept Secret"))
}

/// A text in a Secret, if the Secret is this Cluster's.
fn text_of(secret: &Secret, identity: &Identity, key: &str) -> Option<String> {
    let owner = secret.metadata.labels.as_ref()?.get(labels::ID)?;
    let text = data_of(secret).remove(key)?;
    String::from_utf8(text).ok().filter(|_| owner == identity.id.as_str())
}

/// Data of a Secret.
pub(crate) fn data_of(secret: &Secret) -> std::collections::BTreeMap<String, Vec<u8>> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone())).collect()
}
