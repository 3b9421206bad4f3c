//! The stream that stores snapshots, as this module needs it.

use crate::log::LogError;
use bytes::Bytes;
use std::collections::BTreeMap;

/// A stream of messages under subjects that stores snapshots.
///
/// # Guarantees A message for which [`Messages::store`] returned is available until it is purged.
/// [`Messages::last`] and [`Messages::subjects`] include everything that was stored before the
/// call.
///
/// # Caveats [`Messages::batch`] may answer from a replica that lags behind.
pub(crate) trait Messages: Clone + Send + Sync + 'static {
    /// Stores a message and returns its sequence.
    fn store(&self, subject: String, payload: Bytes) -> impl Future<Output = Result<u64, LogError>> + Send;
    /// The newest message of a subject, with its sequence.
    fn last(&self, subject: &str) -> impl Future<Output = Result<Option<(u64, Bytes)>, LogError>> + Send;
    /// The first message of a subject from a sequence on, with its sequence.
    fn first(&self, from: u64, subject: &str) -> impl Future<Output = Result<Option<(u64, Bytes)>, LogError>> + Send;
    /// Messages of a subject from a sequence on, as many as fit into one response; empty at the
    /// end.
    fn batch(&self, from: u64, subject: &str) -> impl Future<Output = Result<Vec<(u64, Bytes)>, LogError>> + Send;
    /// The subjects that match a filter, with the number of messages of each.
    fn subjects(&self, filter: &str) -> impl Future<Output = Result<BTreeMap<String, u64>, LogError>> + Send;
    /// Drops all messages below a sequence.
    fn purge_below(&self, sequence: u64) -> impl Future<Output = Result<(), LogError>> + Send;
    /// Drops the messages of one subject.
    fn purge_subject(&self, subject: &str) -> impl Future<Output = Result<(), LogError>> + Send;
}
