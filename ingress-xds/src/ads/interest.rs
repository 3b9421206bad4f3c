//! The subscriptions of one client for one resource type, the versions that it has, and the next
//! response. Pure; a part of [`super::Stream`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::messages::{MAX_NAMES, ProtocolError, RefusedResponse, Request, Response};
use crate::model::route::Route;
use crate::snapshot::resource::{Resource, ResourceKind};
use crate::snapshot::{Entry, Snapshot, resource_names};

/// The resource name that subscribes to all resources.
const WILDCARD: &str = "*";
/// Placeholder for an unknown version; no content has it.
const UNKNOWN: &str = "";
/// Maximum number of unanswered responses for each type; bounds the queue of a slow client.
pub(super) const WINDOW: usize = 128;
/// Maximum number of removed names in one response. Clients cannot refuse names, so a response may
/// mix those of many tenants.
const REMOVED_BATCH: usize = 512;

/// The resource of one type and name.
#[derive(Debug)]
struct Found<'a> {
    resource: &'a Resource,
    /// The cluster that it belongs to; `None` for other resources.
    route: Option<&'a Arc<Route>>,
}

impl ResourceKind {
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

/// Subscriptions and versions of one client for one type.
#[derive(Debug)]
pub(super) struct Interest {
    kind: ResourceKind,
    pub(super) opened: bool,
    wildcard: bool,
    names: BTreeSet<Arc<str>>,
    /// The version of each name that the client has, or that is in flight to it.
    client_versions: BTreeMap<Arc<str>, Arc<str>>,
    /// The version of each name that the client refused last.
    refused: BTreeMap<Arc<str>, Arc<str>>,
    /// Names to evaluate, and whether to answer even if the client is up to date.
    pub(super) due: BTreeMap<Arc<str>, bool>,
    answer_due: bool,
    pub(super) flights: BTreeMap<u64, Flight>,
}

/// A response that the client has not answered.
#[derive(Debug)]
pub(super) struct Flight {
    route: Option<Arc<Route>>,
    versions: Vec<(Arc<str>, Arc<str>)>,
}

/// State while one response is built.
#[derive(Debug)]
pub(super) struct ResponseState<'a> {
    snapshot: &'a Snapshot,
    /// Names that the other type must send first.
    first: Option<&'a BTreeMap<Arc<str>, bool>>,
    /// Due names that must wait for the other type, and whether to answer even if the client is up
    /// to date.
    pub(super) postponed: Vec<(Arc<str>, bool)>,
    /// Names that were evaluated, and whether they are in the response.
    pub(super) passed: Vec<(Arc<str>, bool)>,
}

impl Interest {
    pub(super) fn new(kind: ResourceKind) -> Self {
        Self {
            kind,
            opened: false,
            wildcard: false,
            names: BTreeSet::new(),
            client_versions: BTreeMap::new(),
            refused: BTreeMap::new(),
            due: BTreeMap::new(),
            answer_due: false,
            flights: BTreeMap::new(),
        }
    }

    pub(super) fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Closes the flight that a request answers. A request with an unknown nonce answers nothing.
    pub(super) fn settle(&mut self, request: &Request, snapshot: &Snapshot) -> Option<RefusedResponse> {
        let flight = self.flights.remove(&request.nonce.parse().ok()?)?;
        let reason = request.error.clone()?;
        let kind = self.kind;
        let is_current = |(name, version): &(Arc<str>, Arc<str>)| {
            let found = kind.find(snapshot, name);
            found.is_some_and(|found| found.resource.version == *version)
        };
        // If one of the resources has changed since, the others may be valid without it.
        let retry = !flight.versions.iter().all(is_current);
        for sent in &flight.versions {
            let is_current = is_current(sent);
            let (name, version) = sent.clone();
            let is_newest = self.client_versions.get(&name) == Some(&version);
            if is_newest {
                // The client may have an earlier version, so it still needs to be notified of a
                // removal.
                self.client_versions.insert(Arc::clone(&name), Arc::from(UNKNOWN));
            }
            // Another version may be in flight, and this one may be the served version again.
            if retry && (is_newest || is_current) {
                self.due.insert(Arc::clone(&name), true);
            }
            self.refused.insert(name, version);
        }
        Some(RefusedResponse {
            kind: self.kind,
            route: flight.route,
            resources: flight.versions,
            reason,
        })
    }

    pub(super) fn retry_refused(&mut self, entry: &Entry) {
        if self.refused.is_empty() {
            return;
        }
        for name in resource_names(&entry.route) {
            if let Some((name, _)) = self.refused.get_key_value(name.as_str()) {
                self.due.insert(Arc::clone(name), true);
            }
        }
    }

    /// Evaluates the base resources of both snapshots again, and those that the client got before
    /// the base configuration was known.
    pub(super) fn reevaluate_base(&mut self, snapshots: [&Snapshot; 2]) {
        let kind = self.kind;
        let bases = snapshots.into_iter().filter_map(Snapshot::base);
        let names = bases
            .flat_map(|base| base.names(kind))
            .chain(self.client_versions.keys());
        let names: Vec<_> = names.filter(|name| kind.may_be_base(name)).cloned().collect();
        for name in names {
            if self.covers(&name) {
                // A resource that was refused together with others may be valid without them.
                let retry = self.refused.contains_key(&name);
                *self.due.entry(name).or_insert(false) |= retry;
            }
        }
    }

