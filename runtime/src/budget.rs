//! Rate limits: one token bucket for each key. Pure: time is an argument.
//!
//! The ingress and the SSH server call it for unauthenticated clients. The memory is bounded, so
//! that requests from many addresses cannot grow it.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Maximum number of buckets of one [`Budgets`].
pub const CAPACITY: usize = 65_536;

/// Rate and burst of a token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Sustained rate, per second.
    pub per_second: u32,
    /// Maximum burst after an idle period.
    pub burst: u32,
}

/// Token buckets by key, in two generations, so that expiry is cheap.
///
/// A bucket that was idle for the time it takes to fill is full, exactly like a new bucket. So the
/// older generation can be dropped after that time. It is also dropped when the recent generation is
/// full. In that case more than [`CAPACITY`] / 2 keys were used within that time, and older keys
/// get a full bucket again.
#[derive(Debug)]
pub struct Budgets<K> {
    rate: Rate,
    recent: HashMap<K, Bucket>,
    older: HashMap<K, Bucket>,
    rotated: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl<K: Eq + Hash> Budgets<K> {
    /// All buckets start full.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            recent: HashMap::new(),
            older: HashMap::new(),
            rotated: now,
        }
    }

    /// Takes one token from the bucket of `key`. Returns false if it is empty.
    pub fn take(&mut self, key: K, now: Instant) -> bool {
        self.take_some(key, 1, 0, now)
    }

    /// Takes `count` tokens from the bucket of `key`. Returns false, and takes nothing, if fewer
    /// than `reserve` tokens would remain.
    pub fn take_some(&mut self, key: K, count: u32, reserve: u32, now: Instant) -> bool {
        self.rotate(now);
        let before = self.recent.remove(&key).or_else(|| self.older.remove(&key));
        let mut bucket = self.refill(before, now);
        let allowed = bucket.tokens >= f64::from(count) + f64::from(reserve);
        if allowed {
            bucket.tokens -= f64::from(count);
        }
        self.recent.insert(key, bucket);
        allowed
    }

    /// Whether [`Self::take_some`] would succeed.
    pub fn has(&self, key: &K, count: u32, reserve: u32, now: Instant) -> bool {
        let before = self.recent.get(key).or_else(|| self.older.get(key)).copied();
        self.refill(before, now).tokens >= f64::from(count) + f64::from(reserve)
    }

    fn refill(&self, before: Option<Bucket>, now: Instant) -> Bucket {
        let burst = f64::from(self.rate.burst);
        let tokens = before.map_or(burst, |bucket| {
            let rested = now.saturating_duration_since(bucket.at).as_secs_f64();
            burst.min(bucket.tokens + rested * f64::from(self.rate.per_second))
        });
        Bucket { tokens, at: now }
    }

    /// Number of buckets in memory. Never more than [`CAPACITY`].
    pub fn kept(&self) -> usize {
        self.recent.len() + self.older.len()
    }

    fn rotate(&mut self, now: Instant) {
        let fill = Duration::from_secs_f64(f64::from(self.rate.burst) / f64::from(self.rate.per_second.max(1)));
        if self.recent.len() >= CAPACITY / 2 || now.saturating_duration_since(self.rotated) > fill {
            self.older = std::mem::take(&mut self.recent);
            self.rotated = now;
        }
    }
}

/// Key of a source address in [`Budgets`]. An IPv6 address counts as its /64, which is one
/// customer's network. All unknown sources share one key.
pub fn source_key(source: Option<IpAddr>) -> IpAddr {
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
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 10,
        burst: 20,
    };

    #[test]
    fn a_budget_is_spent_and_fills_again() {
        let start = Instant::now();
        let mut budgets = Budgets::new(RATE, start);
        let mut spend = |key, after| (0..100).filter(|_| budgets.take(key, start + after)).count();
        assert_eq!(spend("a", Duration::ZERO), 20);
        assert_eq!(spend("b", Duration::ZERO), 20, "each key has its own");
        assert_eq!(spend("a", Duration::from_millis(500)), 5);
        assert_eq!(spend("a", Duration::from_secs(60)), 20);
    }

    #[test]
    fn some_of_a_budget_is_left_for_others() {
        let start = Instant::now();
        let mut budgets = Budgets::new(RATE, start);
        assert!(budgets.take_some("a", 10, 10, start));
        assert!(!budgets.has(&"a", 1, 10, start));
        assert!(!budgets.take_some("a", 1, 10, start));
        assert!(budgets.has(&"a", 10, 0, start));
        assert!(budgets.take_some("a", 10, 0, start));
        assert!(!budgets.has(&"a", 1, 0, start));
        assert!(budgets.has(&"a", 1, 0, start + Duration::from_secs(1)));
    }

    #[test]
    fn memory_is_bounded() {
        let start = Instant::now();
        let mut budgets = Budgets::new(RATE, start);
        for key in 0..200_000 {
            budgets.take(key, start);
        }
        assert!(budgets.kept() <= CAPACITY);
        // Each rotation drops the keys that were not used since the previous one, so two are
        // needed.
        for seconds in [10, 20] {
            budgets.take(0, start + Duration::from_secs(seconds));
        }
        assert_eq!(budgets.kept(), 1);
    }

    #[test]
    fn addresses_of_one_site_are_one_source() {
        let key = |text: &str| source_key(Some(text.parse().unwrap()));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
    }
}
