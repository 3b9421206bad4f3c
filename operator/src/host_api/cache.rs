//! Watch caches of the host API: one watch per kind, held in memory. Each event also triggers
//! reconciliations.
//!
//! ```text
//!  host API ─watch─▶ Store or CompactStore (read by reconciliations) ─▶ WatchRouter ─▶ Controllers of Clusters, Tenants, JoinTokens
//! ```
//!
//! A trigger is sent after the store contains the change, so a reconciliation sees at least the
//! change that triggered it.
//!
//! An object that cannot be decoded is logged and left out. It does not affect the other objects of
//! its kind.

mod clusters;
mod metrics;
pub(crate) mod reserved_storage;
pub(crate) mod retention;
pub(crate) mod sink;
mod trim;

pub(crate) use crate::host_api::cache::clusters::Summaries;
pub use crate::host_api::cache::clusters::{Clusters, Named};
pub use crate::host_api::cache::metrics::CacheMetrics;
pub use crate::host_api::cache::reserved_storage::{ByIdentity, Reserved};

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use futures::channel::mpsc;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::runtime::reflector::{self, Lookup, ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use yoke_api::{Cluster, JoinToken, Lenient, Tenant, labels};
use yoke_pki::cert_manager::{Certificate, Issuer};
use yoke_runtime::{Drain, Supervisor};

use crate::host_api::cache::reserved_storage::ReservedWriter;
use crate::host_api::cache::sink::{FullStore, WatchSink};
use crate::host_api::cache::trim::without_extras;
use crate::host_api::compact_store::{self, CompactStore, Ended, Retention};
use crate::host_api::triggers::WatchRouter;
use crate::model::host_node::HostNode;

/// Capacity of the trigger channels. A full channel blocks the watches, so each channel always has
/// a reader that never delays. Until the first lists are complete the reader is
/// [`Triggered::wait`], and then the controllers. Both hold one entry per object.
const TRIGGER_CAPACITY: usize = 1024;
/// Timeout of the first lists, after which the process exits. There may be hundreds of thousands of
/// objects.
const SYNC_LIMIT: Duration = Duration::from_secs(180);
/// The only kind that may be missing when the operator starts.
const JOIN_TOKEN: &str = "JoinToken";
/// Page size of lists of objects that users write. Each may have 1.5 MiB, and takes several times
/// that in memory.
const PAGE: u32 = 8;
/// Page size of the list of StatefulSets, of 60 KiB each. For other kinds that the operator
/// creates, the library's default applies: each page costs a round trip.
const PAGE_OF_SETS: u32 = 64;

/// The first lists are not complete.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A watch ended before its first list.
    #[error("a watch of the host API ended before its first list")]
    Ended(#[source] Ended),
    /// The timeout passed. Contains the kinds that the host API does not serve.
    #[error(
        "waiting for the first lists of the host API: not complete within {SYNC_LIMIT:?}; kinds that it does \
         not serve: {0}; install the CustomResourceDefinitions of Yoke and cert-manager"
    )]
    Limit(String),
}

