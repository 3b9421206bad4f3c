//! Limits of connections and rates: who may connect, and how often a key may be used. Pure: time is
//! an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Instant;

use yoke_runtime::budget::{Budgets, Rate, source_key};

/// The limits of this process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent connections.
    pub connections: u32,
    /// Concurrent connections from one source address (IPv6: from one /64).
    pub source_connections: u32,
    /// Concurrent connections that are not authenticated yet.
    pub newcomers: u32,
    /// Concurrent connections from one source address that are not authenticated yet.
    pub source_newcomers: u32,
    /// Concurrent connections of one Tenant.
    pub tenant_connections: u32,
    /// Concurrent full-screen interfaces of one Tenant.
    pub tenant_interfaces: u32,
    /// Concurrent downloads of worker programs by one Tenant.
    pub tenant_downloads: u32,
    /// Rate of new connections from one source address.
    pub source: Rate,
    /// Rate of commands with one key.
    pub key: Rate,
}

/// Reason why a connection is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The process has reached its limit of connections.
    Full,
    /// The source address has reached its limit of connections.
    SourceFull,
    /// The source address exceeds its rate of new connections.
    SourceRate,
    /// The Tenant has reached its limit of connections.
    TenantFull,
}

impl Refusal {
    /// Returns the reason as a label for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::SourceFull => "source_full",
            Self::SourceRate => "source_rate",
            Self::TenantFull => "tenant_full",
        }
    }

    /// Returns the text for the client.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Full => "This server is busy: try again in a minute.",
            Self::SourceFull => "Too many connections are open from your address: close one.",
            Self::SourceRate => "Too many connections from your address: try again in a few seconds.",
            Self::TenantFull => "Too many connections of your Tenant are open: close one.",
        }
    }
}

/// Counts of connections, interfaces and downloads, and the budgets of rates. Only connections that
/// hold a slot are counted.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    all: Count<IpAddr>,
    newcomers: Count<IpAddr>,
    tenants: Count<String>,
    interfaces: Count<String>,
    downloads: Count<String>,
    sources: Budgets<IpAddr>,
    keys: Budgets<String>,
}

/// Counts per key and in total.
#[derive(Debug)]
struct Count<K> {
    all: u32,
    by_key: HashMap<K, u32>,
}

impl<K: Eq + Hash> Count<K> {
    fn new() -> Self {
        Self {
            all: 0,
            by_key: HashMap::new(),
        }
    }

    fn of(&self, key: &K) -> u32 {
        self.by_key.get(key).copied().unwrap_or(0)
    }

    fn add(&mut self, key: K) {
        *self.by_key.entry(key).or_default() += 1;
        self.all += 1;
    }

    fn remove(&mut self, key: &K) {
        if let Some(count) = self.by_key.get_mut(key) {
            self.all -= 1;
            *count -= 1;
            if *count == 0 {
                self.by_key.remove(key);
            }
        }
    }
}

