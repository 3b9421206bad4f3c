//! The processes of one store among themselves: a follower has the writer do what only the writer can, and hears at once
//! when the log is longer. The log alone says who writes and what is stored; what is said here only saves time, apart
//! from the answers of the writer, which count as they do for its own clients.
//!
//! ```text
//! follower ── Ask{epoch, command} ──► kine.<id>.rpc.<member> ──► writer: Store::submit_here ──► answer, in parts
//! writer ──── how far the log is ───► kine.<id>.rpc.all ───────► followers read on
//! everyone ── who is there ─────────► kine.<id>.rpc.all ───────► member list
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

/// How long an answer may still come when the log shows that the writer is another one by now.
const GRACE: Duration = Duration::from_millis(250);
/// The same for a writer that resigned: it sends its last answers before it ends, however busy its machine is.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long to wait for the answer to what can be asked again.
const REPEAT: Duration = Duration::from_millis(1500);

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The process was not reached, and will not be.
    NotDelivered,
    /// It may have been.
    Unknown,
}

/// A way to the other processes.
///
/// # Guarantees
/// An answer is the one to this request. [`Unanswered::NotDelivered`] is said only when nobody will ever do the request.
///
/// # Caveats
/// An answer may never come; the caller limits the time.
pub(crate) trait Peers: std::fmt::Debug + Send + Sync {
    /// This process.
    fn member(&self) -> u64;
    /// Asks a process.
    fn ask(&self, member: u64, request: Bytes) -> BoxFuture<'_, Result<Bytes, Unanswered>>;
    /// Tells all which process is to write when this one resigns, before what it sends to the log from here on is there.
    fn name_successor(&self, member: u64) -> BoxFuture<'_, ()>;
    /// The processes that were heard of lately, this one included.
    fn members(&self) -> Vec<Member>;
}

/// Has the writer in another process do a request.
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

/// Waits until the log shows that a writer is none any more, and a little longer.
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

/// Does what another process asks for.
pub(crate) async fn serve(store: &Store, request: &Bytes) -> Bytes {
    let told = match message::decode_ask(request) {
        Ok((epoch, command)) => match store.submit_here(epoch, command).await {
            Outcome::Done(result) => Told::Done(result),
            Outcome::Returned(_) => Told::NotBegun,
        },
        // Of a version that knows more: it finds out that this one does not.
        Err(error) => {
            tracing::warn!(error = %error, "Another process asks for something that is not known");
            Told::NotBegun
        }
    };
    message::encode_told(told)
}
