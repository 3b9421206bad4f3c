//! Whether a new connection may go on, decided before anything upstream is touched, and how many requests a cluster may have
//! in a second. Pure: time comes in as an argument.
//!
//! Refuses by default. A source has one budget, whether its connections have a cluster's name or are pods'. It is asked first,
//! so that one source cannot spend a name's budget: a name is public knowledge, and whoever knows it could otherwise lock its
//! owner out.
//!
//! Nothing is kept for a name that does not exist, and what is kept for sources has a fixed size ([`Budgets`], [`held`]): a
//! spray of names or addresses grows nothing.

pub mod held;
pub mod request;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use yoke_api::ClusterId;
use yoke_runtime::budget::{Budgets, Rate, source_key};

use crate::snapshot::{Snapshot, resource_name};
use held::Held;

/// The word for a connection or request that may go on, for logs and metrics.
pub const ALLOWED: &str = "allowed";

/// How long a refusal is kept back, on average: as long as a client is told to wait before it asks again. Envoy waits for 3 s for an
/// answer.
pub const HOLD: Duration = Duration::from_secs(1);

/// What is let through, by this process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// New connections from one source address (IPv6: from one /64).
    pub source: Rate,
    /// Connections that one such source has open.
    pub source_connections: u32,
    /// New connections to one name.
    pub name: Rate,
    /// Requests to one cluster whose TLS ended at Envoy.
    pub requests: Rate,
    /// How long the answer is kept back from who asks too fast, or has too much open.
    pub hold: Duration,
    /// New connections from one such source to clusters that sleep: each costs this process a handshake.
    pub sleeping: Rate,
}

/// The decision.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The connection may go on.
    Allow,
    /// The connection is to be closed.
    Refuse(Refusal),
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The host has not been read yet.
    NotSynced,
    /// The client sent no name.
    NoName,
    /// The name belongs to no cluster.
    Unknown,
    /// The cluster is not to be reached from the source.
    SourceNotAllowed,
    /// The cluster has no ready control plane.
    NoEndpoints,
    /// The source opens connections too fast.
    SourceRate,
    /// The source has too many connections open.
    SourceConnections,
    /// The name is connected to too fast.
    NameRate,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::NotSynced,
        Self::NoName,
        Self::Unknown,
        Self::SourceNotAllowed,
        Self::NoEndpoints,
        Self::SourceRate,
        Self::SourceConnections,
        Self::NameRate,
    ];

    /// The reason as a word for logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSynced => "not_synced",
            Self::NoName => "no_name",
            Self::Unknown => "unknown_name",
            Self::SourceNotAllowed => "source_not_allowed",
            Self::NoEndpoints => "no_endpoints",
            Self::SourceRate => "source_rate",
            Self::SourceConnections => "source_connections",
            Self::NameRate => "name_rate",
        }
    }
}

/// The gate's memory.
#[derive(Debug)]
pub struct Gate {
    sources: Budgets<IpAddr>,
    held: Held,
    names: Budgets<Arc<str>>,
    requests: Budgets<ClusterId>,
    sleeping: Budgets<IpAddr>,
}

impl Gate {
    /// A gate that has seen nobody.
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self {
            sources: Budgets::new(limits.source, now),
            held: Held::new(limits.source_connections),
            names: Budgets::new(limits.name, now),
            requests: Budgets::new(limits.requests, now),
            sleeping: Budgets::new(limits.sleeping, now),
        }
    }

    /// Decides about a connection whose requests are decided one by one: only its source counts.
    pub fn check_source(&mut self, now: Instant, source: Option<SocketAddr>) -> Verdict {
        if let Err(refusal) = self.take_source(now, source) {
            return Verdict::Refuse(refusal);
        }
        self.begin(now, source)
    }

    /// Decides about one connection. A source that is not known to Envoy shares one budget with all such.
    pub fn check(
        &mut self,
        now: Instant,
        snapshot: Option<&Snapshot>,
        name: &str,
        source: Option<SocketAddr>,
    ) -> Verdict {
        let Some(snapshot) = snapshot else {
            return Verdict::Refuse(Refusal::NotSynced);
        };
        if let Err(refusal) = self.take_source(now, source) {
            return Verdict::Refuse(refusal);
        }
        if name.is_empty() {
            return Verdict::Refuse(Refusal::NoName);
        }
        let Some(entry) = snapshot.get(&resource_name(name)) else {
            return Verdict::Refuse(Refusal::Unknown);
        };
        if !entry.route.allows(source.map(|source| source.ip())) {
            return Verdict::Refuse(Refusal::SourceNotAllowed);
        }
        if !entry.reachable {
            return Verdict::Refuse(Refusal::NoEndpoints);
        }
        let key = source_key(source.map(|source| source.ip()));
        if entry.route.asleep.is_some() && !self.sleeping.take(key, now) {
            return Verdict::Refuse(Refusal::SourceRate);
        }
        if !self.names.take(Arc::from(name), now) {
            return Verdict::Refuse(Refusal::NameRate);
        }
        self.begin(now, source)
    }

    fn take_source(&mut self, now: Instant, source: Option<SocketAddr>) -> Result<(), Refusal> {
        if !self.sources.take(source_key(source.map(|source| source.ip())), now) {
            return Err(Refusal::SourceRate);
        }
        if source.is_some_and(|source| !self.held.has_room(source, now)) {
            return Err(Refusal::SourceConnections);
        }
        Ok(())
    }

    fn begin(&mut self, now: Instant, source: Option<SocketAddr>) -> Verdict {
        if let Some(source) = source {
            self.held.begin(source, now);
        }
        Verdict::Allow
    }

    /// Connections that are open, as far as is known. Who learns of ends tells it.
    pub fn held(&mut self) -> &mut Held {
        &mut self.held
    }

    /// Spends one request of a cluster's, whose token was believed: nobody else can spend it.
    pub fn take_request(&mut self, now: Instant, cluster: &ClusterId) -> Result<(), request::Refusal> {
        let left = self.requests.take(cluster.clone(), now);
        left.then_some(()).ok_or(request::Refusal::Rate)
    }
}

#[cfg(test)]
mod tests;