/// The caches of all watched kinds.
#[derive(Clone, Debug)]
pub struct Caches {
    /// All Clusters.
    pub clusters: Clusters,
    /// All Tenants.
    pub tenants: Store<Tenant>,
    /// All JoinTokens.
    pub join_tokens: Store<JoinToken>,
    /// Namespaces that the operator created.
    pub namespaces: CompactStore<Namespace>,
    /// Secrets that the operator created or requested from cert-manager: names of their keys, and
    /// values that are not secret.
    pub secrets: CompactStore<Secret>,
    /// Bytes that stores have reserved at NATS, from their Secrets.
    pub reserved: Reserved,
    /// ConfigMaps of control-plane namespaces: the configuration that is published to the ingress.
    pub config_maps: CompactStore<ConfigMap>,
    /// Services of control planes.
    pub services: CompactStore<Service>,
    /// StatefulSets of control planes: only the fields that the operator reads.
    pub stateful_sets: CompactStore<StatefulSet>,
    /// Pods of control planes.
    pub pods: Store<Pod>,
    /// PodDisruptionBudgets of control planes.
    pub budgets: Store<PodDisruptionBudget>,
    /// Nodes of the host.
    pub nodes: Store<HostNode>,
    /// NetworkPolicies of control-plane namespaces.
    pub network_policies: CompactStore<NetworkPolicy>,
    /// Roles in Tenants' namespaces.
    pub roles: Store<Role>,
    /// RoleBindings in Tenants' namespaces.
    pub role_bindings: Store<RoleBinding>,
    /// ResourceQuotas in Tenants' namespaces.
    pub resource_quotas: Store<ResourceQuota>,
    /// Certificates of clusters, and their host names.
    pub certificates: CompactStore<Certificate>,
    /// Issuers of clusters.
    pub issuers: CompactStore<Issuer>,
}

/// Streams of objects to reconcile, for the controllers.
pub struct Triggered {
    /// Clusters.
    pub clusters: BoxStream<'static, ObjectRef<Cluster>>,
    /// Tenants.
    pub tenants: BoxStream<'static, ObjectRef<Tenant>>,
    /// JoinTokens.
    pub join_tokens: BoxStream<'static, ObjectRef<JoinToken>>,
    /// Kinds that the host API does not serve.
    unserved: watch::Receiver<BTreeSet<&'static str>>,
}

impl Debug for Triggered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Triggered")
    }
}

impl Triggered {
    /// Waits until every store has its first list. Before that, a missing object looks like one
    /// that is not listed yet. Triggers that arrive meanwhile are collected, each object once, and
    /// come first in the result.
    pub async fn wait(mut self, caches: &Caches) -> Result<Self, SyncError> {
        let (mut clusters, mut tenants, mut join_tokens) = (HashSet::new(), HashSet::new(), HashSet::new());
        let all = caches.wait(self.unserved.clone());
        let mut all = std::pin::pin!(tokio::time::timeout(SYNC_LIMIT, all));
        loop {
            tokio::select! {
                result = &mut all => {
                    let unserved = || self.unserved.borrow().iter().copied().collect::<Vec<_>>().join(", ");
                    result.map_err(|_| SyncError::Limit(unserved()))?.map_err(SyncError::Ended)?;
                    break;
                }
                Some(cluster) = self.clusters.next() => {
                    clusters.insert(cluster);
                }
                Some(tenant) = self.tenants.next() => {
                    tenants.insert(tenant);
                }
                Some(join_token) = self.join_tokens.next() => {
                    join_tokens.insert(join_token);
                }
            }
        }
        Ok(Self {
            clusters: stream::iter(clusters).chain(self.clusters).boxed(),
            tenants: stream::iter(tenants).chain(self.tenants).boxed(),
            join_tokens: stream::iter(join_tokens).chain(self.join_tokens).boxed(),
            unserved: self.unserved,
        })
    }
}

