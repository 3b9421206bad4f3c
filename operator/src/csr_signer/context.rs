//! Everything that answering requests for certificates needs: the host, and the budgets of all clusters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::api::PatchParams;
use tokio::sync::Semaphore;
use yoke_runtime::budget::Budgets;
use yoke_runtime::budget::Rate;

use crate::csr_signer::metrics::SignerMetrics;
use crate::csr_signer::queue::SigningQueue;
use crate::host_api::Host;
use crate::host_api::apply::Applier;
use crate::model::CLUSTER_CONTROLLER;

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "signer";

/// Requests of one Tenant that are read, answered or not.
const READS: Rate = Rate {
    per_second: 50,
    burst: 1000,
};

/// Unanswered requests of one cluster that are processed.
const CHECKS: Rate = Rate {
    per_second: 20,
    burst: 300,
};

/// Requests of one Tenant that are answered, refusals included.
const ANSWERS: Rate = Rate {
    per_second: 2,
    burst: 40,
};

/// Requests of one requester that are answered. Without this limit, one requester could use up the
/// answers of its Tenant.
const REQUESTERS: Rate = Rate {
    per_second: 1,
    burst: 20,
};

/// Concurrent requests to cert-manager, for all clusters.
const AT_ONCE: usize = 16;

/// Interval of checks whether a budget is available again.
pub(crate) const REFILL: Duration = Duration::from_millis(500);

/// Everything that answering requests for certificates needs.
pub(crate) struct Context {
    pub(crate) host: Arc<Host>,
    pub(crate) metrics: SignerMetrics,
    pub(crate) reads: Mutex<Budgets<String>>,
    pub(crate) checks: Mutex<Budgets<String>>,
    pub(crate) answers: Mutex<Budgets<String>>,
    pub(crate) requesters: Mutex<Budgets<String>>,
    signings: Mutex<SigningQueue>,
    pub(crate) permits: Semaphore,
    pub(crate) params: PatchParams,
    /// Writes to the host API. A CertificateRequest belongs to its Cluster, so the field manager is
    /// that of the Cluster controller.
    pub(crate) applier: Applier,
}

impl Context {
    /// Creates the context with full budgets.
    pub(crate) fn new(host: Arc<Host>, metrics: SignerMetrics) -> Self {
        let now = Instant::now();
        Self {
            metrics,
            reads: Mutex::new(Budgets::new(READS, now)),
            checks: Mutex::new(Budgets::new(CHECKS, now)),
            answers: Mutex::new(Budgets::new(ANSWERS, now)),
            requesters: Mutex::new(Budgets::new(REQUESTERS, now)),
            signings: Mutex::new(SigningQueue::new(now)),
            permits: Semaphore::new(AT_ONCE),
            applier: Applier::new(host.client.clone(), CLUSTER_CONTROLLER),
            params: PatchParams::apply(&format!("yoke-operator/{CONTROLLER}")).force(),
            host,
        }
    }

    /// Waits until `owner` has budget left, and spends it.
    pub(crate) async fn spend(&self, budgets: &Mutex<Budgets<String>>, owner: &str) {
        while !take(budgets, owner) {
            tokio::time::sleep(REFILL).await;
        }
    }

    pub(crate) fn signings(&self) -> MutexGuard<'_, SigningQueue> {
        self.signings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spends some budget, if any is left.
pub(crate) fn take(budgets: &Mutex<Budgets<String>>, owner: &str) -> bool {
    // A panic cannot leave a budget in a state that matters.
    let mut budgets = budgets.lock().unwrap_or_else(PoisonError::into_inner);
    budgets.take(owner.to_owned(), Instant::now())
}
