//! The log: an ordered stream of records. It accepts a new record only directly behind the last
//! record that its writer knows.

mod disconnects;
pub mod fencing;
pub(crate) mod jetstream;
#[cfg(test)]
pub(crate) mod memory;
pub(crate) mod stream;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Why the log did not answer.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The client is not connected.
    #[error("reach the log: not connected to NATS")]
    Disconnected,
    /// No response before the timeout.
    #[error("reach the log: no response before the timeout")]
    Timeout,
    /// The server rejected the request.
    #[error("use the log: NATS returned error {code}: {description}")]
    Refused {
        /// JetStream's error code.
        code: u64,
        /// JetStream's description of the error.
        description: String,
    },
    /// The record exceeds the servers' maximum payload.
    #[error("use the log: the NATS servers reject a message of {bytes} bytes; set their max_payload to at least 2 MiB")]
    TooLarge {
        /// Bytes of the record.
        bytes: usize,
    },
    /// The response has an unexpected form.
    #[error("use the log: the response to {0} cannot be decoded")]
    Answer(&'static str),
    /// The server sends a message in a form that no client can read.
    #[error(
        "read the stream {stream}: {times} connections in a row failed at sequence {sequence}; if this continues, that \
         message is corrupt, and `kine-nats repair` shows what can be read without it"
    )]
    Unreadable {
        /// Name of the stream.
        stream: String,
        /// Sequence of the message.
        sequence: u64,
        /// Number of connections on which the read failed.
        times: u32,
    },
    /// The requested records no longer exist.
    #[error("read the log: it has a gap at sequence {0}")]
    Gap(u64),
}

/// Tells transient errors from permanent ones.
pub(crate) trait Transient: std::error::Error {
    fn is_transient(&self) -> bool;
}

impl Transient for LogError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Disconnected | Self::Timeout => true,
            // No meta leader, no quorum, no responders.
            Self::Refused { code, .. } => matches!(code, 503 | 10008 | 10009 | 10118),
            Self::Answer(_) | Self::TooLarge { .. } | Self::Unreadable { .. } | Self::Gap(_) => false,
        }
    }
}

/// Returns the records before the first gap, out of records that were read from a sequence on.
fn until_hole(from: u64, mut records: Vec<(u64, Bytes)>) -> Result<Vec<(u64, Bytes)>, LogError> {
    let follow = (from..)
        .zip(&records)
        .take_while(|(wanted, (sequence, _))| wanted == sequence);
    let before = follow.count();
    if before == 0 && !records.is_empty() {
        return Err(LogError::Gap(from));
    }
    records.truncate(before);
    Ok(records)
}

/// First and last sequence, size and losses of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogInfo {
    /// Sequence of the oldest retained message.
    pub(crate) first: u64,
    /// Sequence of the newest message.
    pub(crate) last: u64,
    /// Number of missing messages between `first` and `last`.
    pub(crate) holes: u64,
    /// Bytes of the retained messages.
    pub(crate) bytes: u64,
    /// Size limit in bytes; `None` for no limit.
    pub(crate) limit: Option<u64>,
    /// Records that the server found corrupt and dropped.
    pub(crate) lost: ServerLoss,
}

/// The part of a stream that a server reports as dropped since its start. The server forgets this
/// when it restarts. The dropped bytes may belong to a record that it never acknowledged, and may
/// be all that it knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerLoss {
    /// Messages with known sequences.
    pub(crate) messages: u64,
    /// Bytes of its files.
    pub(crate) bytes: u64,
}

/// The outcome of publishing a record.
#[derive(Debug)]
pub(crate) struct Ack {
    /// The token that was passed to [`Log::publish`].
    pub(crate) token: u64,
    pub(crate) outcome: Result<u64, Rejection>,
}

/// Why a record was rejected.
#[derive(Debug, Clone)]
pub(crate) enum Rejection {
    /// The log has another last sequence than expected.
    Conflict,
    /// The stream is full.
    Full,
    /// Any other error: no leader, no quorum, no permission.
    Other { code: u64, description: String },
}

/// An append-only stream of records with one subject.
///
/// # Guarantees
///
/// A record published with `expected` n is stored at sequence n + 1 or not at all. An
/// ack with a sequence is sent only for a stored record.
///
/// # Assumptions
///
/// No process deletes a single record; old records are dropped only by
/// [`Log::purge`].
///
/// # Caveats
///
/// An ack may never arrive although the record is stored. [`Log::read`] may answer from a
/// replica that lags behind.
pub(crate) trait Log: Send + Sync + 'static {
    /// Sends a record. Its ack arrives on the channel that was created with the log.
    fn publish(&self, token: u64, record: Bytes, expected: u64) -> impl Future<Output = Result<(), LogError>> + Send;
    /// Reads records from a sequence on: as many as fit into one response, or as arrived before an
    /// error. Empty at the end.
    fn read(&self, from: u64) -> impl Future<Output = Result<Vec<(u64, Bytes)>, LogError>> + Send;
    /// Reads one record from the stream's leader.
    fn get(&self, sequence: u64) -> impl Future<Output = Result<Option<Bytes>, LogError>> + Send;
    /// Reads the state of the log from the stream's leader.
    fn info(&self) -> impl Future<Output = Result<LogInfo, LogError>> + Send;
    /// Drops all records below a sequence.
    fn purge(&self, below: u64) -> impl Future<Output = Result<(), LogError>> + Send;
    /// Whether there is a connection.
    fn is_connected(&self) -> bool;
    /// Drops the connection, so that the client reconnects.
    fn reconnect(&self) -> impl Future<Output = ()> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_up_to_a_gap() {
        let read = |from, sequences: &[u64]| {
            let records = sequences.iter().map(|sequence| (*sequence, Bytes::new())).collect();
            let read = until_hole(from, records).map_err(|error| error.to_string())?;
            Ok(read.into_iter().map(|(sequence, _)| sequence).collect::<Vec<_>>())
        };
        assert_eq!(read(40, &[]), Ok(vec![]));
        assert_eq!(read(40, &[40, 41, 42]), Ok(vec![40, 41, 42]));
        assert_eq!(read(40, &[40, 41, 61, 62]), Ok(vec![40, 41]));
        let gap = "read the log: it has a gap at sequence 42".to_owned();
        assert_eq!(read(42, &[61, 62]), Err(gap));
    }
}