/// Starts all watches.
pub fn start(client: &Client, supervisor: &mut Supervisor, metrics: &CacheMetrics) -> (Caches, Triggered) {
    let (cluster_sender, clusters) = mpsc::channel(TRIGGER_CAPACITY);
    let (tenant_sender, tenants) = mpsc::channel(TRIGGER_CAPACITY);
    let (join_token_sender, join_tokens) = mpsc::channel(TRIGGER_CAPACITY);
    let (known_clusters, clusters_writer) = Clusters::open();
    let (join_token_store, join_token_writer) = reflector::store();
    let triggers = WatchRouter::new(
        cluster_sender,
        tenant_sender,
        join_token_sender,
        known_clusters.share_summaries(),
        join_token_store.clone(),
    );
    let drain = supervisor.drain();
    let (unserved, is_unserved) = watch::channel(BTreeSet::new());
    let mut starter = Starter {
        client,
        supervisor,
        triggers: triggers.clone(),
        drain: drain.clone(),
        metrics: metrics.clone(),
        unserved,
    };
    let every = watcher::Config::default().page_size(PAGE);
    starter.spawn("watch-clusters", every.clone(), clusters_writer);
    let join_tokens_sink = FullStore {
        store: join_token_store.clone(),
        writer: join_token_writer,
    };
    starter.spawn("watch-jointokens", every.clone(), join_tokens_sink);
    let (secrets, writer) = compact_store::open(retention::SECRETS);
    let (reserved, reserved_writer) = ReservedWriter::new(writer);
    starter.spawn("watch-secrets", build_ours(), reserved_writer);
    let caches = Caches {
        clusters: known_clusters,
        tenants: starter.watch("watch-tenants", every),
        join_tokens: join_token_store,
        namespaces: starter.cache_ours("watch-namespaces", retention::NAMESPACES),
        secrets,
        reserved,
        config_maps: starter.cache_ours("watch-configmaps", retention::CONFIG_MAPS),
        services: starter.cache_ours("watch-services", retention::SERVICES),
        stateful_sets: starter.cache_compact(
            "watch-statefulsets",
            build_ours().page_size(PAGE_OF_SETS),
            retention::STATEFUL_SETS,
        ),
        pods: starter.watch_ours("watch-pods"),
        budgets: starter.watch_ours("watch-poddisruptionbudgets"),
        nodes: starter.watch("watch-nodes", watcher::Config::default()),
        network_policies: starter.cache_ours("watch-networkpolicies", retention::NETWORK_POLICIES),
        roles: starter.watch_ours("watch-roles"),
        role_bindings: starter.watch_ours("watch-rolebindings"),
        resource_quotas: starter.watch_ours("watch-resourcequotas"),
        certificates: starter.cache_ours("watch-certificates", retention::CERTIFICATES),
        issuers: starter.cache_ours("watch-issuers", retention::ISSUERS),
    };
    let triggered = Triggered {
        clusters: clusters.boxed(),
        tenants: tenants.boxed(),
        join_tokens: join_tokens.boxed(),
        unserved: is_unserved,
    };
    (caches, triggered)
}

impl Caches {
    async fn wait(&self, mut unserved: watch::Receiver<BTreeSet<&'static str>>) -> Result<(), Ended> {
        // With a chart that does not install CRDs, the operator may be newer than the CRDs. Workers
        // cannot join then, but Clusters are still maintained.
        let join_tokens = async {
            tokio::select! {
                ready = wait_for(&self.join_tokens) => ready,
                Ok(_) = unserved.wait_for(|kinds| kinds.contains(JOIN_TOKEN)) => Ok(()),
            }
        };
        tokio::try_join!(
            self.clusters.wait_until_listed(),
            wait_for(&self.tenants),
            join_tokens,
            self.namespaces.wait_until_listed(),
            self.secrets.wait_until_listed(),
            self.config_maps.wait_until_listed(),
            self.services.wait_until_listed(),
            self.stateful_sets.wait_until_listed(),
            wait_for(&self.pods),
            wait_for(&self.budgets),
            wait_for(&self.nodes),
            self.network_policies.wait_until_listed(),
            wait_for(&self.roles),
            wait_for(&self.role_bindings),
            wait_for(&self.resource_quotas),
            self.certificates.wait_until_listed(),
            self.issuers.wait_until_listed(),
        )
        .map(|_| ())
    }

    /// The JoinTokens in a Tenant's namespace, the oldest first.
    pub fn join_tokens_of(&self, tenant: &str) -> Vec<std::sync::Arc<JoinToken>> {
        let mut found = self
            .join_tokens
            .state_filter(|token| token.metadata.namespace.as_deref() == Some(tenant));
        found.sort_by_key(|token| (token.creation_timestamp().map(|created| created.0), token.name_any()));
        found
    }
}

