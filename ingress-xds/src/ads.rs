//! One delta-xDS stream as a state machine. Pure; [`crate::server`] feeds it and sends what it gives.
//!
//! ```text
//!  Request ─▶ on_request ──▶ interests, due names ─▶ next_response ─▶ Response
//!  Snapshot ▶ on_snapshot ─┘          (sent versions, flights by nonce)
//! ```
//!
//! Guarantees:
//! - A response carries the resources of one tenant cluster, so what Envoy refuses is one cluster's and is named.
//! - A resource is sent when the client does not hold its version, when it subscribes to it by name, and when Envoy needs
//!   it again (below); else never. Versions are content hashes, so a client that comes from another replica, or from before
//!   a restart, is sent only what changed in between.
//! - A refused resource is not sent again until something of its cluster changes (of the host owner's: anything of those) or
//!   the client reconnects: the client has its last good one.
//! - The first wildcard subscription is always answered, if need be by an empty response: Envoy waits for it at start.
//!
//! Assumptions: the version of a name's endpoints changes with its Cluster's, see below.
//!
//! Caveats: after a Cluster is replaced, Envoy waits for its endpoints although it has them (its new cluster watches a name
//! that was subscribed before, so it does not ask). So endpoints follow each Cluster that is sent, and never go before it.
//! Should the connection be lost in between, the version that the client holds shows that they are still owed; it does not
//! if the Cluster had changed there and back, or had been refused before, and then Envoy goes on by itself after 15 s.
//! Names that do not exist are answered as removed, as the protocol wants, but for routes; nothing is kept for them but the
//! subscription.

mod interest;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::Route;
use crate::snapshot::{Resource, Snapshot};
use interest::{Interest, MAX_NAMES, Turn};

pub use crate::snapshot::Kind;

/// What a client says.
#[derive(Clone, Debug)]
pub struct Request {
    /// Of which type.
    pub kind: Kind,
    /// The response that this answers; empty if none.
    pub nonce: String,
    /// Why that response was refused; `None` if it was accepted.
    pub error: Option<String>,
    /// Names to subscribe to.
    pub subscribe: Vec<String>,
    /// Names to unsubscribe from.
    pub unsubscribe: Vec<String>,
    /// In the first request of a type: versions that the client holds.
    pub held: BTreeMap<String, String>,
}

/// What is said to a client.
#[derive(Clone, Debug)]
pub struct Response {
    /// Of which type.
    pub kind: Kind,
    /// Names this response in the client's answer.
    pub nonce: String,
    /// Resources to take.
    pub resources: Vec<(Arc<str>, Resource)>,
    /// Resources to drop.
    pub removed: Vec<String>,
}

/// A client refused a response.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Of which type.
    pub kind: Kind,
    /// The cluster whose resources were in it; `None` if they were the host owner's, or it only removed.
    pub route: Option<Arc<Route>>,
    /// What was in it, with its versions.
    pub resources: Vec<(Arc<str>, Arc<str>)>,
    /// The client's reason.
    pub reason: String,
}

/// A client does what no client of ours does; the stream is to be ended.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// It subscribes to more names than any Envoy would.
    #[error("a client may subscribe to {MAX_NAMES} names")]
    TooManyNames,
}

/// The state of one stream.
#[derive(Debug)]
pub struct Stream {
    snapshot: Arc<Snapshot>,
    clusters: Interest,
    endpoints: Interest,
    listeners: Interest,
    routes: Interest,
    secrets: Interest,
    /// Names whose Cluster was sent before the client opened the endpoints type on this stream.
    owed: BTreeSet<Arc<str>>,
    /// Endpoints that wait for their Cluster, and whether to answer even if the client is up to date.
    deferred: BTreeMap<Arc<str>, bool>,
    next_nonce: u64,
    last: Kind,
}

