//! What the clients of each cluster did. Pure.
//!
//! ```text
//!  Envoy: a connection or request ended ─▶ server ─▶ Record ─▶ Series, in the snapshot's Entry ─▶ Shown ─▶ /metrics
//! ```
//!
//! A cluster's [`Series`] are in the snapshot, so they come and go with it, and neither who counts nor who shows them waits
//! for anybody. [`Ledger`], of the one who makes snapshots, keeps them over changes of a cluster, and says how many there are.

mod shown;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use yoke_api::ClusterId;

use crate::gate;
use crate::gate::ALLOWED;
use crate::gate::request;

pub use shown::Shown;

/// What the gate says of connections of which it knows the cluster.
const CONNECTION_VERDICTS: [&str; 6] = [
    ALLOWED,
    gate::Refusal::SourceNotAllowed.as_str(),
    gate::Refusal::NoEndpoints.as_str(),
    gate::Refusal::SourceRate.as_str(),
    gate::Refusal::SourceConnections.as_str(),
    gate::Refusal::NameRate.as_str(),
];
/// What it says of requests with a token of the cluster's.
const REQUEST_VERDICTS: [&str; 10] = [
    ALLOWED,
    request::Refusal::SourceNotAllowed.as_str(),
    request::Refusal::Misdirected.as_str(),
    request::Refusal::NoEndpoints.as_str(),
    request::Refusal::Asleep.as_str(),
    request::Refusal::Held.as_str(),
    request::Refusal::Unneeded.as_str(),
    request::Refusal::Ignored.as_str(),
    request::Refusal::Stuck.as_str(),
    request::Refusal::Rate.as_str(),
];
/// Classes of status codes; first that of requests to which nobody heard an answer.
const CODES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection by one of the cluster's names.
    Connection,
    /// A request by token.
    Request {
        /// The status code that the client saw; 0 if it saw none.
        code: u32,
    },
}

/// Something that ended.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What it was.
    pub kind: Kind,
    /// What the gate had said.
    pub verdict: &'a str,
    /// Bytes that came from the client.
    pub received: u64,
    /// Bytes that went to it.
    pub sent: u64,
    /// How long it was open.
    pub duration: Duration,
}

/// What was counted of one cluster.
#[derive(Debug, Default)]
pub struct Series {
    connections: [AtomicU64; CONNECTION_VERDICTS.len()],
    requests: [[AtomicU64; CODES.len()]; REQUEST_VERDICTS.len()],
    of_connections: Sums,
    of_requests: Sums,
}

#[derive(Debug, Default)]
struct Sums {
    received: AtomicU64,
    sent: AtomicU64,
    microseconds: AtomicU64,
}

impl Series {
    /// Counts it, if the gate says such a thing.
    #[must_use]
    pub fn count(&self, record: &Record<'_>) -> bool {
        let among = |verdicts: &[&str]| verdicts.iter().position(|verdict| *verdict == record.verdict);
        let (counter, sums) = match record.kind {
            Kind::Connection => {
                let verdict = among(&CONNECTION_VERDICTS);
                (verdict.map(|verdict| &self.connections[verdict]), &self.of_connections)
            }
            Kind::Request { code } => {
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

/// Place in [`CODES`].
fn class_of(code: u32) -> usize {
    let class = usize::try_from(code / 100).unwrap_or_default();
    if class < CODES.len() { class } else { 0 }
}

/// Which series each cluster has.
#[derive(Debug)]
pub struct Ledger {
    limit: usize,
    /// Of clusters that are in a snapshot which somebody reads.
    own: HashMap<ClusterId, Weak<Series>>,
    other: Arc<Series>,
}

impl Ledger {
    /// Of so many clusters each has series of its own; the others share some.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            own: HashMap::new(),
            other: Arc::default(),
        }
    }

    /// The series of a cluster. One that shares them has its own when it is asked for again and there is room.
    pub fn series_of(&mut self, id: &ClusterId) -> Arc<Series> {
        if let Some(series) = self.own.get(id).and_then(Weak::upgrade) {
            return series;
        }
        if self.own.len() >= self.limit {
            self.own.retain(|_, series| series.strong_count() > 0);
        }
        if self.own.len() >= self.limit {
            return Arc::clone(&self.other);
        }
        let series = Arc::default();
        self.own.insert(id.clone(), Arc::downgrade(&series));
        series
    }

    /// What the clusters without series of their own share.
    pub fn other(&self) -> &Arc<Series> {
        &self.other
    }
}

#[cfg(test)]
mod tests;
