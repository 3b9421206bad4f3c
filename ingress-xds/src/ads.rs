//! One delta-xDS stream as a state machine. Pure; [`crate::server`] passes requests in and sends
//! the responses.
//!
//! ```text
//!  Request ─▶ on_request ──▶ interests, due names ─▶ next_response ─▶ Response
//!  Snapshot ▶ on_snapshot ─┘          (sent versions, flights by nonce)
//! ```
//!
//! Guarantees:
//! - A response carries the resources of one tenant cluster. So Envoy's refusal concerns one
//!   cluster, and the log names it.
//! - A resource is sent in three cases only: the client does not have its version, the client
//!   subscribes to it by name, or Envoy needs it again (see Caveats). Versions are content hashes.
//!   So a client that comes from another replica, or from before a restart, gets only the resources
//!   that changed in between.
//! - A refused resource is not sent again until something of its cluster changes (for base
//!   resources: any of them) or the client reconnects. The client continues with its last good
//!   version.
//! - The first wildcard subscription is always answered, if necessary by an empty response: Envoy
//!   waits for it at its start.
//!
//! Assumptions: the version of a name's endpoints changes with its Cluster's, see below.
//!
//! Caveats:
//! - After a Cluster is replaced, Envoy waits for its endpoints although it has them: its new
//!   cluster watches a name that was subscribed before, so it sends no request. So endpoints follow
//!   each Cluster that is sent, and never precede it.
//! - If the connection is lost in between, the endpoint version of the client shows that endpoints
//!   are still owed. It does not if the Cluster had changed there and back, or had been refused
//!   before. Envoy then continues by itself after 15 s.
//! - Names that do not exist are answered as removed, as the protocol requires, except for routes.
//!   Only the subscription is stored for them.

mod interest;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::snapshot::Snapshot;
use crate::snapshot::resource::ResourceKind;
use interest::{Interest, ResponseState};

pub use messages::{ProtocolError, RefusedResponse, Request, Response};

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
    /// Endpoints that wait for their Cluster, and whether to answer even if the client is up to
    /// date.
    deferred: BTreeMap<Arc<str>, bool>,
    next_nonce: u64,
    last: ResourceKind,
}

impl Stream {
    /// Starts the state of a new stream.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            snapshot,
            clusters: Interest::new(ResourceKind::Cluster),
            endpoints: Interest::new(ResourceKind::Endpoints),
            listeners: Interest::new(ResourceKind::Listener),
            routes: Interest::new(ResourceKind::Routes),
            secrets: Interest::new(ResourceKind::Secret),
            owed: BTreeSet::new(),
            deferred: BTreeMap::new(),
            next_nonce: 1,
            last: ResourceKind::Endpoints,
        }
    }

    /// Applies a request. Returns the refused response, if the request refuses one.
    pub fn on_request(&mut self, request: Request) -> Result<Option<RefusedResponse>, ProtocolError> {
        let owed = match request.kind {
            ResourceKind::Endpoints if !self.endpoints.opened => std::mem::take(&mut self.owed),
            _ => BTreeSet::new(),
        };
        let interest = match request.kind {
            ResourceKind::Cluster => &mut self.clusters,
            ResourceKind::Endpoints => &mut self.endpoints,
            ResourceKind::Listener => &mut self.listeners,
            ResourceKind::Routes => &mut self.routes,
            ResourceKind::Secret => &mut self.secrets,
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

    /// Replaces the snapshot that is served.
    pub fn on_snapshot(&mut self, newer: Arc<Snapshot>) {
        for name in self.snapshot.changed_names(&newer) {
            for interest in [&mut self.clusters, &mut self.endpoints] {
                if interest.opened && interest.covers(name) {
                    interest.due.entry(Arc::clone(name)).or_insert(false);
                }
                // A resource that was refused together with this entry may be valid without it.
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
                interest.reevaluate_base([&self.snapshot, &newer]);
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

    /// The next response to send, if one is due and the client is not too far behind. Types take
    /// turns, with two exceptions: the certificate comes first, because a listener waits for it,
    /// and types that need Clusters come after them.
    pub fn next_response(&mut self) -> Option<Response> {
        if let Some(response) = self.next_of(ResourceKind::Secret) {
            return Some(response);
        }
        let order: &[ResourceKind] = match self.last {
            // Sending a Cluster releases the endpoints that waited for it, so endpoints are checked
            // again.
            ResourceKind::Cluster => &[ResourceKind::Endpoints, ResourceKind::Cluster, ResourceKind::Endpoints],
            _ => &[ResourceKind::Cluster, ResourceKind::Endpoints],
        };
        if let Some(response) = order.iter().find_map(|kind| self.next_of(*kind)) {
            self.last = response.kind;
            return Some(response);
        }
        if !self.clusters.due.is_empty() {
            return None;
        }
        [ResourceKind::Listener, ResourceKind::Routes]
            .into_iter()
            .find_map(|kind| self.next_of(kind))
    }

    /// Number of responses that the client has not answered yet.
    pub fn in_flight(&self) -> usize {
        let owners = self.listeners.flights.len() + self.routes.flights.len();
        self.clusters.flights.len() + self.endpoints.flights.len() + owners + self.secrets.flights.len()
    }

    fn next_of(&mut self, kind: ResourceKind) -> Option<Response> {
        let nonce = self.next_nonce;
        let response = match kind {
            ResourceKind::Cluster => {
                let mut turn = ResponseState::new(&self.snapshot, None);
                let response = self.clusters.next(nonce, &mut turn);
                for (name, sent) in turn.passed {
                    self.release(name, sent);
                }
                response
            }
            ResourceKind::Endpoints => {
                let mut turn = ResponseState::new(&self.snapshot, Some(&self.clusters.due));
                let response = self.endpoints.next(nonce, &mut turn);
                for (name, forced) in turn.postponed {
                    *self.deferred.entry(name).or_insert(false) |= forced;
                }
                response
            }
            ResourceKind::Listener => self
                .listeners
                .next(nonce, &mut ResponseState::new(&self.snapshot, None)),
            ResourceKind::Routes => self.routes.next(nonce, &mut ResponseState::new(&self.snapshot, None)),
            ResourceKind::Secret => self.secrets.next(nonce, &mut ResponseState::new(&self.snapshot, None)),
        }?;
        self.next_nonce += 1;
        Some(response)
    }

    /// Releases a name's endpoints: its Cluster was sent, or need not be.
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
