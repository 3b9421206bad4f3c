//! The other processes of a store, as the store needs them. `peer` implements this over NATS.

use crate::command::{Answer, Command};
use crate::error::RpcError;
use futures::future::BoxFuture;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerError {
    /// The process was not reached, and will not be.
    NotDelivered,
    /// The process may have been reached.
    Unknown,
}

/// The outcome of a request at the writer.
#[derive(Debug)]
pub(crate) enum PeerAnswer {
    Done(Result<Answer, RpcError>),
    /// The request was not started: the process is not the writer of that epoch, or is stopping.
    NotStarted,
}

/// A process of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) client_urls: Vec<String>,
    /// Whether this process has seen that the log is nearly full.
    pub(crate) full: bool,
}

/// Connection to the other processes of the store.
///
/// # Guarantees
///
/// An answer belongs to its request. [`PeerError::NotDelivered`] is returned only if
/// no process will ever execute the request.
///
/// # Caveats
///
/// An answer may never arrive; the caller sets a timeout.
pub(crate) trait Peers: std::fmt::Debug + Send + Sync {
    /// The member id of this process.
    fn member(&self) -> u64;
    /// Sends a request to the writer of an epoch in a process, and waits for its answer.
    fn request<'a>(
        &'a self,
        member: u64,
        epoch: u64,
        command: &'a Command,
    ) -> BoxFuture<'a, Result<PeerAnswer, PeerError>>;
    /// Announces to all processes which of them is to become the writer after this one resigns. The
    /// announcement arrives before any record that this process sends to the log afterwards.
    fn name_successor(&self, member: u64) -> BoxFuture<'_, ()>;
    /// The processes that announced themselves lately, including this one.
    fn members(&self) -> Vec<Member>;
}
