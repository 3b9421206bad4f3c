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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::Route;
use crate::snapshot::{Entry, Resource, Snapshot, resource_names};

pub use crate::snapshot::Kind;

/// A resource name by which a client subscribes to all there are.
const WILDCARD: &str = "*";
/// Stands for a version that is not known; no content has it.
const UNKNOWN: &str = "";
/// Responses that may wait for their answer, for each type; bounds what is queued for a slow client.
const WINDOW: usize = 128;
/// Removed names in one response. Names cannot be refused, so those of many tenants may share one.
const REMOVED_BATCH: usize = 512;
/// Names to which one client may subscribe. Envoy subscribes to what it was sent; more is no Envoy of ours.
const MAX_NAMES: usize = 500_000;

/// What is served of one type under one name.
#[derive(Debug)]
struct Found<'a> {
    resource: &'a Resource,
    /// The cluster that it is of; `None` for what is of none.
    route: Option<&'a Arc<Route>>,
}

impl Kind {
    fn find<'a>(self, snapshot: &'a Snapshot, name: &str) -> Option<Found<'a>> {
        let of_cluster = |entry: &'a Arc<Entry>, resource| Found {
            resource,
            route: Some(&entry.route),
        };
        let own = match self {
            Self::Cluster => snapshot.get(name).map(|entry| of_cluster(entry, &entry.cluster)),
            Self::Endpoints => snapshot.get(name).map(|entry| of_cluster(entry, &entry.endpoints)),
            Self::Listener | Self::Routes => None,
            Self::Secret => {
                let certificate = snapshot.certificate().filter(|(own, _)| **own == *name);
                certificate.map(|(_, resource)| Found { resource, route: None })
            }
        };
        own.or_else(|| {
            let resource = snapshot.base()?.get(self, name)?;
            Some(Found { resource, route: None })
        })
    }

    fn names(self, snapshot: &Snapshot) -> Vec<Arc<str>> {
        let mut names: Vec<_> = match self {
            Self::Cluster | Self::Endpoints => snapshot.names().cloned().collect(),
            Self::Listener | Self::Routes => Vec::new(),
            Self::Secret => snapshot
                .certificate()
                .map(|(name, _)| Arc::clone(name))
                .into_iter()
                .collect(),
        };
        names.extend(snapshot.base().into_iter().flat_map(|base| base.names(self)).cloned());
        names
    }
}

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

#[derive(Debug)]
struct Interest {
    kind: Kind,
    opened: bool,
    wildcard: bool,
    names: BTreeSet<Arc<str>>,
    /// The version of each name that the client holds, or that is on its way to it.
    held: BTreeMap<Arc<str>, Arc<str>>,
    /// The version of each name that the client refused last.
    refused: BTreeMap<Arc<str>, Arc<str>>,
    /// Names to look at, and whether to answer even if the client is up to date.
    due: BTreeMap<Arc<str>, bool>,
    answer_due: bool,
    flights: BTreeMap<u64, Flight>,
}

#[derive(Debug)]
struct Flight {
    route: Option<Arc<Route>>,
    versions: Vec<(Arc<str>, Arc<str>)>,
}

/// The making of one response.
#[derive(Debug)]
struct Turn<'a> {
    snapshot: &'a Snapshot,
    /// Names that must be served by the other type first.
    first: Option<&'a BTreeMap<Arc<str>, bool>>,
    /// Names that were due and have to wait for it, and whether to answer even if the client is up to date.
    held_back: Vec<(Arc<str>, bool)>,
    /// Names that were looked at, and whether they are in the response.
    passed: Vec<(Arc<str>, bool)>,
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

