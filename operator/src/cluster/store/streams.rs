//! Ensures the store of one Cluster: its account and its streams in NATS. The result is the state
//! of the condition `StoreReady`.

use std::time::{Duration, Instant};

use yoke_api::{Cluster, Reason};

use crate::cluster::context::Context;
use crate::cluster::credentials::persisted;
use crate::cluster::outcome::Store;
use crate::error::ReconcileError;
use crate::host_api::comparison::hash_of;
use crate::model::conditions::State;
use crate::model::identity::Identity;
use crate::nats::{Account, NatsError, Size, limits, streams};

/// Check interval of accounts and streams, which cannot be watched. They are also checked after a
/// lost connection. Each check of streams opens its own connection.
const CHECK_EVERY: Duration = Duration::from_secs(600);
/// Interval for requesting room again that NATS did not have, or checking whether streams are small
/// enough by now. It holds however often the Cluster is reconciled: each request pushes claims
/// twice, and adds a line to NATS's log.
const REQUEST_ROOM_EVERY: Duration = Duration::from_secs(60);

/// Ensures the store of an accepted spec.
pub(crate) async fn ensure_store(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    size: Size,
) -> Result<Store, ReconcileError> {
    let mut account = persisted::ensure_account(context, cluster, identity, size).await?;
    let recorded = std::mem::replace(&mut account.size, size);
    // The recorded size counts against the Tenant's quota. A larger size is recorded before it is
    // reserved, and a smaller one after the rest is released.
    let is_smaller = limits::disk_storage(size) < limits::disk_storage(recorded);
    if recorded != size && !is_smaller {
        persisted::record_size(context, identity, &account).await?;
    }
    let store = ensure_account_streams(context, cluster, identity, &account).await?;
    if is_smaller && store.is_ready() {
        persisted::record_size(context, identity, &account).await?;
    }
    Ok(store)
}

/// Pushes the account to NATS, and creates or finds the streams. A failure of NATS becomes a
/// condition, not an error. A lost log is never replaced: an empty log would be an empty cluster to
/// every client that acts on its API.
pub(crate) async fn ensure_account_streams(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    account: &Account,
) -> Result<Store, ReconcileError> {
    let id = &identity.id;
    let to_store = |state, bytes| Store {
        state,
        account: Some(account.public_key.clone()),
        bytes,
    };
    let ready = |bytes| {
        to_store(
            State::yes(Reason::AsExpected, "The NATS account, its user and its streams exist."),
            Some(bytes),
        )
    };
    let refused = |reason, message| to_store(State::no(reason, message), None);
    if let Some((known, since, found)) = context.memory.seen(id).store
        && known == hash_of(&account.terms())
        && since.elapsed() < if found.is_ok() { CHECK_EVERY } else { REQUEST_ROOM_EVERY }
    {
        return Ok(match found {
            Ok(bytes) => ready(bytes),
            Err(message) => refused(Reason::StoreQuotaExceeded, message),
        });
    }
    let may_have_data = persisted::may_have_data(context, cluster, identity).await?;
    let record = |found| {
        context.memory.update(id, |memory| {
            memory.store = Some((hash_of(&account.terms()), Instant::now(), found))
        })
    };
    match streams::ensure(&context.nats, id, account, may_have_data).await {
        Ok(bytes) => {
            record(Ok(bytes));
            Ok(ready(bytes))
        }
        Err(error) => {
            let reason = match error {
                NatsError::Foreign { .. } => Reason::IdentityConflict,
                NatsError::LogLost { .. } => Reason::StoreLost,
                _ if error.is_limit() => Reason::StoreQuotaExceeded,
                _ => Reason::StoreUnavailable,
            };
            tracing::warn!(cluster = %id, error = %crate::chain(&error), "streams cannot be created");
            let message = format!("The streams cannot be created as specified: {}.", crate::chain(&error));
            if matches!(error, NatsError::NoRoom { .. } | NatsError::InUse { .. }) {
                record(Err(message.clone()));
            }
            Ok(refused(reason, message))
        }
    }
}
