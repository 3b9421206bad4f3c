//! The store of one Cluster: its account and its streams.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, Reason};

use super::kept::data_of;
use crate::conditions::State;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::nats::AccountKeys;
use crate::nats::streams::{Provisioner, StreamsPlan};
use crate::tenant::account_secret;

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

/// Without the account's keys streams cannot be looked at; those of a Cluster that has some go on without.
fn plan_without_keys(cluster: &Cluster) -> Store {
    let before = cluster.status.as_ref().and_then(|status| status.storage.clone());
    match before {
        None => Store::pending(Reason::AccountPending, "The Tenant's NATS account is being made."),
        Some(before) => Store {
            account: Some(before.account),
            bytes: before.bytes,
            ..Store::pending(
                Reason::AccountKeyLost,
                "The keys of the Tenant's NATS account are lost.",
            )
        },
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
pub(super) async fn ensure_streams(
    context: &Context,
    cluster: &Cluster,
    plan: &StreamsPlan,
    keys: Option<&AccountKeys>,
) -> Store {
    let Some(keys) = keys else {
        return plan_without_keys(cluster);
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
    let made = async { Provisioner::connect(&context.nats, keys).await?.ensure(plan).await };
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
