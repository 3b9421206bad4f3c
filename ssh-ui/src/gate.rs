//! Who may connect, and how often a key may act. Pure: time comes in as an argument.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use yoke_runtime::budget::{Budgets, Rate, source_key};

/// What is let through, by this process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: u32,
    /// Connections at a time from one source address (IPv6: from one /64).
    pub source_connections: u32,
    /// New connections from one source address.
    pub source: Rate,
    /// Commands of one key.
    pub key: Rate,
}

/// Why a connection is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// All connections are taken.
    Full,
    /// The source has as many connections as it may.
    SourceFull,
    /// The source connects too fast.
    SourceRate,
}

impl Refusal {
    /// The reason as a word for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::SourceFull => "source_full",
            Self::SourceRate => "source_rate",
        }
    }

    /// What the client is told.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Full => "This server is busy: try again in a minute.",
            Self::SourceFull => "Too many connections are open from your address: close one.",
            Self::SourceRate => "Too many connections from your address: try again in a few seconds.",
        }
    }
}

/// The gate's memory.
#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    taken: u32,
    taken_by: HashMap<IpAddr, u32>,
    sources: Budgets<IpAddr>,
    keys: Budgets<String>,
}

impl Gate {
    /// A gate that has seen nobody.
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            taken: 0,
            taken_by: HashMap::new(),
            sources: Budgets::new(limits.source, now),
            keys: Budgets::new(limits.key, now),
        }
    }

    /// Takes a seat for a connection, which [`Gate::leave`] gives back.
    pub fn enter(&mut self, source: IpAddr, now: Instant) -> Result<(), Refusal> {
        let source = source_key(Some(source));
        if !self.sources.take(source, now) {
            return Err(Refusal::SourceRate);
        }
        if self.taken >= self.limits.connections {
            return Err(Refusal::Full);
        }
        // Only who has a seat is kept here.
        let by_source = self.taken_by.get(&source).copied().unwrap_or(0);
        if by_source >= self.limits.source_connections {
            return Err(Refusal::SourceFull);
        }
        self.taken_by.insert(source, by_source + 1);
        self.taken += 1;
        Ok(())
    }

    /// Gives a seat back.
    pub fn leave(&mut self, source: IpAddr) {
        let source = source_key(Some(source));
        self.taken = self.taken.saturating_sub(1);
        if let Some(taken) = self.taken_by.get_mut(&source) {
            *taken -= 1;
            if *taken == 0 {
                self.taken_by.remove(&source);
            }
        }
    }

    /// Whether a key may do one more thing now.
    pub fn act(&mut self, fingerprint: &str, now: Instant) -> bool {
        self.keys.take(fingerprint.to_owned(), now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits {
        connections: 3,
        source_connections: 2,
        source: Rate {
            per_second: 1,
            burst: 5,
        },
        key: Rate {
            per_second: 1,
            burst: 2,
        },
    };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn seats_are_limited_and_given_back() {
        let now = Instant::now();
        let mut gate = Gate::new(LIMITS, now);
        let (one, other) = (ip("192.0.2.1"), ip("192.0.2.2"));
        assert_eq!(gate.enter(one, now), Ok(()));
        assert_eq!(gate.enter(one, now), Ok(()));
        assert_eq!(gate.enter(one, now), Err(Refusal::SourceFull));
        assert_eq!(gate.enter(other, now), Ok(()));
        assert_eq!(gate.enter(other, now), Err(Refusal::Full));
        gate.leave(one);
        assert_eq!(gate.enter(other, now), Ok(()));
        for source in [one, other, other] {
            gate.leave(source);
        }
        assert!(gate.taken_by.is_empty() && gate.taken == 0);
    }

    #[test]
    fn a_source_and_a_key_have_budgets() {
        let now = Instant::now();
        let mut gate = Gate::new(LIMITS, now);
        let source = ip("192.0.2.1");
        for _ in 0..5 {
            assert_eq!(gate.enter(source, now), Ok(()));
            gate.leave(source);
        }
        assert_eq!(gate.enter(source, now), Err(Refusal::SourceRate));
        assert_eq!(gate.enter(ip("192.0.2.2"), now), Ok(()));
        assert_eq!(gate.enter(source, now + Duration::from_secs(1)), Ok(()));

        assert!(gate.act("a", now) && gate.act("a", now) && !gate.act("a", now));
        assert!(gate.act("b", now));
        assert!(gate.act("a", now + Duration::from_secs(1)));
    }
}
