//! Last observations of sources that cannot be watched. A cache: safe to drop.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use yoke_api::{ClusterId, KubernetesVersion};

use crate::cluster::outcome::Workers;
use crate::cluster::resources::IssuedSummary;
use crate::cluster::tenant_cluster::worker_rollout::UpgradeRequests;
use crate::model::conditions::State;
use crate::model::not_ready::NotReady;

/// The last observations of all Clusters.
#[derive(Debug, Default)]
pub struct Memory {
    seen: Mutex<HashMap<ClusterId, ClusterMemory>>,
    /// Observations of running clusters only.
    running: Mutex<HashMap<ClusterId, RunningMemory>>,
}

impl Memory {
    /// Returns the last observations of a cluster.
    pub fn seen(&self, id: &ClusterId) -> ClusterMemory {
        lock(&self.seen).get(id).cloned().unwrap_or_default()
    }

    /// Changes the recorded observations of a cluster.
    pub fn update(&self, id: &ClusterId, change: impl FnOnce(&mut ClusterMemory)) {
        change(lock(&self.seen).entry(id.clone()).or_default());
    }

    /// Returns the last observations of a running cluster.
    pub fn running(&self, id: &ClusterId) -> RunningMemory {
        lock(&self.running).get(id).cloned().unwrap_or_default()
    }

    /// Returns the duration of a running cluster's last reconciliation.
    pub fn last_duration(&self, id: &ClusterId) -> Duration {
        lock(&self.running)
            .get(id)
            .map_or(Duration::ZERO, |running| running.last_duration)
    }

    /// Changes the recorded observations of a running cluster, and adds an entry if there is none.
    pub fn update_running(&self, id: &ClusterId, change: impl FnOnce(&mut RunningMemory)) {
        change(lock(&self.running).entry(id.clone()).or_default());
    }

    /// Changes the recorded observations of a running cluster only if there is an entry: it may be
    /// removed by now.
    pub fn update_if_running(&self, id: &ClusterId, change: impl FnOnce(&mut RunningMemory)) {
        if let Some(running) = lock(&self.running).get_mut(id) {
            change(running);
        }
    }

    /// Returns whether anything is recorded of a cluster.
    pub fn has(&self, id: &ClusterId) -> bool {
        lock(&self.seen).contains_key(id) || lock(&self.running).contains_key(id)
    }

    /// Forgets a cluster.
    pub fn forget(&self, id: &ClusterId) {
        lock(&self.seen).remove(id);
        lock(&self.running).remove(id);
    }

    /// Forgets the observations of a cluster that goes to sleep: the next start makes another pod.
    pub fn forget_running(&self, id: &ClusterId) {
        lock(&self.running).remove(id);
        if let Some((_, issued)) = lock(&self.seen).get_mut(id).and_then(|seen| seen.copied.as_mut()) {
            issued.reach = None;
        }
    }

    /// Forgets the observations of all streams: NATS may have recovered without them.
    pub fn forget_stores(&self) {
        for seen in lock(&self.seen).values_mut() {
            seen.store = None;
        }
    }
}

/// Last observations of one cluster, from sources that cannot be watched.
#[derive(Clone, Debug, Default)]
pub struct ClusterMemory {
    /// Hash of the account whose streams exist, when that was checked, and the bytes that they
    /// hold. `Err` says why NATS has no room for them.
    pub store: Option<(u64, Instant, Result<i64, String>)>,
    /// Hash of the copied objects and of their inputs, with a summary of the inputs.
    pub copied: Option<(u64, IssuedSummary)>,
    /// Number of failures in a row, for one generation of the spec and one sleep state. A change of
    /// either starts the count again.
    pub failures: Option<((Option<i64>, bool), u32)>,
    /// When the cluster was last requested to sleep, until the watch delivers that status.
    pub sleep_requested: Option<Time>,
    /// Ordinal of the pod that serves, after a takeover.
    pub first: i32,
    /// UIDs of pods that were notified that no other pod takes over from them.
    pub released: BTreeSet<String>,
    /// Whether the NetworkPolicy was deleted and not applied since. The watch may deliver the
    /// deletion later.
    pub is_unrestricted: bool,
}