    pub(super) fn open(&mut self, request: &Request) {
        self.opened = true;
        // Only these types support the older form of the wildcard: a first request without names.
        if matches!(self.kind, ResourceKind::Cluster | ResourceKind::Listener) && request.subscribe.is_empty() {
            self.wildcard = true;
        }
        for (name, version) in &request.client_versions {
            self.client_versions
                .insert(Arc::from(name.as_str()), Arc::from(version.as_str()));
        }
        if self.wildcard {
            self.answer_due = true;
        }
    }

    pub(super) fn unsubscribe(&mut self, names: &[String]) {
        for name in names {
            if name == WILDCARD {
                self.wildcard = false;
                let subscribed = &self.names;
                self.client_versions.retain(|name, _| subscribed.contains(name));
                self.refused.retain(|name, _| subscribed.contains(name));
                self.due.retain(|name, _| subscribed.contains(name));
            } else if self.names.remove(name.as_str()) {
                if self.wildcard {
                    // The wildcard still covers the name, and the protocol requires an answer that
                    // says so.
                    self.due.insert(Arc::from(name.as_str()), true);
                } else {
                    self.client_versions.remove(name.as_str());
                    self.refused.remove(name.as_str());
                    self.due.remove(name.as_str());
                }
            }
        }
    }

    pub(super) fn subscribe(
        &mut self,
        names: &[String],
        first: bool,
        snapshot: &Snapshot,
    ) -> Result<(), ProtocolError> {
        let mut widened = first && self.wildcard;
        for name in names {
            if name == WILDCARD {
                widened |= !self.wildcard;
                self.wildcard = true;
                self.answer_due = true;
                continue;
            }
            let name: Arc<str> = Arc::from(name.as_str());
            // In its first request the client lists the versions that it has. A later subscription
            // means that it has none.
            let forced = !(first && self.client_versions.contains_key(&name));
            self.due.insert(Arc::clone(&name), forced);
            self.names.insert(name);
        }
        if self.names.len() > MAX_NAMES {
            return Err(ProtocolError::TooManyNames);
        }
        if widened {
            let served = self.kind.names(snapshot);
            for name in served.iter().chain(self.client_versions.keys()) {
                self.due.entry(Arc::clone(name)).or_insert(false);
            }
        }
        if first && !self.wildcard {
            // Versions without a subscription are not ours to answer.
            let names = &self.names;
            self.client_versions.retain(|name, _| names.contains(name));
        }
        Ok(())
    }

    /// The next response, if there is one to send.
    pub(super) fn next(&mut self, nonce: u64, turn: &mut ResponseState<'_>) -> Option<Response> {
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

    /// Adds either removed names or the resources of one cluster to the response. Returns that
    /// cluster.
    fn fill(&mut self, response: &mut Response, turn: &mut ResponseState<'_>) -> Option<Arc<Route>> {
        while let Some((name, forced)) = self.pop_due(turn) {
            let Some(found) = self.kind.find(turn.snapshot, &name) else {
                if turn.snapshot.base().is_none() && self.kind.may_be_base(&name) {
                    turn.passed.push((name, false));
                    continue;
                }
                self.refused.remove(&name);
                // Envoy ignores the removal of routes but takes it for an answer. A listener that
                // uses the routes would then wait forever, and a new Envoy for the listener.
                // Without an answer both wait for 15 s.
                let is_told = self.kind != ResourceKind::Routes;
                if (self.client_versions.remove(&name).is_some() || forced) && is_told {
                    response.removed.push(name.to_string());
                }
                turn.passed.push((name, false));
                if response.removed.len() == REMOVED_BATCH {
                    return None;
                }
                continue;
            };
            if !response.removed.is_empty() {
                // The collected removals are sent first.
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

    fn pop_due(&mut self, turn: &mut ResponseState<'_>) -> Option<(Arc<str>, bool)> {
        while let Some((name, forced)) = self.pop_removed(turn).or_else(|| self.due.pop_first()) {
            if !turn.must_wait(&name) {
                return Some((name, forced));
            }
            turn.postponed.push((name, forced));
        }
        None
    }

    /// Removed listeners come before all others: a new listener may use the same port.
    fn pop_removed(&mut self, turn: &ResponseState<'_>) -> Option<(Arc<str>, bool)> {
        if self.kind != ResourceKind::Listener {
            return None;
        }
        let is_gone = |name: &&Arc<str>| self.kind.find(turn.snapshot, name).is_none();
        let name = self.due.keys().find(is_gone).cloned()?;
        self.due.remove_entry(&name)
    }

    fn offer(
        &mut self,
        response: &mut Response,
        turn: &mut ResponseState<'_>,
        name: Arc<str>,
        resource: &Resource,
        forced: bool,
    ) {
        let known = [self.client_versions.get(&name), self.refused.get(&name)].contains(&Some(&resource.version));
        let sent = forced || !known;
        if sent {
            self.refused.remove(&name);
            self.client_versions
                .insert(Arc::clone(&name), Arc::clone(&resource.version));
            response.resources.push((Arc::clone(&name), resource.clone()));
        }
        turn.passed.push((name, sent));
    }

    /// Adds the other names of the same cluster to the response.
    fn offer_siblings(&mut self, response: &mut Response, turn: &mut ResponseState<'_>, route: &Route) {
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

impl<'a> ResponseState<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, first: Option<&'a BTreeMap<Arc<str>, bool>>) -> Self {
        Self {
            snapshot,
            first,
            postponed: Vec::new(),
            passed: Vec::new(),
        }
    }

    fn must_wait(&self, name: &str) -> bool {
        self.first.is_some_and(|first| first.contains_key(name))
    }
}