async fn wait_for<K>(store: &Store<K>) -> Result<(), Ended>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    store.wait_until_ready().await.map_err(|_| Ended)
}

struct Starter<'a> {
    client: &'a Client,
    supervisor: &'a mut Supervisor,
    triggers: WatchRouter,
    drain: Drain,
    metrics: CacheMetrics,
    unserved: watch::Sender<BTreeSet<&'static str>>,
}

impl Starter<'_> {
    fn watch_ours<K: Watched>(&mut self, task: &'static str) -> Store<K> {
        self.watch(task, build_ours())
    }

    /// Watches the operator's own objects and caches one compact record per object.
    fn cache_ours<K: Watched>(&mut self, task: &'static str, retention: Retention<K>) -> CompactStore<K> {
        self.cache_compact(task, build_ours(), retention)
    }

    fn cache_compact<K: Watched>(
        &mut self,
        task: &'static str,
        config: watcher::Config,
        retention: Retention<K>,
    ) -> CompactStore<K> {
        let (store, writer) = compact_store::open(retention);
        self.spawn(task, config, writer);
        store
    }

    fn watch<K: Watched>(&mut self, task: &'static str, config: watcher::Config) -> Store<K> {
        let (store, writer) = reflector::store();
        let known = store.clone();
        self.spawn(task, config, FullStore { store, writer });
        known
    }

    fn spawn<K: Watched>(&mut self, task: &'static str, config: watcher::Config, mut sink: impl WatchSink<K>) {
        let mut triggers = self.triggers.clone();
        let drain = self.drain.clone();
        let api = Api::<Lenient<K>>::all(self.client.clone());
        let metrics = self.metrics.clone();
        let unserved = self.unserved.clone();
        self.supervisor.spawn(task, async move {
            let stream = watcher(api, config).default_backoff();
            let mut stream = std::pin::pin!(stream);
            loop {
                let next = tokio::select! {
                    () = drain.started() => return Ok::<_, std::io::Error>(()),
                    next = stream.try_next() => next,
                };
                let event = match next {
                    Ok(Some(event)) => event,
                    // The watcher restarts by itself after an error. Its stream never ends.
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        if is_unserved(&error) {
                            report_unserved::<K>(&unserved);
                        }
                        tracing::warn!(task, error = %crate::chain(&error), "watch of the host API failed");
                        continue;
                    }
                };
                let Some(event) = decode_event(task, &metrics, &mut sink, event) else {
                    continue;
                };
                sink.apply(&event);
                match event {
                    Event::Apply(object) | Event::InitApply(object) => triggers.send(&object, false).await,
                    Event::Delete(object) => triggers.send(&object, true).await,
                    Event::Init | Event::InitDone => {}
                }
            }
        });
    }
}

/// Bounds of a kind that can be watched.
trait Watched:
    Resource<DynamicType = ()>
    + Lookup<DynamicType = ()>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ()>
        + Lookup<DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
        + Send
        + Sync
        + 'static
{
}

/// Selects objects that the operator created or requested.
fn build_ours() -> watcher::Config {
    let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_OPERATOR);
    watcher::Config::default().labels(&selector)
}

