//! Whether a new connection may go on, decided before anything upstream is touched. Pure: time comes in as an argument.
//!
//! Refuses by default. A source's budget is asked first, so that one source cannot spend a name's budget: a name is public
//! knowledge, and whoever knows it could otherwise lock its owner out.
//!
//! Nothing is kept for a name that does not exist, and what is kept for sources has a fixed size ([`Budgets`]): a spray of
//! names or addresses grows nothing.

pub mod request;

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::snapshot::{Snapshot, connection_name};

/// Budgets of one kind that are kept at most.
const CAPACITY: usize = 65_536;

/// How often something may happen.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Lasting, in one second.
    pub per_second: u32,
    /// At once, after a rest.
    pub burst: u32,
}

/// New connections that are let through, by this process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From one source address (IPv6: from one /64).
    pub source: Rate,
    /// To one name.
    pub name: Rate,
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
    /// The cluster has no ready control plane.
    NoEndpoints,
    /// The source opens connections too fast.
    SourceRate,
    /// The name is connected to too fast.
    NameRate,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::NotSynced,
        Self::NoName,
        Self::Unknown,
        Self::NoEndpoints,
        Self::SourceRate,
        Self::NameRate,
    ];

    /// The reason as a word for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotSynced => "not_synced",
            Self::NoName => "no_name",
            Self::Unknown => "unknown_name",
            Self::NoEndpoints => "no_endpoints",
            Self::SourceRate => "source_rate",
            Self::NameRate => "name_rate",
        }
    }
}

/// The gate's memory.
#[derive(Debug)]
pub struct Gate {
    sources: Budgets<IpAddr>,
    names: Budgets<Arc<str>>,
}

impl Gate {
    /// A gate that has seen nobody.
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self {
            sources: Budgets::new(limits.source, now),
            names: Budgets::new(limits.name, now),
        }
    }

    /// Decides about one connection. A source that is not known to Envoy shares one budget with all such.
    pub fn check(&mut self, now: Instant, snapshot: Option<&Snapshot>, name: &str, source: Option<IpAddr>) -> Verdict {
        let Some(snapshot) = snapshot else {
            return Verdict::Refuse(Refusal::NotSynced);
        };
        if !self.sources.take(source_key(source), now) {
            return Verdict::Refuse(Refusal::SourceRate);
        }
        if name.is_empty() {
            return Verdict::Refuse(Refusal::NoName);
        }
        let Some(entry) = snapshot.get(&connection_name(name)) else {
            return Verdict::Refuse(Refusal::Unknown);
        };
        if !entry.reachable {
            return Verdict::Refuse(Refusal::NoEndpoints);
        }
        if !self.names.take(Arc::from(name), now) {
            return Verdict::Refuse(Refusal::NameRate);
        }
        Verdict::Allow
    }
}

/// Token buckets by key, in two generations, so that forgetting costs nothing.
///
/// A bucket that was left alone for as long as it takes to fill is full, which is what a bucket is that was never seen. So
/// the older generation is dropped after that time. It is also dropped when the younger one is full: then more than
/// [`CAPACITY`] / 2 keys came within that time, and the older ones start anew.
#[derive(Debug)]
struct Budgets<K> {
    rate: Rate,
    young: HashMap<K, Bucket>,
    old: HashMap<K, Bucket>,
    turned: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl<K: Eq + Hash> Budgets<K> {
    fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            young: HashMap::new(),
            old: HashMap::new(),
            turned: now,
        }
    }

    fn take(&mut self, key: K, now: Instant) -> bool {
        self.turn(now);
        let burst = f64::from(self.rate.burst);
        let before = self.young.remove(&key).or_else(|| self.old.remove(&key));
        let mut bucket = before.unwrap_or(Bucket { tokens: burst, at: now });
        let rested = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = burst.min(bucket.tokens + rested * f64::from(self.rate.per_second));
        bucket.at = now;
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        self.young.insert(key, bucket);
        allowed
    }

    fn turn(&mut self, now: Instant) {
        let fill = Duration::from_secs_f64(f64::from(self.rate.burst) / f64::from(self.rate.per_second.max(1)));
        if self.young.len() >= CAPACITY / 2 || now.saturating_duration_since(self.turned) > fill {
            self.old = std::mem::take(&mut self.young);
            self.turned = now;
        }
    }
}

fn source_key(source: Option<IpAddr>) -> IpAddr {
    match source {
        None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        Some(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        },
        Some(v4) => v4,
    }
}

#[cfg(test)]
mod tests;
