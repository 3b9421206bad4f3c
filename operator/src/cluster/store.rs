//! The store of one Cluster: its user's credentials, its streams.

use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::reflector::ObjectRef;
use yoke_api::labels::component;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Reason, labels};

use super::identity::Identity;
use crate::conditions::State;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::nats::streams::{Provisioner, StreamsPlan};
use crate::nats::{AccountKeys, ClusterUser};
use crate::tenant::account_secret;

/// Key of the credentials in the Secrets that hold them.
pub(super) const CREDENTIALS: &str = "user.creds";
/// Key of the user's public key.
pub(super) const PUBLIC_KEY: &str = "user.pub";
/// Streams have no watch: they are looked at this often, and after a lost connection.
const STREAMS_EVERY: Duration = Duration::from_secs(120);

/// What is known of the store.
#[derive(Clone, Debug)]
pub(super) struct Store {
    /// The condition.
    pub(super) state: State,
    /// Public key of the account.
    pub(super) account: Option<String>,
    /// Bytes in the streams.
    pub(super) bytes: Option<i64>,
}

impl Store {
    fn pending(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            state: State::no(reason, message),
            account: None,
            bytes: None,
        }
    }
}

/// The account's keys, if the Tenant's reconciliation has made them.
pub(super) fn find_account(context: &Context, tenant: &str) -> Result<Option<AccountKeys>, ReconcileError> {
    let key = ObjectRef::<Secret>::new(&account_secret(tenant)).within(&context.config.namespace);
    let Some(secret) = context.caches.secrets.get(&key) else {
        return Ok(None);
    };
    Ok(Some(AccountKeys::from_data(&data_of(&secret))?))
}

/// Makes the streams, or finds them; what goes wrong at NATS is a condition, not a failure.
pub(super) async fn ensure_streams(context: &Context, plan: &StreamsPlan, keys: Option<&AccountKeys>) -> Store {
    let Some(keys) = keys else {
        return Store::pending(Reason::AccountPending, "The Tenant's NATS account is being made.");
    };
    let account = Some(keys.public_key());
    let ready = |bytes| Store {
        state: State::yes(Reason::AsExpected, "Account, user and streams are there."),
        account: account.clone(),
        bytes: Some(bytes),
    };
    if let Some((known, since, bytes)) = context.seen(&plan.id).streams
        && known == *plan
        && since.elapsed() < STREAMS_EVERY
    {
        return ready(bytes);
    }
    let made = async {
        let credentials = keys.provisioner_credentials(Timestamp::now().as_second())?;
        Provisioner::connect(&context.nats, &credentials)
            .await?
            .ensure(plan)
            .await
    };
    match made.await {
        Ok(bytes) => {
            context.note(&plan.id, |seen| {
                seen.streams = Some((plan.clone(), Instant::now(), bytes))
            });
            ready(bytes)
        }
        Err(error) => {
            let reason = if error.is_limit() {
                Reason::StoreQuotaExceeded
            } else {
                Reason::StoreUnavailable
            };
            tracing::warn!(cluster = %plan.id, error = %crate::chain(&error), "streams cannot be made");
            Store {
                account,
                ..Store::pending(reason, format!("The streams cannot be made: {}.", crate::chain(&error)))
            }
        }
    }
}

/// The Secret that keeps the store's user, made if there is none.
pub(super) async fn ensure_user(
    context: &Context,
    identity: &Identity,
    keys: &AccountKeys,
) -> Result<String, ReconcileError> {
    let make = || {
        let user = ClusterUser::mint(&identity.id, keys, Timestamp::now().as_second())?;
        Ok([
            (CREDENTIALS.to_owned(), user.credentials),
            (PUBLIC_KEY.to_owned(), user.public_key),
        ]
        .into())
    };
    keep(
        context,
        identity,
        &identity.store_secret(),
        component::STORE,
        CREDENTIALS,
        make,
    )
    .await
}

/// The Secret that keeps the service-account key, made if there is none.
pub(super) async fn ensure_service_account(context: &Context, identity: &Identity) -> Result<String, ReconcileError> {
    let make = || {
        let key = yoke_pki::service_account::ServiceAccountKey::generate()?;
        Ok([
            ("sa.key".to_owned(), key.private_pem().to_owned()),
            ("sa.pub".to_owned(), key.public_pem().to_owned()),
        ]
        .into())
    };
    keep(
        context,
        identity,
        &identity.service_account_secret(),
        component::PKI,
        "sa.key",
        make,
    )
    .await
}

/// What is drawn once lives in the namespace of certificate authorities, so that a lost hosted namespace takes nothing
/// with it. The watch may lag behind, so absence is asked for before anything is drawn.
async fn keep(
    context: &Context,
    identity: &Identity,
    name: &str,
    component: &str,
    wanted: &'static str,
    make: impl Fn() -> Result<std::collections::BTreeMap<String, String>, ReconcileError>,
) -> Result<String, ReconcileError> {
    let key = ObjectRef::<Secret>::new(name).within(PKI_NAMESPACE);
    let api = Api::<Secret>::namespaced(context.client.clone(), PKI_NAMESPACE);
    let mut found = context.caches.secrets.get(&key).map(|secret| (*secret).clone());
    if found.is_none() {
        found = api.get_opt(name).await.map_err(ReconcileError::host("a kept Secret"))?;
    }
    if found.is_none() {
        let secret = Secret {
            metadata: identity.pki_meta(name, component),
            data: Some(
                make()?
                    .into_iter()
                    .map(|(key, text)| (key, ByteString(text.into_bytes())))
                    .collect(),
            ),
            type_: Some("Opaque".into()),
            ..Secret::default()
        };
        found = context.clusters.create(&api, &secret).await?;
    }
    let secret = match found {
        Some(secret) => secret,
        None => api.get(name).await.map_err(ReconcileError::host("a kept Secret"))?,
    };
    let owner = secret.metadata.labels.as_ref().and_then(|all| all.get(labels::ID));
    let text = data_of(&secret)
        .remove(wanted)
        .and_then(|bytes| String::from_utf8(bytes).ok());
    match text {
        Some(text) if owner.map(String::as_str) == Some(identity.id.as_str()) => Ok(text),
        _ => Err(ReconcileError::Kept {
            name: name.to_owned(),
            key: wanted,
        }),
    }
}

/// Data of a Secret.
pub(crate) fn data_of(secret: &Secret) -> std::collections::BTreeMap<String, Vec<u8>> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone())).collect()
}