impl Admission {
    /// Creates an admission without connections.
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            all: Count::new(),
            newcomers: Count::new(),
            tenants: Count::new(),
            interfaces: Count::new(),
            downloads: Count::new(),
            sources: Budgets::new(limits.source, now),
            keys: Budgets::new(limits.key, now),
        }
    }

    /// Takes an unauthenticated slot for a connection. [`Admission::assign_tenant`] assigns it to a
    /// Tenant, [`Admission::return_connection`] returns it.
    pub fn take_connection(&mut self, source: IpAddr, now: Instant) -> Result<(), Refusal> {
        let (source, limits) = (source_key(Some(source)), &self.limits);
        if !self.sources.take(source, now) {
            return Err(Refusal::SourceRate);
        }
        if self.all.of(&source) >= limits.source_connections || self.newcomers.of(&source) >= limits.source_newcomers {
            return Err(Refusal::SourceFull);
        }
        if self.all.all >= limits.connections || self.newcomers.all >= limits.newcomers {
            return Err(Refusal::Full);
        }
        self.all.add(source);
        self.newcomers.add(source);
        Ok(())
    }

    /// Takes a slot for a full-screen interface; returns whether there was one.
    /// [`Admission::return_interface`] returns it.
    pub fn take_interface(&mut self, tenant: &str) -> bool {
        let tenant = tenant.to_owned();
        let is_free = self.interfaces.of(&tenant) < self.limits.tenant_interfaces;
        if is_free {
            self.interfaces.add(tenant);
        }
        is_free
    }

    /// Returns the slot of an interface.
    pub fn return_interface(&mut self, tenant: &str) {
        self.interfaces.remove(&tenant.to_owned());
    }

    /// Takes a slot for a download; returns whether there was one. [`Admission::return_download`]
    /// returns it.
    pub fn take_download(&mut self, tenant: &str) -> bool {
        let tenant = tenant.to_owned();
        let is_free = self.downloads.of(&tenant) < self.limits.tenant_downloads;
        if is_free {
            self.downloads.add(tenant);
        }
        is_free
    }

    /// Returns the slot of a download.
    pub fn return_download(&mut self, tenant: &str) {
        self.downloads.remove(&tenant.to_owned());
    }

    /// Assigns an unauthenticated slot to the Tenant whose key was shown.
    pub fn assign_tenant(&mut self, source: IpAddr, tenant: &str) -> Result<(), Refusal> {
        let tenant = tenant.to_owned();
        if self.tenants.of(&tenant) >= self.limits.tenant_connections {
            return Err(Refusal::TenantFull);
        }
        self.newcomers.remove(&source_key(Some(source)));
        self.tenants.add(tenant);
        Ok(())
    }

    /// Returns the slot of a connection, authenticated or not.
    pub fn return_connection(&mut self, source: IpAddr, tenant: Option<&str>) {
        let source = source_key(Some(source));
        self.all.remove(&source);
        match tenant {
            Some(tenant) => self.tenants.remove(&tenant.to_owned()),
            None => self.newcomers.remove(&source),
        }
    }

    /// Takes one command from the key's budget; returns whether there was one.
    pub fn take_command(&mut self, fingerprint: &str, now: Instant) -> bool {
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
        newcomers: 3,
        source_newcomers: 2,
        tenant_connections: 2,
        tenant_interfaces: 2,
        tenant_downloads: 2,
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
    fn slots_are_limited_and_returned() {
        let now = Instant::now();
        let mut admission = Admission::new(LIMITS, now);
        let (one, other) = (ip("192.0.2.1"), ip("192.0.2.2"));
        assert_eq!(admission.take_connection(one, now), Ok(()));
        assert_eq!(admission.take_connection(one, now), Ok(()));
        assert_eq!(admission.take_connection(one, now), Err(Refusal::SourceFull));
        assert_eq!(admission.take_connection(other, now), Ok(()));
        assert_eq!(admission.take_connection(other, now), Err(Refusal::Full));
        admission.return_connection(one, None);
        assert_eq!(admission.take_connection(other, now), Ok(()));
        for source in [one, other, other] {
            admission.return_connection(source, None);
        }
        assert!(admission.all.by_key.is_empty() && admission.all.all == 0);
    }

    #[test]
    fn newcomers_and_each_tenant_have_a_share() {
        let now = Instant::now();
        let limits = Limits {
            connections: 10,
            source_connections: 10,
            ..LIMITS
        };
        let mut admission = Admission::new(limits, now);
        let [one, two, three] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(ip);
        for source in [one, one, two] {
            assert_eq!(admission.take_connection(source, now), Ok(()));
        }
        assert_eq!(admission.take_connection(one, now), Err(Refusal::SourceFull));
        assert_eq!(admission.take_connection(two, now), Err(Refusal::Full));
        assert_eq!(admission.assign_tenant(one, "a"), Ok(()));
        assert_eq!(admission.assign_tenant(one, "a"), Ok(()));
        for source in [one, three] {
            assert_eq!(admission.take_connection(source, now), Ok(()), "others are in");
        }
        assert_eq!(admission.assign_tenant(three, "a"), Err(Refusal::TenantFull));
        assert_eq!(admission.assign_tenant(three, "b"), Ok(()));
        admission.return_connection(one, Some("a"));
        assert_eq!(admission.assign_tenant(one, "a"), Ok(()));
        for (source, tenant) in [(one, Some("a")), (one, Some("a")), (three, Some("b")), (two, None)] {
            admission.return_connection(source, tenant);
        }
        let kept = [admission.all.all, admission.newcomers.all, admission.tenants.all];
        assert_eq!(kept, [0; 3]);
        assert!(
            admission.all.by_key.is_empty()
                && admission.newcomers.by_key.is_empty()
                && admission.tenants.by_key.is_empty()
        );
    }

    #[test]
    fn interface_slots_are_limited_and_returned() {
        let mut admission = Admission::new(LIMITS, Instant::now());
        assert!(admission.take_interface("a") && admission.take_interface("a") && !admission.take_interface("a"));
        assert!(admission.take_interface("b"));
        admission.return_interface("a");
        assert!(admission.take_interface("a") && !admission.take_interface("a"));
        for tenant in ["a", "a", "b"] {
            admission.return_interface(tenant);
        }
        assert!(admission.interfaces.by_key.is_empty() && admission.interfaces.all == 0);
    }

    #[test]
    fn a_source_and_a_key_have_budgets() {
        let now = Instant::now();
        let mut admission = Admission::new(LIMITS, now);
        let source = ip("192.0.2.1");
        for _ in 0..5 {
            assert_eq!(admission.take_connection(source, now), Ok(()));
            admission.return_connection(source, None);
        }
        assert_eq!(admission.take_connection(source, now), Err(Refusal::SourceRate));
        assert_eq!(admission.take_connection(ip("192.0.2.2"), now), Ok(()));
        assert_eq!(admission.take_connection(source, now + Duration::from_secs(1)), Ok(()));

        assert!(
            admission.take_command("a", now) && admission.take_command("a", now) && !admission.take_command("a", now)
        );
        assert!(admission.take_command("b", now));
        assert!(admission.take_command("a", now + Duration::from_secs(1)));
    }
}
