//! Forwards a request to the writer in another process.

use crate::command::Command;
use crate::error::RpcError;
use crate::role::{Leader, Outcome, Role};
use crate::store::Store;
use crate::store::peers::{PeerAnswer, PeerError, Peers};
use std::time::Duration;
use tokio::time::sleep;

/// How long an answer may still arrive after the log shows another writer.
const GRACE: Duration = Duration::from_millis(250);
/// How long an answer may still arrive after the writer resigned: it sends its last answers before
/// it exits, however busy its node is.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long to wait for the answer to a repeatable request.
const REPEAT: Duration = Duration::from_millis(1500);

/// Forwards a request to the writer in another process.
pub(super) async fn forward(peers: &dyn Peers, store: &Store, leader: Leader, command: Command) -> Outcome {
    let answered = tokio::select! {
        biased;
        answered = peers.request(leader.member(), leader.epoch, &command) => answered,
        () = replaced(store, leader) => Err(PeerError::Unknown),
        () = sleep(REPEAT), if command.is_repeatable() => Err(PeerError::Unknown),
    };
    match answered {
        Ok(PeerAnswer::Done(result)) => Outcome::Done(result),
        Ok(PeerAnswer::NotStarted) | Err(PeerError::NotDelivered) => Outcome::Returned(command),
        _ if command.is_repeatable() => Outcome::Returned(command),
        Err(PeerError::Unknown) => Outcome::Done(Err(RpcError::LeaderFailed)),
    }
}

/// Waits until the log shows that a writer was replaced, and a little longer.
async fn replaced(store: &Store, leader: Leader) {
    let other = |role: &Role| !matches!(role, Role::Follower(Some(known)) if *known == leader);
    if store.roles().wait_for(other).await.is_ok() {
        sleep(if store.has_resigned(leader.epoch) {
            FAREWELL
        } else {
            GRACE
        })
        .await;
    }
}