/// Last observations of a running cluster, of its pods and its API. There is no entry for a
/// sleeping cluster.
#[derive(Clone, Debug, Default)]
pub struct RunningMemory {
    /// UID of the pod that answered when the base objects were applied in the tenant's API, and
    /// when that was.
    pub base: Option<(String, Instant)>,
    /// Number of Nodes, `None` if they could not be counted, and when that was.
    pub nodes: Option<(Option<i32>, Instant)>,
    /// When the API was first probed, and whether it has answered since through the endpoint that
    /// kubeconfigs use.
    pub first_probed: Option<(Instant, bool)>,
    /// Last state of the add-ons.
    pub addons: AddonsSeen,
    /// Last observation of the workers.
    pub workers: WorkersSeen,
    /// UID of the pod whose controllers were seen to work.
    pub controllers: Option<String>,
    /// UID of the pod that was published to the ingress as answering after a wake, and when.
    pub ingress_opened: Option<(String, Instant)>,
    /// Last probe for a connected Node, which prevents sleep.
    pub connected: Option<ObstacleSeen>,
    /// Last probe for a webhook that would stop workers from registering again after a sleep.
    pub webhooks: Option<ObstacleSeen>,
    /// Last observed activity.
    pub activity: Option<ActivitySeen>,
    /// Duration of the last reconciliation.
    pub last_duration: Duration,
    /// Probes in a row that failed only after a long time, when the next probe is due, and the last
    /// result.
    pub probe_backoff: Option<(u32, Instant, ProbeResult)>,
}

/// Result of a probe of a cluster's API.
#[derive(Clone, Debug)]
pub struct ProbeResult {
    /// Whether the API answers inside the host.
    pub inside: Result<(), NotReady>,
    /// Whether the rest that a tenant needs is available: the ingress, the bindings, working
    /// controllers.
    pub outside: Result<(), NotReady>,
}

/// Last observation of a cluster's workers.
#[derive(Clone, Debug, Default)]
pub struct WorkersSeen {
    /// Validity of this entry: generation of the spec, and accepted version.
    pub(crate) key: Option<(Option<i64>, Option<KubernetesVersion>)>,
    /// When the next check is due.
    pub(crate) due: Option<Instant>,
    /// Current requests to the workers.
    pub(crate) requests: UpgradeRequests,
    /// Last state of the workers.
    pub(crate) last_seen: Option<Workers>,
}

/// Last probe for an obstacle to sleep.
#[derive(Clone, Debug)]
pub struct ObstacleSeen {
    /// Name of the obstacle, `Some(None)` if there is none, `None` if the probe failed.
    pub found: Option<Option<String>>,
    /// When the probe ended.
    pub ended: Instant,
    /// Minimum time until the next probe.
    pub pause: Duration,
}

/// Last observed activity of a cluster.
#[derive(Clone, Debug)]
pub struct ActivitySeen {
    /// Validity of this entry: UID of the pod, and generation of the spec.
    pub key: (String, Option<i64>),
    /// When the next query is due.
    pub due: Instant,
    /// When the cluster was last used.
    pub last_used: Option<Timestamp>,
}

/// Last state of the add-ons of one cluster.
#[derive(Clone, Debug, Default)]
pub struct AddonsSeen {
    /// Validity of this entry: UID of the pod that answers, generation of the spec, and the version
    /// that runs.
    pub key: Option<(String, Option<i64>, KubernetesVersion)>,
    /// When the next check is due.
    pub due: Option<Instant>,
    /// State of the condition.
    pub state: Option<State>,
    /// Whether the last check took too long.
    pub is_late: bool,
}

fn lock<T>(all: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one insert or removal, so each entry is complete after a panic.
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
