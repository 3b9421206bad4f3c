//! The task of the signer: one watch per cluster whose API answers.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use yoke_api::ClusterId;
use yoke_runtime::Drain;

use crate::csr_signer::context::Context;
use crate::csr_signer::issue;
use crate::csr_signer::metrics::SignerMetrics;
use crate::csr_signer::watch::watch;
use crate::csr_signer::watched::WatchedCluster;
use crate::host_api::Host;
use crate::model::identity::Identity;
use crate::tenant_client::TenantApi;

/// Capacity of the channel of clusters to watch. A cluster that does not fit is sent again after
/// the next probe.
const CAPACITY: usize = 256;

/// Tells the [`SignerTask`] which clusters to watch.
#[derive(Clone, Debug)]
pub struct SignerHandle {
    clusters: mpsc::Sender<WatchedCluster>,
}

/// Owns the watches of all clusters.
#[derive(Debug)]
pub struct SignerTask {
    clusters: mpsc::Receiver<WatchedCluster>,
}

impl SignerHandle {
    /// Creates a handle, and the task that receives from it.
    pub fn new() -> (Self, SignerTask) {
        let (clusters, receiver) = mpsc::channel(CAPACITY);
        (Self { clusters }, SignerTask { clusters: receiver })
    }

    /// Answers the requests of a cluster from now on, unless they already are answered. Its API was
    /// probed successfully just now.
    pub(crate) fn keep(&self, identity: &Identity, api: &TenantApi) {
        let target = WatchedCluster {
            identity: identity.clone(),
            api: api.clone(),
        };
        if self.clusters.try_send(target).is_err() {
            tracing::debug!(cluster = %identity.id, "channel of clusters to watch is full; waiting for the next probe");
        }
    }
}

impl SignerTask {
    /// Answers requests until the drain starts.
    pub async fn run(mut self, host: Arc<Host>, metrics: SignerMetrics, drain: Drain) {
        let context = Arc::new(Context::new(host, metrics));
        let mut watched = HashSet::<ClusterId>::new();
        // One task per cluster: a slow tenant's API does not delay the requests of others.
        let mut watches = JoinSet::new();
        let mut sweeping = std::pin::pin!(issue::sweep_often(&context));
        loop {
            tokio::select! {
                () = drain.started() => return,
                Some(target) = self.clusters.recv() => {
                    if watched.insert(target.identity.id.clone()) {
                        watches.spawn(watch(Arc::clone(&context), target));
                    }
                }
                Some(ended) = watches.join_next() => match ended {
                    Ok(id) => {
                        watched.remove(&id);
                    }
                    // No task is cancelled before this returns, so the error is a panic.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = &mut sweeping => {}
            }
        }
    }
}