/// Returns whether the host API does not serve the kind. The list of a kind that it serves is never
/// 404.
fn is_unserved(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

/// Logs once per kind that the host API does not serve it. The watcher continues to retry.
fn report_unserved<K: Resource<DynamicType = ()>>(unserved: &watch::Sender<BTreeSet<&'static str>>) {
    let kind = <K as Resource>::kind(&());
    // A kind without an owned string is a constant of the type, which lives as long as the process.
    let Cow::Borrowed(kind) = kind else {
        return;
    };
    if unserved.send_if_modified(|kinds| kinds.insert(kind)) {
        tracing::error!(
            kind,
            crd = format!("{}.{}", K::plural(&()), K::group(&())),
            "the host API does not serve this kind: install its CustomResourceDefinition; without JoinTokens the \
         operator starts anyway, for any other kind it waits"
        );
    }
}

/// Returns the event with the decoded object; `None` if it cannot be decoded.
///
/// The last decoded state of an object stays in the cache until the object is deleted or all are
/// listed again.
fn decode_event<K>(
    task: &'static str,
    metrics: &CacheMetrics,
    sink: &mut impl WatchSink<K>,
    event: Event<Lenient<K>>,
) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + 'static,
{
    let (read, rebuild): (_, fn(K) -> Event<K>) = match event {
        Event::Init => return Some(Event::Init),
        Event::InitDone => return Some(Event::InitDone),
        Event::Apply(read) => (read, Event::Apply),
        Event::InitApply(read) => (read, Event::InitApply),
        Event::Delete(Lenient(Err(invalid))) => {
            let mut key = ObjectRef::<K>::new(invalid.metadata.name.as_deref().unwrap_or_default());
            key.namespace = invalid.metadata.namespace;
            return sink.find_deleted(key).map(Event::Delete);
        }
        Event::Delete(read) => (read, Event::Delete),
    };
    match read.0 {
        Ok(object) => Some(rebuild(without_extras(object))),
        Err(invalid) => {
            metrics.undecodable(&<K as Resource>::kind(&()));
            tracing::error!(
                task,
                namespace = invalid.metadata.namespace,
                name = invalid.metadata.name,
                error = invalid.error,
                "object cannot be decoded and is ignored"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_annotations_of_users_are_not_cached() {
        let mut object = Cluster::new("a", Default::default());
        for key in ["note", labels::ID, labels::SLEEP] {
            object.labels_mut().insert(key.into(), "x".into());
            object.annotations_mut().insert(key.into(), "x".into());
            object.owner_references_mut().push(Default::default());
        }
        let metrics = CacheMetrics::new(&yoke_runtime::Metrics::new("operator"));
        let (store, writer) = reflector::store::<Cluster>();
        let mut sink = FullStore { store, writer };
        let readable = decode_event("test", &metrics, &mut sink, Event::Apply(Lenient(Ok(object))));
        let Some(Event::Apply(readable)) = readable else {
            panic!("{readable:?}");
        };
        assert_eq!(readable.labels().keys().collect::<Vec<_>>(), [labels::ID]);
        assert_eq!(readable.annotations().keys().collect::<Vec<_>>(), [labels::SLEEP]);
        assert!(readable.owner_references().is_empty());
    }

    fn object(name: &str, version: serde_json::Value) -> Lenient<Cluster> {
        let value = serde_json::json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "namespace": "demo"}, "spec": {"version": version}});
        serde_json::from_value(value).expect("it is an object")
    }

    #[test]
    fn an_undecodable_object_is_left_out() {
        let metrics = CacheMetrics::new(&yoke_runtime::Metrics::new("operator"));
        let (store, writer) = reflector::store::<Cluster>();
        let known = store.clone();
        let mut sink = FullStore { store, writer };
        let mut handle = |event| {
            let event = decode_event("test", &metrics, &mut sink, event);
            event.iter().for_each(|event| sink.apply(event));
            (event.is_some(), known.state().len())
        };
        let (good, bad) = (|name| object(name, "v1.35.4".into()), |name| object(name, 1.into()));
        assert_eq!(handle(Event::Init), (true, 0));
        assert_eq!(handle(Event::InitApply(bad("a"))), (false, 0));
        assert_eq!(handle(Event::InitApply(good("b"))), (true, 0));
        assert_eq!(handle(Event::InitDone), (true, 1));
        assert_eq!(
            handle(Event::Apply(bad("b"))),
            (false, 1),
            "the last decoded state was dropped"
        );
        assert_eq!(handle(Event::Delete(bad("a"))), (false, 1));
        assert_eq!(handle(Event::Delete(bad("b"))), (true, 0));
    }
}
