//! The store of one Cluster: its account and its streams.

use std::time::{Duration, Instant};

use yoke_api::{Cluster, Reason};

use super::identity::Identity;
use super::kept;
use crate::apply::hash_of;
use crate::conditions::State;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::nats::{Account, NatsError, Size, limits, streams};

/// Accounts and streams have no watch: they are looked at this often, and after a lost connection. Each look at streams is a
/// connection of its own.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// NATS is asked this often for the room that it had not, or whether streams hold less by now, however often the Cluster is
/// looked at: to ask is to push claims twice, and a line in its log.
const ROOM_EVERY: Duration = Duration::from_secs(60);

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

/// The store of an accepted spec.
pub(super) async fn ensure(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    size: Size,
) -> Result<Store, ReconcileError> {
    let mut account = kept::ensure_account(context, cluster, identity, size).await?;
    let noted = std::mem::replace(&mut account.size, size);
    // What is noted counts against the Tenant's quota: more before it is reserved, less after it is given back.
    let gives_back = limits::disk_storage(size) < limits::disk_storage(noted);
    if noted != size && !gives_back {
        kept::note_size(context, identity, &account).await?;
    }
    let store = look(context, cluster, identity, &account).await?;
    if gives_back && store.state.status == Some(true) {
        kept::note_size(context, identity, &account).await?;
    }
    Ok(store)
}

/// Gives NATS the account, and makes the streams or finds them; what goes wrong there is a condition, not a failure. An
/// empty log in place of a lost one would be an empty cluster, to all who act on what its API says: none is made.
pub(super) async fn look(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    account: &Account,
) -> Result<Store, ReconcileError> {
    let id = &identity.id;
    let tell = |state, bytes| Store {
        state,
        account: Some(account.public_key.clone()),
        bytes,
    };
    let ready = |bytes| {
        tell(
            State::yes(Reason::AsExpected, "Account, user and streams are there."),
            Some(bytes),
        )
    };
    let refused = |reason, message| tell(State::no(reason, message), None);
    if let Some((known, since, found)) = context.seen(id).store
        && known == hash_of(&account.terms())
        && since.elapsed() < if found.is_ok() { LOOK_EVERY } else { ROOM_EVERY }
    {
        return Ok(match found {
            Ok(bytes) => ready(bytes),
            Err(message) => refused(Reason::StoreQuotaExceeded, message),
        });
    }
    let has_state = kept::has_state(context, cluster, identity).await?;
    let note = |found| {
        context.note(id, |seen| {
            seen.store = Some((hash_of(&account.terms()), Instant::now(), found))
        })
    };
    match streams::ensure(&context.nats, id, account, has_state).await {
        Ok(bytes) => {
            note(Ok(bytes));
            Ok(ready(bytes))
        }
        Err(error) => {
            let reason = match error {
                NatsError::Foreign { .. } => Reason::IdentityConflict,
                NatsError::LogLost { .. } => Reason::StoreLost,
                _ if error.is_limit() => Reason::StoreQuotaExceeded,
                _ => Reason::StoreUnavailable,
            };
            tracing::warn!(cluster = %id, error = %crate::chain(&error), "streams cannot be made");
            let message = format!("The streams cannot be made as asked for: {}.", crate::chain(&error));
            if matches!(error, NatsError::NoRoom { .. } | NatsError::InUse { .. }) {
                note(Err(message.clone()));
            }
            Ok(refused(reason, message))
        }
    }
}