impl Stream {
    /// A stream that has just been opened.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            snapshot,
            clusters: Interest::new(Kind::Cluster),
            endpoints: Interest::new(Kind::Endpoints),
            listeners: Interest::new(Kind::Listener),
            routes: Interest::new(Kind::Routes),
            secrets: Interest::new(Kind::Secret),
            owed: BTreeSet::new(),
            deferred: BTreeMap::new(),
            next_nonce: 1,
            last: Kind::Endpoints,
        }
    }

    /// Takes what the client says; the answer is what it refused, if it did.
    pub fn on_request(&mut self, request: Request) -> Result<Option<Refusal>, ProtocolError> {
        let owed = match request.kind {
            Kind::Endpoints if !self.endpoints.opened => std::mem::take(&mut self.owed),
            _ => BTreeSet::new(),
        };
        let interest = match request.kind {
            Kind::Cluster => &mut self.clusters,
            Kind::Endpoints => &mut self.endpoints,
            Kind::Listener => &mut self.listeners,
            Kind::Routes => &mut self.routes,
            Kind::Secret => &mut self.secrets,
        };
        let first = !interest.opened;
        let refusal = interest.settle(&request, &self.snapshot);
        if first {
            interest.open(&request);
        }
        interest.unsubscribe(&request.unsubscribe);
        interest.subscribe(&request.subscribe, first, &self.snapshot)?;
        for name in owed {
            if interest.covers(&name) {
                interest.due.insert(name, true);
            }
        }
        Ok(refusal)
    }

    /// Serves `newer` from now on.
    pub fn on_snapshot(&mut self, newer: Arc<Snapshot>) {
        for name in self.snapshot.changed_names(&newer) {
            for interest in [&mut self.clusters, &mut self.endpoints] {
                if interest.opened && interest.covers(name) {
                    interest.due.entry(Arc::clone(name)).or_insert(false);
                }
                // What was refused along with it may be good without it.
                for entry in [self.snapshot.get(name), newer.get(name)].into_iter().flatten() {
                    interest.retry_refused(entry);
                }
            }
        }
        if self.snapshot.base() != newer.base() {
            for interest in [
                &mut self.clusters,
                &mut self.endpoints,
                &mut self.listeners,
                &mut self.routes,
            ] {
                interest.look_at_base([&self.snapshot, &newer]);
            }
        }
        let certificates = [self.snapshot.certificate(), newer.certificate()];
        for (name, _) in certificates.into_iter().flatten() {
            if self.secrets.covers(name) {
                self.secrets.due.entry(Arc::clone(name)).or_insert(false);
            }
        }
        self.snapshot = newer;
    }

    /// The next response to send, if one is due and the client is not too far behind. The types take turns, but for the
    /// certificate, for which a listener waits, and what needs Clusters, which comes after them.
    pub fn next_response(&mut self) -> Option<Response> {
        if let Some(response) = self.next_of(Kind::Secret) {
            return Some(response);
        }
        let order: &[Kind] = match self.last {
            // Endpoints that had to wait are let go by Clusters, so they are looked at again.
            Kind::Cluster => &[Kind::Endpoints, Kind::Cluster, Kind::Endpoints],
            _ => &[Kind::Cluster, Kind::Endpoints],
        };
        if let Some(response) = order.iter().find_map(|kind| self.next_of(*kind)) {
            self.last = response.kind;
            return Some(response);
        }
        if !self.clusters.due.is_empty() {
            return None;
        }
        [Kind::Listener, Kind::Routes]
            .into_iter()
            .find_map(|kind| self.next_of(kind))
    }

    /// Number of responses that the client has not answered.
    pub fn in_flight(&self) -> usize {
        let owners = self.listeners.flights.len() + self.routes.flights.len();
        self.clusters.flights.len() + self.endpoints.flights.len() + owners + self.secrets.flights.len()
    }

    fn next_of(&mut self, kind: Kind) -> Option<Response> {
        let nonce = self.next_nonce;
        let response = match kind {
            Kind::Cluster => {
                let mut turn = Turn::new(&self.snapshot, None);
                let response = self.clusters.next(nonce, &mut turn);
                for (name, sent) in turn.passed {
                    self.release(name, sent);
                }
                response
            }
            Kind::Endpoints => {
                let mut turn = Turn::new(&self.snapshot, Some(&self.clusters.due));
                let response = self.endpoints.next(nonce, &mut turn);
                for (name, forced) in turn.held_back {
                    *self.deferred.entry(name).or_insert(false) |= forced;
                }
                response
            }
            Kind::Listener => self.listeners.next(nonce, &mut Turn::new(&self.snapshot, None)),
            Kind::Routes => self.routes.next(nonce, &mut Turn::new(&self.snapshot, None)),
            Kind::Secret => self.secrets.next(nonce, &mut Turn::new(&self.snapshot, None)),
        }?;
        self.next_nonce += 1;
        Some(response)
    }

    /// Lets a name's endpoints go: its Cluster was sent, or need not be.
    fn release(&mut self, name: Arc<str>, sent: bool) {
        let deferred = self.deferred.remove(&name);
        if !self.endpoints.opened {
            if sent {
                self.owed.insert(name);
            }
        } else if (sent || deferred.is_some()) && self.endpoints.covers(&name) {
            let forced = sent || deferred == Some(true);
            *self.endpoints.due.entry(name).or_insert(false) |= forced;
        }
    }
}

#[cfg(test)]
mod tests;
