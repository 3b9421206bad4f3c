//! Everything that the JoinToken controller works with.

use std::sync::Arc;

use crate::host_api::Host;
use crate::host_api::apply::Applier;
use crate::metrics::ReconcileMetrics;
use crate::tenant_client::TenantApis;
use crate::tenant_slots::Slots;

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "join-token";
/// JoinTokens of one Tenant reconciled concurrently.
pub const AT_ONCE: usize = 2;

/// Everything that the JoinToken controller works with.
#[derive(Debug)]
pub struct Context {
    /// The host.
    pub host: Arc<Host>,
    /// Writes to the host API, as this controller.
    pub applier: Applier,
    /// Clients of the tenants' APIs.
    pub apis: Arc<TenantApis>,
    /// Slots for reconciles, by Tenant.
    pub slots: Slots,
    /// Metrics of reconciles.
    pub metrics: ReconcileMetrics,
}

impl Context {
    /// Creates the context.
    pub fn new(host: Arc<Host>, apis: Arc<TenantApis>, metrics: ReconcileMetrics) -> Self {
        Self {
            applier: Applier::new(host.client.clone(), CONTROLLER),
            host,
            apis,
            slots: Slots::new(AT_ONCE),
            metrics,
        }
    }
}
