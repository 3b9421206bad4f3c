//! Communication between the processes of one store. A follower forwards what only the writer can
//! do, and learns at once that the log has grown. Only the log decides who writes and what is
//! stored; these messages just save time. The exception is an answer of the writer, which counts as
//! it does for the writer's own clients.
//!
//! ```text
//! follower ── request{epoch, command} ──► kine.<id>.rpc.<member> ──► writer: Store::submit_here ──► answer, in parts
//! writer ──── end of the log ───────► kine.<id>.rpc.all ───────► followers read on
//! everyone ── own existence ────────► kine.<id>.rpc.all ───────► member list
//! ```

pub(crate) mod message;
pub(crate) mod nats;
mod parts;
mod roster;

use crate::role::Outcome;
use crate::store::Store;
use crate::store::peers::PeerAnswer;
use bytes::Bytes;

/// Executes the request of another process.
pub(crate) async fn serve(store: &Store, request: &Bytes) -> Bytes {
    let outcome = match message::decode_request(request) {
        Ok((epoch, command)) => match store.submit_here(epoch, command).await {
            Outcome::Done(result) => PeerAnswer::Done(result),
            Outcome::Returned(_) => PeerAnswer::NotStarted,
        },
        // A later version may send requests that this one cannot decode. They were not started, so
        // the sender may try them elsewhere.
        Err(error) => {
            tracing::warn!(error = %error, "Rejected a request of another process that this version cannot decode");
            PeerAnswer::NotStarted
        }
    };
    message::encode_answer(outcome)
}
