//! Watches the addresses of `default/kubernetes` in each cluster that is ready, through which its
//! workloads find their API.
//!
//! ```text
//!  a probe finds correct addresses ──▶ EndpointGuardTask: one watch per cluster
//!                                            └─they change─▶ enqueue the Cluster, which corrects them
//! ```
//!
//! A watch ends when it sees other addresses, or with its connection; the next successful probe
//! starts another one. So nothing has to stop a watch when a cluster sleeps or is deleted. If a
//! tenant changes the addresses repeatedly, the correction is delayed more each time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::mpsc as requeues;
use futures::stream::FuturesUnordered;
use futures::{SinkExt as _, StreamExt as _};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use yoke_api::{Cluster, ClusterId};
use yoke_runtime::Drain;

use crate::cluster::memory::Memory;
use crate::model::identity::Identity;
use crate::tenant_client::{BaseObjects, TenantApi, TenantApiError};

/// Clusters that are waiting to be watched. A cluster that does not fit into the queue is sent
/// again by its next probe.
const CAPACITY: usize = 256;
/// Delay before wrong addresses are corrected, at first.
const CORRECTION_DELAY: Duration = Duration::from_secs(1);
/// A change that a watch sees earlier than this after its start counts as repeated.
const REPEATED_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of doublings of the delay, which is then about a minute.
const MAX_STRIKES: u32 = 6;
/// How long repeated changes of a cluster without a watch are remembered. An existing cluster is
/// probed sooner.
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);

/// Sends clusters with correct addresses to the [`EndpointGuardTask`].
#[derive(Clone, Debug)]
pub struct EndpointGuardHandle {
    clusters: mpsc::Sender<WatchedCluster>,
}

/// Owns the watches of all clusters.
#[derive(Debug)]
pub struct EndpointGuardTask {
    clusters: mpsc::Receiver<WatchedCluster>,
}

/// Number of repeated changes in a row, of clusters that are not watched now.
#[derive(Debug, Default)]
struct Strikes(HashMap<ClusterId, (u32, Instant)>);

#[derive(Debug)]
struct WatchedCluster {
    id: ClusterId,
    cluster: ObjectRef<Cluster>,
    api: TenantApi,
}

impl EndpointGuardHandle {
    /// Creates a guard, and the task that receives from it.
    pub fn new() -> (Self, EndpointGuardTask) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self { clusters: sender }, EndpointGuardTask { clusters: receiver })
    }

    /// Watches a cluster whose addresses were correct a moment ago. It does nothing if the cluster
    /// is watched already, or has no such addresses.
    pub(crate) fn watch_endpoints(&self, identity: &Identity, api: &TenantApi, base: &BaseObjects) {
        if base.endpoints.is_none() {
            return;
        }
        let watched = WatchedCluster {
            id: identity.id.clone(),
            cluster: ObjectRef::new(&identity.cluster).within(&identity.tenant),
            api: api.clone(),
        };
        if self.clusters.try_send(watched).is_err() {
            tracing::debug!(cluster = %identity.id, "queue is full; addresses are watched from the next probe on");
        }
    }
}

impl EndpointGuardTask {
    /// Watches clusters, and enqueues those whose addresses were changed, until the drain starts.
    pub async fn run(
        mut self,
        memory: Arc<Memory>,
        base_objects: BaseObjects,
        mut requeues: requeues::Sender<ObjectRef<Cluster>>,
        drain: Drain,
    ) {
        let mut ids = HashSet::new();
        let mut strikes = Strikes::default();
        let mut watches = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = drain.started() => return,
                Some(watched) = self.clusters.recv() => {
                    if ids.insert(watched.id.clone()) {
                        let before = strikes.remove(&watched.id);
                        watches.push(Box::pin(wait_for_change(&base_objects, watched, before)));
                    }
                }
                Some((watched, count, ended)) = watches.next() => {
                    ids.remove(&watched.id);
                    strikes.insert(watched.id.clone(), count, Instant::now());
                    match ended {
                        Ok(()) => {
                            tracing::info!(cluster = %watched.id, "addresses of default/kubernetes were changed");
                            memory.update_if_running(&watched.id, |running| running.base = None);
                            // An error means that the controller has ended, and the process is
                            // about to end.
                            let _ = requeues.send(watched.cluster).await;
                        }
                        Err(error) => {
                            tracing::debug!(cluster = %watched.id, error = %crate::chain(&error), "watch of addresses ended");
                        }
                    }
                }
            }
        }
    }
}

impl Strikes {
    fn remove(&mut self, id: &ClusterId) -> u32 {
        self.0.remove(id).map_or(0, |(count, _)| count)
    }

    fn insert(&mut self, id: ClusterId, count: u32, now: Instant) {
        // Entries of deleted clusters would stay forever.
        self.0
            .retain(|_, (_, since)| now.saturating_duration_since(*since) < REMEMBERED_FOR);
        if count > 0 {
            self.0.insert(id, (count, now));
        }
    }
}

/// Returns some time after the addresses were changed, or when the watch fails, with the number of
/// repeated changes in a row.
async fn wait_for_change(
    base_objects: &BaseObjects,
    watched: WatchedCluster,
    before: u32,
) -> (WatchedCluster, u32, Result<(), TenantApiError>) {
    let started = Instant::now();
    if let Err(error) = watched.api.watch_base(base_objects).await {
        let is_calm = started.elapsed() >= REPEATED_WITHIN;
        return (watched, if is_calm { 0 } else { before }, Err(error));
    }
    let (strikes, delay) = plan_correction_delay(before, started.elapsed());
    tokio::time::sleep(delay).await;
    (watched, strikes, Ok(()))
}

/// The number of repeated changes in a row, and the delay before the addresses are corrected.
fn plan_correction_delay(before: u32, watched_for: Duration) -> (u32, Duration) {
    if watched_for >= REPEATED_WITHIN {
        return (0, CORRECTION_DELAY);
    }
    let strikes = before.saturating_add(1).min(MAX_STRIKES);
    (strikes, CORRECTION_DELAY * 2_u32.pow(before.min(MAX_STRIKES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strikes_are_remembered_for_a_time() {
        let (one, other) = (ClusterId::random(), ClusterId::random());
        let (now, mut strikes) = (Instant::now(), Strikes::default());
        strikes.insert(one.clone(), 3, now);
        strikes.insert(other.clone(), 0, now);
        assert_eq!(strikes.0.len(), 1, "no entry without strikes");
        assert_eq!(strikes.remove(&one), 3);
        assert_eq!(strikes.remove(&one), 0);
        strikes.insert(one.clone(), 3, now);
        strikes.insert(other, 1, now + REMEMBERED_FOR);
        assert_eq!(strikes.remove(&one), 0, "expired entry");
    }

    #[test]
    fn repeated_changes_are_corrected_later_each_time() {
        let second = Duration::from_secs(1);
        for (rule, before, watched_for, expected) in [
            ("first change", 0, second * 3600, (0, second)),
            ("change soon after", 0, second, (1, second)),
            ("next change", 1, second, (2, second * 2)),
            ("many changes", 6, second, (6, second * 64)),
            ("change after a long time", 6, second * 60, (0, second)),
        ] {
            assert_eq!(plan_correction_delay(before, watched_for), expected, "{rule}");
        }
    }
}
