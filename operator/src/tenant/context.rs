//! Everything that the Tenant controller works with.

use std::sync::Arc;

use crate::host_api::Host;
use crate::host_api::apply::Applier;
use crate::metrics::ReconcileMetrics;
use crate::nats::Nats;

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "tenant";

/// Everything that the Tenant controller works with.
#[derive(Debug)]
pub struct Context {
    /// The host.
    pub host: Arc<Host>,
    /// Writes to the host API, as this controller.
    pub applier: Applier,
    /// The NATS server of all stores.
    pub nats: Nats,
    /// Metrics of reconciles.
    pub metrics: ReconcileMetrics,
}

impl Context {
    /// Creates the context.
    pub fn new(host: Arc<Host>, nats: Nats, metrics: ReconcileMetrics) -> Self {
        Self {
            applier: Applier::new(host.client.clone(), CONTROLLER),
            host,
            nats,
            metrics,
        }
    }
}
