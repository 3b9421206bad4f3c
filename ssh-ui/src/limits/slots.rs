//! Limited slots that are returned when they are dropped: for connections, interfaces and
//! downloads.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::shared::Shared;

/// The slot of a connection.
pub struct ConnectionSlot {
    shared: Arc<Shared>,
    source: IpAddr,
    tenant: OnceLock<String>,
}

impl ConnectionSlot {
    /// Takes a slot for a new connection, or returns the text for a client that gets none.
    pub fn take(shared: &Arc<Shared>, source: IpAddr) -> Result<Self, &'static str> {
        let source = source.to_canonical();
        if let Err(refusal) = shared.admission().take_connection(source, Instant::now()) {
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

    /// Returns the state that all connections share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the source address of the connection.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Assigns the slot to the Tenant whose key was shown. Returns false if the Tenant has reached
    /// its limit.
    pub fn assign_tenant(&self, tenant: &str) -> bool {
        if let Some(known) = self.tenant.get() {
            return known == tenant;
        }
        let admitted = self.shared.admission().assign_tenant(self.source, tenant);
        match admitted {
            Ok(()) => {
                // Only the one connection that has this slot calls this function.
                let _ = self.tenant.set(tenant.to_owned());
            }
            Err(refusal) => self.shared.metrics.count_refusal(refusal),
        }
        admitted.is_ok()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let tenant = self.tenant.get().map(String::as_str);
        self.shared.admission().return_connection(self.source, tenant);
        self.shared.metrics.add_connections(-1);
    }
}

/// The slot of a Tenant's full-screen interface.
pub struct InterfaceSlot {
    shared: Arc<Shared>,
    tenant: String,
}

impl InterfaceSlot {
    /// Takes a slot, if the Tenant has a free one.
    pub fn take(shared: &Arc<Shared>, tenant: &str) -> Option<Self> {
        shared.admission().take_interface(tenant).then(|| Self {
            shared: Arc::clone(shared),
            tenant: tenant.to_owned(),
        })
    }
}

impl Drop for InterfaceSlot {
    fn drop(&mut self) {
        self.shared.admission().return_interface(&self.tenant);
    }
}

/// The slot of a Tenant's download of a worker program.
pub struct DownloadSlot {
    shared: Arc<Shared>,
    tenant: String,
}

impl DownloadSlot {
    /// Takes a slot, if the Tenant has a free one.
    pub fn take(shared: &Arc<Shared>, tenant: &str) -> Option<Self> {
        shared.admission().take_download(tenant).then(|| Self {
            shared: Arc::clone(shared),
            tenant: tenant.to_owned(),
        })
    }
}

impl Drop for DownloadSlot {
    fn drop(&mut self) {
        self.shared.admission().return_download(&self.tenant);
    }
}
