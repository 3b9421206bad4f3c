//! Records in flight, with the requests that they answer.

use crate::command::Answer;
use crate::error::RpcError;
use crate::role::Outcome;
use bytes::Bytes;
use std::time::Duration;
use tokio::sync::oneshot;

/// A record without an ack for this long is in doubt.
pub(super) const ACK_LIMIT: Duration = Duration::from_millis(1500);

/// Where to send an answer, and the answer.
pub(super) type Reply = (oneshot::Sender<Outcome>, Result<Answer, RpcError>);

/// A record that is not known to be stored.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) token: u64,
    pub(super) record: Bytes,
    pub(super) hash: u64,
    /// Revision and compact revision once it is stored.
    pub(super) revision: i64,
    pub(super) compacted: i64,
    /// Leases that it grants or ends.
    pub(super) leases: Vec<(i64, Option<i64>)>,
    /// Time of the first send; the lease counts from here.
    pub(super) sent: Duration,
    /// Number of the record for strict reads.
    pub(super) number: u64,
    pub(super) acked: bool,
    pub(super) replies: Vec<Reply>,
}

/// Sends an answer to its client.
pub(super) fn answer((reply, result): Reply) {
    // The client may have gone; the write stays.
    let _ = reply.send(Outcome::Done(result));
}
