//! Communication between the processes of one store. A follower forwards what only the writer can
//! do, and learns at once that the log has grown. Only the log decides who writes and what is
//! stored; these messages just save time. The exception is an answer of the writer, which counts as
//! it does for the writer's own clients.
//!
//! ```text
//! follower ── Ask{epoch, command} ──► kine.<id>.rpc.<member> ──► writer: Store::submit_here ──► answer, in parts
//! writer ──── end of the log ───────► kine.<id>.rpc.all ───────► followers read on
//! everyone ── own existence ────────► kine.<id>.rpc.all ───────► member list
//! ```

pub(crate) mod message;
pub(crate) mod nats;
mod parts;
mod roster;

use crate::refusal::Refusal;
use crate::role::{Leader, Outcome, Role};
use crate::store::Store;
use crate::txn::Command;
use bytes::Bytes;
use futures::future::BoxFuture;
use message::Told;
pub(crate) use roster::Member;
use std::time::Duration;
use tokio::time::sleep;

/// How long an answer may still arrive after the log shows another writer.
const GRACE: Duration = Duration::from_millis(250);
/// How long an answer may still arrive after the writer resigned: it sends its last answers before
/// it exits, however busy its node is.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long to wait for the answer to a repeatable request.
const REPEAT: Duration = Duration::from_millis(1500);

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The process was not reached, and will not be.
    NotDelivered,
    /// The process may have been reached.
    Unknown,
}

/// Connection to the other processes of the store.
///
/// # Guarantees An answer belongs to its request. [`Unanswered::NotDelivered`] is returned only if
/// no process will ever execute the request.
///
/// # Caveats An answer may never arrive; the caller sets a timeout.
pub(crate) trait Peers: std::fmt::Debug + Send + Sync {
    /// The member id of this process.
    fn member(&self) -> u64;
    /// Sends a request to a process and waits for its answer.
    fn ask(&self, member: u64, request: Bytes) -> BoxFuture<'_, Result<Bytes, Unanswered>>;
    /// Announces to all processes which of them is to become the writer after this one resigns. The
    /// announcement arrives before any record that this process sends to the log afterwards.
    fn name_successor(&self, member: u64) -> BoxFuture<'_, ()>;
    /// The processes that announced themselves lately, including this one.
    fn members(&self) -> Vec<Member>;
}

/// Forwards a request to the writer in another process.
pub(crate) async fn forward(peers: &dyn Peers, store: &Store, leader: Leader, command: Command) -> Outcome {
    let request = message::encode_ask(leader.epoch, &command);
    let asked = tokio::select! {
        biased;
        asked = peers.ask(leader.member(), request) => asked,
        () = replaced(store, leader) => Err(Unanswered::Unknown),
        () = sleep(REPEAT), if command.is_repeatable() => Err(Unanswered::Unknown),
    };
    match asked.map(|answer| message::decode_told(&answer)) {
        Ok(Ok(Told::Done(result))) => Outcome::Done(result),
        Ok(Ok(Told::NotBegun)) | Err(Unanswered::NotDelivered) => Outcome::Returned(command),
        _ if command.is_repeatable() => Outcome::Returned(command),
        Ok(Err(_)) | Err(Unanswered::Unknown) => Outcome::Done(Err(Refusal::LeaderFailed)),
    }
}

/// Waits until the log shows that a writer was replaced, and a little longer.
async fn replaced(store: &Store, leader: Leader) {
    let other = |role: &Role| !matches!(role, Role::Follower(Some(known)) if *known == leader);
    if store.roles().wait_for(other).await.is_ok() {
        sleep(if store.saw_resign(leader.epoch) {
            FAREWELL
        } else {
            GRACE
        })
        .await;
    }
}

/// Executes the request of another process.
pub(crate) async fn serve(store: &Store, request: &Bytes) -> Bytes {
    let told = match message::decode_ask(request) {
        Ok((epoch, command)) => match store.submit_here(epoch, command).await {
            Outcome::Done(result) => Told::Done(result),
            Outcome::Returned(_) => Told::NotBegun,
        },
        // A later version may send requests that this one cannot decode; the sender gets an answer
        // that says so.
        Err(error) => {
            tracing::warn!(error = %error, "Another process asks for something that is not known");
            Told::NotBegun
        }
    };
    message::encode_told(told)
}
