//! What all reconciliations share.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::sync::Semaphore;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{ClusterId, KubernetesVersion};
use yoke_pki::plan::ROOT;

use crate::apply::Applier;
use crate::cache::Caches;
use crate::cluster::build::Gist;
use crate::cluster::{Answer, Guard, Turns, WorkersSeen};
use crate::conditions::State;
use crate::config::Config;
use crate::events::Events;
use crate::loss::Losses;
use crate::metrics::OperatorMetrics;
use crate::nats::Nats;
use crate::notice::Notices;
use crate::reaper::Reaper;
use crate::signer::Signer;
use crate::slots::Slots;
use crate::tenant_api::{BaseObjects, TenantApis};

/// The root is read again this often.
const ROOT_EVERY: Duration = Duration::from_secs(60);

/// What all reconciliations share.
pub struct Context {
    /// The host API.
    pub client: Client,
    /// Configuration.
    pub config: Config,
    /// The NATS CA, which every control plane gets.
    pub nats_ca: String,
    /// The store's server.
    pub nats: Nats,
    /// What is known of the host.
    pub caches: Caches,
    /// Writes of the Cluster controller.
    pub clusters: Applier,
    /// Writes of the Tenant controller.
    pub tenants: Applier,
    /// Tenants' own APIs.
    pub apis: TenantApis,
    /// What every tenant cluster must have.
    pub base: BaseObjects,
    /// Who watches that it stays so.
    pub guard: Guard,
    /// Who signs for kubelets.
    pub signer: Signer,
    /// Who removes Nodes that fell silent.
    pub reaper: Reaper,
    /// Clusters that are made now, and those that come after them.
    pub turns: Turns,
    /// Those that are started anew though their owners asked for nothing.
    pub restarts: Turns,
    /// Whose control plane starts where none runs, and who waits for it.
    pub starts: Turns,
    /// Pods that were lost with their machines.
    pub losses: Losses,
    /// Control planes whose machines are about to go.
    pub notices: Notices,
    /// Who works on JoinTokens.
    pub join_token_slots: Slots,
    /// Who works on Clusters whose APIs are late.
    pub late_slots: Slots,
    /// Writes of the JoinToken controller.
    pub join_tokens: Applier,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: OperatorMetrics,
    /// The root certificate, when it was last read.
    pub root: tokio::sync::Mutex<Option<(Instant, String)>>,
    /// Who reads the Secrets of a Cluster, to copy them.
    pub copying: Semaphore,
    /// What was last seen to be so at places that have no watch; an economy, not a truth.
    pub seen: Mutex<HashMap<ClusterId, Seen>>,
    /// The same of what is seen of clusters that are awake only.
    pub awake: Mutex<HashMap<ClusterId, Awake>>,
}

/// What was last seen of one cluster at places that have no watch.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// A hash of the account whose streams were found or made, when, and what they held; or why NATS has no room for them.
    pub store: Option<(u64, Instant, Result<i64, String>)>,
    /// A hash of what was copied, and of what it was copied from, with what is read of that.
    pub copied: Option<(u64, Gist)>,
    /// Reconciliations that failed since the last that did not, of one generation that was asleep or was not.
    pub failures: Option<((Option<i64>, bool), u32)>,
    /// When it was last asked to sleep, until the watch tells so, too.
    pub slept: Option<Time>,
    /// Number of the pod that serves, since a takeover.
    pub first: i32,
    /// UIDs of pods that were told that nobody takes over from them.
    pub released: BTreeSet<String>,
    /// Whether its NetworkPolicy was removed, and not applied since: the watch may tell that later.
    pub is_unrestricted: bool,
}

/// What was last seen of a cluster that is awake, at its pods and its API. Of one that sleeps there is none.
#[derive(Clone, Debug, Default)]
pub struct Awake {
    /// When the base objects were applied in the tenant's API, by the uid of the pod that answered.
    pub base: Option<(String, Instant)>,
    /// Nodes that were counted, if they could be, and when.
    pub nodes: Option<(Option<i32>, Instant)>,
    /// When its API was first asked, and whether it has answered since, by the way of a kubeconfig.
    pub asked: Option<(Instant, bool)>,
    /// What was last done about its add-ons.
    pub addons: AddonsSeen,
    /// What was last seen of its workers.
    pub workers: WorkersSeen,
    /// UID of the pod whose controllers were seen at work.
    pub controllers: Option<String>,
    /// UID of the pod that the ingress was told answers, after a wake, and when.
    pub told: Option<(String, Instant)>,
    /// A Node that is connected.
    pub connected: Option<ObstacleSeen>,
    /// A webhook that would keep workers from coming back.
    pub webhooks: Option<ObstacleSeen>,
    /// When it was last used, as it was last asked.
    pub activity: Option<ActivitySeen>,
    /// How long its last reconciliation took.
    pub took: Duration,
    /// Looks at its API in a row that failed after a long time, when the next is due, and what the last one found.
    pub slow: Option<(u32, Instant, Answer)>,
}

