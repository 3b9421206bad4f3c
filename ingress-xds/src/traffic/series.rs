//! Traffic counters of one cluster, by kind, verdict and status code. Pure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::authz::verdict::{ALLOWED, ConnectionRefusal, RequestRefusal};

/// The gate's verdicts about connections of a known cluster.
pub(super) const CONNECTION_VERDICTS: [&str; 6] = [
    ALLOWED,
    ConnectionRefusal::SourceNotAllowed.as_str(),
    ConnectionRefusal::NoEndpoints.as_str(),
    ConnectionRefusal::SourceRate.as_str(),
    ConnectionRefusal::SourceConnections.as_str(),
    ConnectionRefusal::NameRate.as_str(),
];
/// The gate's verdicts about requests with a token of a known cluster.
pub(super) const REQUEST_VERDICTS: [&str; 10] = [
    ALLOWED,
    RequestRefusal::SourceNotAllowed.as_str(),
    RequestRefusal::Misdirected.as_str(),
    RequestRefusal::NoEndpoints.as_str(),
    RequestRefusal::Asleep.as_str(),
    RequestRefusal::Held.as_str(),
    RequestRefusal::Unneeded.as_str(),
    RequestRefusal::Ignored.as_str(),
    RequestRefusal::Stuck.as_str(),
    RequestRefusal::Rate.as_str(),
];
/// Classes of status codes; `none` for requests whose client received no answer.
pub(super) const CODES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The kind of event that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A connection by one of the cluster's names.
    Connection,
    /// A request by token.
    Request {
        /// The status code that the client received; 0 if it received none.
        code: u32,
    },
}

/// One connection or request that ended.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Connection or request.
    pub kind: RecordKind,
    /// The gate's verdict.
    pub verdict: &'a str,
    /// Bytes received from the client.
    pub received: u64,
    /// Bytes sent to the client.
    pub sent: u64,
    /// Duration from start to end.
    pub duration: Duration,
}

/// Counters of one cluster.
#[derive(Debug, Default)]
pub struct Series {
    pub(super) connections: [AtomicU64; CONNECTION_VERDICTS.len()],
    pub(super) requests: [[AtomicU64; CODES.len()]; REQUEST_VERDICTS.len()],
    pub(super) of_connections: Sums,
    pub(super) of_requests: Sums,
}

#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) microseconds: AtomicU64,
}

impl Series {
    /// Counts a record. Returns false if its verdict is unknown.
    #[must_use]
    pub fn count(&self, record: &Record<'_>) -> bool {
        let among = |verdicts: &[&str]| verdicts.iter().position(|verdict| *verdict == record.verdict);
        let (counter, sums) = match record.kind {
            RecordKind::Connection => {
                let verdict = among(&CONNECTION_VERDICTS);
                (verdict.map(|verdict| &self.connections[verdict]), &self.of_connections)
            }
            RecordKind::Request { code } => {
                let verdict = among(&REQUEST_VERDICTS);
                let counter = verdict.map(|verdict| &self.requests[verdict][class_of(code)]);
                (counter, &self.of_requests)
            }
        };
        let Some(counter) = counter else {
            return false;
        };
        let microseconds = u64::try_from(record.duration.as_micros()).unwrap_or_default();
        for (sum, more) in [
            (counter, 1),
            (&sums.received, record.received),
            (&sums.sent, record.sent),
            (&sums.microseconds, microseconds),
        ] {
            sum.fetch_add(more, Ordering::Relaxed);
        }
        true
    }
}

/// Index in [`CODES`].
pub(super) fn class_of(code: u32) -> usize {
    let class = usize::try_from(code / 100).unwrap_or_default();
    if class < CODES.len() { class } else { 0 }
}
