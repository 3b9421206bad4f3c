//! Traffic counters of each cluster. Pure.
//!
//! ```text
//!  Envoy: a connection or request ended ─▶ server ─▶ Record ─▶ Series, in the snapshot's Entry ─▶ Shown ─▶ /metrics
//! ```
//!
//! A cluster's [`Series`] are part of its snapshot entry, so they appear and disappear with it, and
//! counting and collecting need no lock. [`Ledger`], owned by the builder of snapshots, preserves
//! them across changes of a cluster, and limits their number.

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

/// The gate's verdicts about connections of a known cluster.
const CONNECTION_VERDICTS: [&str; 6] = [
    ALLOWED,
    gate::Refusal::SourceNotAllowed.as_str(),
    gate::Refusal::NoEndpoints.as_str(),
    gate::Refusal::SourceRate.as_str(),
    gate::Refusal::SourceConnections.as_str(),
    gate::Refusal::NameRate.as_str(),
];
/// The gate's verdicts about requests with a token of a known cluster.
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
/// Classes of status codes; `none` for requests whose client received no answer.
const CODES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The kind of event that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    pub kind: Kind,
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
    /// Counts a record. Returns false if its verdict is unknown.
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

/// Index in [`CODES`].
fn class_of(code: u32) -> usize {
    let class = usize::try_from(code / 100).unwrap_or_default();
    if class < CODES.len() { class } else { 0 }
}

/// Assigns series to clusters, up to a limit.
#[derive(Debug)]
pub struct Ledger {
    limit: usize,
    /// Series of clusters; alive while a snapshot that is in use contains them.
    own: HashMap<ClusterId, Weak<Series>>,
    other: Arc<Series>,
}

impl Ledger {
    /// Creates a registry in which `limit` clusters have their own series; the others share one.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            own: HashMap::new(),
            other: Arc::default(),
        }
    }

    /// The series of a cluster. A cluster that shares series gets its own on a later call, when one
    /// is free.
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

    /// The shared series.
    pub fn other(&self) -> &Arc<Series> {
        &self.other
    }
}

#[cfg(test)]
mod tests;
