//! Places that are limited, each held until it is dropped: of connections, of interfaces, and of programs that are sent.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::server::Shared;

/// A connection's place, given back when it is dropped.
pub struct Seat {
    shared: Arc<Shared>,
    source: IpAddr,
    tenant: OnceLock<String>,
}

impl Seat {
    /// Takes one for a connection that has come, or says why there is none.
    pub fn take(shared: &Arc<Shared>, source: IpAddr) -> Result<Self, &'static str> {
        let source = source.to_canonical();
        if let Err(refusal) = shared.gate().enter(source, Instant::now()) {
            shared.metrics.count_refusal(refusal);
            tracing::debug!(%source, reason = refusal.as_str(), "connection refused");
            return Err(refusal.advice());
        }
        shared.metrics.add_connections(1);
        Ok(Self {
            shared: Arc::clone(shared),
            source,
            tenant: OnceLock::new(),
        })
    }

    /// What it shares with all others.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Where the connection comes from.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Makes it a seat of a Tenant's, whose key was shown. False if the Tenant has as many as it may.
    pub fn admit(&self, tenant: &str) -> bool {
        if let Some(known) = self.tenant.get() {
            return known == tenant;
        }
        let admitted = self.shared.gate().admit(self.source, tenant);
        match admitted {
            Ok(()) => {
                // Only the one connection on this seat calls this.
                let _ = self.tenant.set(tenant.to_owned());
            }
            Err(refusal) => self.shared.metrics.count_refusal(refusal),
        }
        admitted.is_ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let tenant = self.tenant.get().map(String::as_str);
        self.shared.gate().leave(self.source, tenant);
        self.shared.metrics.add_connections(-1);
    }
}

/// A Tenant's interface that is shown, until it is dropped.
pub struct Shown {
    shared: Arc<Shared>,
    tenant: String,
}

impl Shown {
    /// One more, if the Tenant may have it.
    pub fn take(shared: &Arc<Shared>, tenant: &str) -> Option<Self> {
        shared.gate().show(tenant).then(|| Self {
            shared: Arc::clone(shared),
            tenant: tenant.to_owned(),
        })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.shared.gate().hide(&self.tenant);
    }
}

/// A program that a Tenant is sent, until it is dropped.
pub struct Delivery {
    shared: Arc<Shared>,
    tenant: String,
}

impl Delivery {
    /// One more, if the Tenant may have it.
    pub fn take(shared: &Arc<Shared>, tenant: &str) -> Option<Self> {
        shared.gate().deliver(tenant).then(|| Self {
            shared: Arc::clone(shared),
            tenant: tenant.to_owned(),
        })
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.shared.gate().delivered(&self.tenant);
    }
}
