//! The log: an ordered stream of records that takes a new one only on top of the last one its writer knows.

mod breaks;
pub(crate) mod jetstream;
#[cfg(test)]
pub(crate) mod memory;
pub(crate) mod stream;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Why the log did not answer.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// There is no connection.
    #[error("reach the log: not connected")]
    Disconnected,
    /// No answer in time.
    #[error("reach the log: no answer in time")]
    Timeout,
    /// The server refuses.
    #[error("use the log: the server answered {code}: {description}")]
    Refused {
        /// JetStream's error code.
        code: u64,
        /// Its text.
        description: String,
    },
    /// No server takes a message of this size.
    #[error("use the log: the servers take no message of {bytes} bytes; set their max_payload to at least 2 MiB")]
    TooLarge {
        /// Bytes of the record.
        bytes: usize,
    },
    /// The answer is not what it should be.
    #[error("use the log: the answer to {0} is not understood")]
    Answer(&'static str),
    /// What the server sends of a message is nothing that a client reads.
    #[error(
        "read the stream {stream}: on {times} connections in a row nothing readable came from sequence {sequence} on; if it \
         stays so, the message there is damaged, and `kine-nats repair` says what can be read without it"
    )]
    Unreadable {
        /// The stream.
        stream: String,
        /// Where.
        sequence: u64,
        /// How often that was tried.
        times: u32,
    },
    /// The records asked for are not there any more.
    #[error("read the log: it has a gap at sequence {0}")]
    Gap(u64),
}

/// Whether an error may go away by itself.
pub(crate) trait Passing: std::error::Error {
    fn is_passing(&self) -> bool;
}

impl Passing for LogError {
    fn is_passing(&self) -> bool {
        match self {
            Self::Disconnected | Self::Timeout => true,
            // No meta leader, no quorum, no responders.
            Self::Refused { code, .. } => matches!(code, 503 | 10008 | 10009 | 10118),
            Self::Answer(_) | Self::TooLarge { .. } | Self::Unreadable { .. } | Self::Gap(_) => false,
        }
    }
}

/// What lies before the first hole of records that were read from a sequence on.
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

/// Where a log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogInfo {
    /// Sequence of the oldest message that is kept.
    pub(crate) first: u64,
    /// Sequence of the newest message.
    pub(crate) last: u64,
    /// Messages between these that are not there any more.
    pub(crate) holes: u64,
    /// Bytes that are kept.
    pub(crate) bytes: u64,
    /// Most bytes that may be kept; `None` for no limit.
    pub(crate) limit: Option<u64>,
    /// What the server found damaged and dropped.
    pub(crate) lost: Lost,
}

/// What a server says that it dropped of a stream since it was started. It forgets that when it is started again; the
/// bytes may be of a record that it was never to acknowledge, and be all that it knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lost {
    /// Messages whose sequences it knew.
    pub(crate) messages: u64,
    /// Bytes of its files.
    pub(crate) bytes: u64,
}

/// What became of a record.
#[derive(Debug)]
pub(crate) struct Ack {
    /// As given to [`Log::publish`].
    pub(crate) token: u64,
    pub(crate) outcome: Result<u64, Rejection>,
}

/// Why a record was not taken.
#[derive(Debug, Clone)]
pub(crate) enum Rejection {
    /// The last sequence is another one.
    Conflict,
    /// The stream is full.
    Full,
    /// Anything else: no leader, no quorum, no permission.
    Other { code: u64, description: String },
}

/// An append-only stream of records with one subject.
///
/// # Guarantees
/// A record published with `expected` n is stored at sequence n + 1 or not at all. An ack with a sequence is sent only
/// for what is stored.
///
/// # Assumptions
/// Nobody deletes a single record; old ones go only by [`Log::purge`].
///
/// # Caveats
/// An ack may never come, and a record may be stored all the same. [`Log::read`] may answer from a replica that is behind.
pub(crate) trait Log: Send + Sync + 'static {
    /// Sends a record. The outcome comes through the channel that was made with the log.
    fn publish(&self, token: u64, record: Bytes, expected: u64) -> impl Future<Output = Result<(), LogError>> + Send;
    /// Reads records from a sequence on, as many as fit one answer or came of it; empty at the end.
    fn read(&self, from: u64) -> impl Future<Output = Result<Vec<(u64, Bytes)>, LogError>> + Send;
    /// Reads one record from the stream's leader.
    fn get(&self, sequence: u64) -> impl Future<Output = Result<Option<Bytes>, LogError>> + Send;
    /// Where the log begins and ends, from the stream's leader.
    fn info(&self) -> impl Future<Output = Result<LogInfo, LogError>> + Send;
    /// Drops what lies below a sequence.
    fn purge(&self, below: u64) -> impl Future<Output = Result<(), LogError>> + Send;
    /// Whether sending makes sense.
    fn is_connected(&self) -> bool;
    /// Gives up the connection, which is made again.
    fn reconnect(&self) -> impl Future<Output = ()> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_up_to_a_hole() {
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