/// What was last looked for of what stands against sleep.
#[derive(Clone, Debug)]
pub struct ObstacleSeen {
    /// Its name, if there is one; `None` if the look failed.
    pub found: Option<Option<String>>,
    /// When the look ended.
    pub at: Instant,
    /// How long no other one comes after it.
    pub rest: Duration,
}

/// When a cluster was last used, as it was last asked.
#[derive(Clone, Debug)]
pub struct ActivitySeen {
    /// For what: the pod, and the generation of the spec.
    pub key: (String, Option<i64>),
    /// When it is asked again.
    pub due: Instant,
    /// When it was used.
    pub used: Option<Timestamp>,
}

/// What was last done about the add-ons of one cluster.
#[derive(Clone, Debug, Default)]
pub struct AddonsSeen {
    /// For what: the pod that answers, the generation of the spec, and the version that is run.
    pub key: Option<(String, Option<i64>, KubernetesVersion)>,
    /// When it is due again.
    pub due: Option<Instant>,
    /// What is told of it.
    pub state: Option<State>,
    /// Whether it took too long.
    pub is_late: bool,
}

/// The root certificate cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The Secret cannot be read.
    #[error("reading the Secret of the root certificate")]
    Read(#[source] Box<kube::Error>),
    /// The Secret holds no certificate: cert-manager has not issued it yet.
    #[error("the root certificate is not issued yet")]
    Missing,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// The root certificate, PEM. The chart makes it, so no watch of the operator's sees it.
    pub async fn root(&self) -> Result<String, RootError> {
        let mut known = self.root.lock().await;
        if let Some((since, text)) = known.as_ref()
            && since.elapsed() < ROOT_EVERY
        {
            return Ok(text.clone());
        }
        let api = Api::<Secret>::namespaced(self.client.clone(), PKI_NAMESPACE);
        let secret = api
            .get_opt(ROOT)
            .await
            .map_err(|error| RootError::Read(Box::new(error)))?;
        let data = secret.and_then(|secret| secret.data?.remove("tls.crt"));
        let text = data
            .and_then(|bytes| String::from_utf8(bytes.0).ok())
            .filter(|text| !text.is_empty());
        let text = text.ok_or(RootError::Missing)?;
        *known = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    /// What was last seen of a cluster.
    pub fn seen(&self, id: &ClusterId) -> Seen {
        lock(&self.seen).get(id).cloned().unwrap_or_default()
    }

    /// Notes what was seen of a cluster.
    pub fn note(&self, id: &ClusterId, change: impl FnOnce(&mut Seen)) {
        change(lock(&self.seen).entry(id.clone()).or_default());
    }

    /// What was last seen of a cluster since it is awake.
    pub fn awake(&self, id: &ClusterId) -> Awake {
        lock(&self.awake).get(id).cloned().unwrap_or_default()
    }

    /// How long the last reconciliation of a cluster took that is awake.
    pub fn took(&self, id: &ClusterId) -> Duration {
        lock(&self.awake).get(id).map_or(Duration::ZERO, |awake| awake.took)
    }

    /// Notes what was seen of a cluster that is awake.
    pub fn note_awake(&self, id: &ClusterId, change: impl FnOnce(&mut Awake)) {
        change(lock(&self.awake).entry(id.clone()).or_default());
    }

    /// The same, if anything is known of it: it may be gone by now.
    pub fn note_if_awake(&self, id: &ClusterId, change: impl FnOnce(&mut Awake)) {
        if let Some(awake) = lock(&self.awake).get_mut(id) {
            change(awake);
        }
    }

    /// Forgets a cluster.
    pub fn forget(&self, id: &ClusterId) {
        lock(&self.seen).remove(id);
        lock(&self.awake).remove(id);
        self.apis.forget(id);
        self.nats.forget(id);
        self.end_turns(id);
    }

    /// Has a cluster wait for no start any more, nor others for its own.
    pub fn end_turns(&self, id: &ClusterId) {
        self.turns.finish(id);
        self.restarts.finish(id);
        self.starts.finish(id);
    }

    /// Forgets what was found of a cluster that goes to sleep: its next pod is another one.
    pub fn forget_awake(&self, id: &ClusterId) {
        lock(&self.awake).remove(id);
        self.apis.forget(id);
        if let Some((_, gist)) = lock(&self.seen).get_mut(id).and_then(|seen| seen.copied.as_mut()) {
            gist.reach = None;
        }
    }

    /// Forgets when stores were seen: NATS may have come back without them.
    pub fn forget_stores(&self) {
        for seen in lock(&self.seen).values_mut() {
            seen.store = None;
        }
    }
}

fn lock<T>(all: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each entry is whole by itself.
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