impl Interest {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            opened: false,
            wildcard: false,
            names: BTreeSet::new(),
            held: BTreeMap::new(),
            refused: BTreeMap::new(),
            due: BTreeMap::new(),
            answer_due: false,
            flights: BTreeMap::new(),
        }
    }

    fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Closes the flight that a request answers. An answer to a nonce that is not known is none.
    fn settle(&mut self, request: &Request, snapshot: &Snapshot) -> Option<Refusal> {
        let flight = self.flights.remove(&request.nonce.parse().ok()?)?;
        let reason = request.error.clone()?;
        let kind = self.kind;
        let is_current = |(name, version): &(Arc<str>, Arc<str>)| {
            let found = kind.find(snapshot, name);
            found.is_some_and(|found| found.resource.version == *version)
        };
        // If one of them has changed since, the others may be good without it.
        let retry = !flight.versions.iter().all(is_current);
        for sent in &flight.versions {
            let is_current = is_current(sent);
            let (name, version) = sent.clone();
            let is_newest = self.held.get(&name) == Some(&version);
            if is_newest {
                // It may hold an earlier one, so it must still be told of a removal.
                self.held.insert(Arc::clone(&name), Arc::from(UNKNOWN));
            }
            // Another version may be on its way, and this one be what is served again.
            if retry && (is_newest || is_current) {
                self.due.insert(Arc::clone(&name), true);
            }
            self.refused.insert(name, version);
        }
        Some(Refusal {
            kind: self.kind,
            route: flight.route,
            resources: flight.versions,
            reason,
        })
    }

    fn retry_refused(&mut self, entry: &Entry) {
        if self.refused.is_empty() {
            return;
        }
        for name in resource_names(&entry.route) {
            if let Some((name, _)) = self.refused.get_key_value(name.as_str()) {
                self.due.insert(Arc::clone(name), true);
            }
        }
    }

    /// Looks again at what the host's owner added before, adds now, or had added when nobody knew it.
    fn look_at_base(&mut self, snapshots: [&Snapshot; 2]) {
        let kind = self.kind;
        let bases = snapshots.into_iter().filter_map(Snapshot::base);
        let names = bases.flat_map(|base| base.names(kind)).chain(self.held.keys());
        let names: Vec<_> = names.filter(|name| kind.is_owners(name)).cloned().collect();
        for name in names {
            if self.covers(&name) {
                // What was refused along with others may be good without them.
                let retry = self.refused.contains_key(&name);
                *self.due.entry(name).or_insert(false) |= retry;
            }
        }
    }

    fn open(&mut self, request: &Request) {
        self.opened = true;
        // Only these have the older form of the wildcard: a first request without a name.
        if matches!(self.kind, Kind::Cluster | Kind::Listener) && request.subscribe.is_empty() {
            self.wildcard = true;
        }
        for (name, version) in &request.held {
            self.held.insert(Arc::from(name.as_str()), Arc::from(version.as_str()));
        }
        if self.wildcard {
            self.answer_due = true;
        }
    }

    fn unsubscribe(&mut self, names: &[String]) {
        for name in names {
            if name == WILDCARD {
                self.wildcard = false;
                let kept = &self.names;
                self.held.retain(|name, _| kept.contains(name));
                self.refused.retain(|name, _| kept.contains(name));
                self.due.retain(|name, _| kept.contains(name));
            } else if self.names.remove(name.as_str()) {
                if self.wildcard {
                    // It is still subscribed to, by the wildcard, and the client asks to be told so.
                    self.due.insert(Arc::from(name.as_str()), true);
                } else {
                    self.held.remove(name.as_str());
                    self.refused.remove(name.as_str());
                    self.due.remove(name.as_str());
                }
            }
        }
    }

    fn subscribe(&mut self, names: &[String], first: bool, snapshot: &Snapshot) -> Result<(), ProtocolError> {
        let mut widened = first && self.wildcard;
        for name in names {
            if name == WILDCARD {
                widened |= !self.wildcard;
                self.wildcard = true;
                self.answer_due = true;
                continue;
            }
            let name: Arc<str> = Arc::from(name.as_str());
            // In its first request the client says what it holds; later, subscribing means that it holds nothing.
            let forced = !(first && self.held.contains_key(&name));
            self.due.insert(Arc::clone(&name), forced);
            self.names.insert(name);
        }
        if self.names.len() > MAX_NAMES {
            return Err(ProtocolError::TooManyNames);
        }
        if widened {
            let served = self.kind.names(snapshot);
            for name in served.iter().chain(self.held.keys()) {
                self.due.entry(Arc::clone(name)).or_insert(false);
            }
        }
        if first && !self.wildcard {
            // What the client holds and did not subscribe to is not ours to speak of.
            let names = &self.names;
            self.held.retain(|name, _| names.contains(name));
        }
        Ok(())
    }

    /// The next response, if there is one to send.
    fn next(&mut self, nonce: u64, turn: &mut Turn<'_>) -> Option<Response> {
        if self.flights.len() >= WINDOW {
            return None;
        }
        let mut response = Response {
            kind: self.kind,
            nonce: nonce.to_string(),
            resources: Vec::new(),
            removed: Vec::new(),
        };
        let route = self.fill(&mut response, turn);
        let empty = response.resources.is_empty() && response.removed.is_empty();
        if empty && !self.answer_due {
            return None;
        }
        self.answer_due = false;
        let sent = response.resources.iter();
        let versions = sent.map(|(name, resource)| (Arc::clone(name), Arc::clone(&resource.version)));
        let versions = versions.collect();
        self.flights.insert(nonce, Flight { route, versions });
        Some(response)
    }

    /// Puts either removed names into the response, or the resources of the cluster that is answered.
    fn fill(&mut self, response: &mut Response, turn: &mut Turn<'_>) -> Option<Arc<Route>> {
        while let Some((name, forced)) = self.pop_due(turn) {
            let Some(found) = self.kind.find(turn.snapshot, &name) else {
                if turn.snapshot.base().is_none() && self.kind.is_owners(&name) {
                    turn.passed.push((name, false));
                    continue;
                }
                self.refused.remove(&name);
                // Envoy ignores that routes are gone, but takes it for an answer: a listener that names them would wait for
                // ever, and a new Envoy for the listener. Without an answer both wait for 15 s.
                let is_told = self.kind != Kind::Routes;
                if (self.held.remove(&name).is_some() || forced) && is_told {
                    response.removed.push(name.to_string());
                }
                turn.passed.push((name, false));
                if response.removed.len() == REMOVED_BATCH {
                    return None;
                }
                continue;
            };
            if !response.removed.is_empty() {
                // What was gathered goes first.
                self.due.insert(name, forced);
                return None;
            }
            self.offer(response, turn, name, found.resource, forced);
            if let Some(route) = found.route {
                self.offer_siblings(response, turn, route);
            }
            if !response.resources.is_empty() {
                return found.route.cloned();
            }
        }
        None
    }

    fn pop_due(&mut self, turn: &mut Turn<'_>) -> Option<(Arc<str>, bool)> {
        while let Some((name, forced)) = self.pop_gone(turn).or_else(|| self.due.pop_first()) {
            if !turn.must_wait(&name) {
                return Some((name, forced));
            }
            turn.held_back.push((name, forced));
        }
        None
    }

    /// A listener that is gone goes before all others: one of them may have its port.
    fn pop_gone(&mut self, turn: &Turn<'_>) -> Option<(Arc<str>, bool)> {
        if self.kind != Kind::Listener {
            return None;
        }
        let is_gone = |name: &&Arc<str>| self.kind.find(turn.snapshot, name).is_none();
        let name = self.due.keys().find(is_gone).cloned()?;
        self.due.remove_entry(&name)
    }

    fn offer(
        &mut self,
        response: &mut Response,
        turn: &mut Turn<'_>,
        name: Arc<str>,
        resource: &Resource,
        forced: bool,
    ) {
        let known = [self.held.get(&name), self.refused.get(&name)].contains(&Some(&resource.version));
        let sent = forced || !known;
        if sent {
            self.refused.remove(&name);
            self.held.insert(Arc::clone(&name), Arc::clone(&resource.version));
            response.resources.push((Arc::clone(&name), resource.clone()));
        }
        turn.passed.push((name, sent));
    }

    /// The other names of the same cluster go into the same response.
    fn offer_siblings(&mut self, response: &mut Response, turn: &mut Turn<'_>, route: &Route) {
        for sibling in resource_names(route) {
            let other = self.kind.find(turn.snapshot, &sibling);
            let own = other.filter(|other| other.route.is_some_and(|other| other.namespace == route.namespace));
            let Some(own) = own else {
                continue;
            };
            if turn.must_wait(&sibling) {
                continue;
            }
            if let Some((sibling, forced)) = self.due.remove_entry(sibling.as_str()) {
                self.offer(response, turn, sibling, own.resource, forced);
            }
        }
    }
}

impl<'a> Turn<'a> {
    fn new(snapshot: &'a Snapshot, first: Option<&'a BTreeMap<Arc<str>, bool>>) -> Self {
        Self {
            snapshot,
            first,
            held_back: Vec::new(),
            passed: Vec::new(),
        }
    }

    fn must_wait(&self, name: &str) -> bool {
        self.first.is_some_and(|first| first.contains_key(name))
    }
}

#[cfg(test)]
mod tests;
