//! Decides whether a new connection is allowed, before anything upstream is contacted, and limits
//! each cluster's requests per second. Pure: time comes in as an argument.
//!
//! The default is to refuse. A source has one budget, for connections by a cluster's name and for
//! connections of pods together. The source's budget is charged first, so that one source cannot
//! spend a name's budget: names are public, and a client that knows one could otherwise lock out
//! the cluster's owner.
//!
//! Names that do not exist occupy no memory, and the state of sources has a fixed size
//! ([`Budgets`], [`OpenConnections`]). So a flood of random names or addresses grows nothing.

pub mod request;
pub mod status_response;
pub mod token;
pub mod verdict;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use yoke_api::ClusterId;
use yoke_runtime::budget::{Budgets, Rate, source_key};

use crate::limits::open_connections::OpenConnections;
use crate::snapshot::Snapshot;
use crate::snapshot::resource::resource_name;
use verdict::{ConnectionRefusal, RequestRefusal};

/// Average delay of a refusal: the `Retry-After` of refused clients. For a connection, Envoy waits
/// 3 s for an answer.
pub const REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// Limits that this process enforces.
#[derive(Clone, Copy, Debug)]
pub struct GateLimits {
    /// New connections from one source address (IPv6: from one /64).
    pub source: Rate,
    /// Open connections from one such source.
    pub source_connections: u32,
    /// New connections to one name.
    pub name: Rate,
    /// Requests to one cluster whose TLS ended at Envoy.
    pub requests: Rate,
    /// Average delay of the answer to clients that exceed a rate or have too many connections.
    pub refusal_delay: Duration,
    /// New connections from one such source to clusters that sleep: each costs this process a
    /// handshake.
    pub sleeping: Rate,
}

/// The decision about a connection.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The connection is allowed.
    Allow,
    /// The connection is to be closed.
    Refuse(ConnectionRefusal),
}

/// Decides on the connections and requests of an `ext_authz` call. Its state is the budgets and the
/// open connections.
#[derive(Debug)]
pub struct Gate {
    sources: Budgets<IpAddr>,
    open_connections: OpenConnections,
    names: Budgets<Arc<str>>,
    requests: Budgets<ClusterId>,
    sleeping: Budgets<IpAddr>,
}

impl Gate {
    /// A gate with full budgets and no open connections.
    pub fn new(limits: GateLimits, now: Instant) -> Self {
        Self {
            sources: Budgets::new(limits.source, now),
            open_connections: OpenConnections::new(limits.source_connections),
            names: Budgets::new(limits.name, now),
            requests: Budgets::new(limits.requests, now),
            sleeping: Budgets::new(limits.sleeping, now),
        }
    }

    /// Decides about a connection whose requests are decided one by one: only its source is
    /// checked.
    pub fn check_source(&mut self, now: Instant, source: Option<SocketAddr>) -> Verdict {
        if let Err(refusal) = self.charge_source(now, source) {
            return Verdict::Refuse(refusal);
        }
        self.admit(now, source)
    }

    /// Decides about one connection. All sources that Envoy does not know share one budget.
    pub fn check(
        &mut self,
        now: Instant,
        snapshot: Option<&Snapshot>,
        name: &str,
        source: Option<SocketAddr>,
    ) -> Verdict {
        let Some(snapshot) = snapshot else {
            return Verdict::Refuse(ConnectionRefusal::NotSynced);
        };
        if let Err(refusal) = self.charge_source(now, source) {
            return Verdict::Refuse(refusal);
        }
        if name.is_empty() {
            return Verdict::Refuse(ConnectionRefusal::NoName);
        }
        let Some(entry) = snapshot.get(&resource_name(name)) else {
            return Verdict::Refuse(ConnectionRefusal::Unknown);
        };
        if !entry.route.allows(source.map(|source| source.ip())) {
            return Verdict::Refuse(ConnectionRefusal::SourceNotAllowed);
        }
        if !entry.reachable {
            return Verdict::Refuse(ConnectionRefusal::NoEndpoints);
        }
        let key = source_key(source.map(|source| source.ip()));
        if entry.route.asleep.is_some() && !self.sleeping.take(key, now) {
            return Verdict::Refuse(ConnectionRefusal::SourceRate);
        }
        if !self.names.take(Arc::from(name), now) {
            return Verdict::Refuse(ConnectionRefusal::NameRate);
        }
        self.admit(now, source)
    }

    fn charge_source(&mut self, now: Instant, source: Option<SocketAddr>) -> Result<(), ConnectionRefusal> {
        if !self.sources.take(source_key(source.map(|source| source.ip())), now) {
            return Err(ConnectionRefusal::SourceRate);
        }
        if source.is_some_and(|source| !self.open_connections.has_room(source, now)) {
            return Err(ConnectionRefusal::SourceConnections);
        }
        Ok(())
    }

    fn admit(&mut self, now: Instant, source: Option<SocketAddr>) -> Verdict {
        if let Some(source) = source {
            self.open_connections.add(source, now);
        }
        Verdict::Allow
    }

    /// The known open connections. The reader of Envoy's access log removes those that ended.
    pub fn open_connections(&mut self) -> &mut OpenConnections {
        &mut self.open_connections
    }

    /// Charges one request to a cluster's budget. The request's token is verified already, so
    /// no other cluster can spend the budget.
    pub fn charge_request(&mut self, now: Instant, cluster: &ClusterId) -> Result<(), RequestRefusal> {
        let left = self.requests.take(cluster.clone(), now);
        left.then_some(()).ok_or(RequestRefusal::Rate)
    }
}

#[cfg(test)]
mod tests;
