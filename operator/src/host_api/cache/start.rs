//! Starts the watches: one task per kind.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::channel::mpsc;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, Lookup, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use yoke_api::{JoinToken, Lenient, labels};
use yoke_runtime::{Drain, Supervisor};

use crate::host_api::cache::caches::Caches;
use crate::host_api::cache::clusters::{Clusters, ClustersWriter};
use crate::host_api::cache::decode::{is_unserved, take_readable, tell_unserved};
use crate::host_api::cache::metrics::CacheMetrics;
use crate::host_api::cache::reserved_storage::ReservedWriter;
use crate::host_api::cache::retention;
use crate::host_api::cache::sink::{FullStore, WatchSink};
use crate::host_api::cache::triggered::Triggered;
use crate::host_api::compact_store::{self, CompactStore, Retention};
use crate::host_api::triggers::WatchRouter;

/// Capacity of the trigger channels. A full channel blocks the watches, so each channel always has
/// a reader that never delays. Until the first lists are complete the reader is
/// [`Triggered::wait`], and then the controllers. Both hold one entry per object.
const TRIGGER_CAPACITY: usize = 1024;
/// Page size of lists of objects that users write. Each may have 1.5 MiB, and takes several times
/// that in memory.
const PAGE: u32 = 8;
/// Page size of the list of StatefulSets, of 60 KiB each. For other kinds that the operator
/// creates, the library's default applies: each page costs a round trip.
const PAGE_OF_SETS: u32 = 64;

struct Starter<'a> {
    client: &'a Client,
    supervisor: &'a mut Supervisor,
    triggers: WatchRouter,
    drain: Drain,
    metrics: CacheMetrics,
    unserved: watch::Sender<BTreeSet<&'static str>>,
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

impl Starter<'_> {
    /// Starts the watches of all kinds.
    fn watch_all(
        &mut self,
        clusters: Clusters,
        clusters_kept: ClustersWriter,
        join_tokens: Store<JoinToken>,
        join_token_writer: Writer<JoinToken>,
        keep_stateful_set: fn(&mut StatefulSet),
    ) -> Caches {
        let every = watcher::Config::default().page_size(PAGE);
        self.spawn("watch-clusters", every.clone(), clusters_kept);
        let join_tokens_kept = FullStore {
            store: join_tokens.clone(),
            writer: join_token_writer,
        };
        self.spawn("watch-jointokens", every.clone(), join_tokens_kept);
        let (secrets, scribe) = compact_store::open(retention::SECRETS);
        let (reserved, counted) = ReservedWriter::new(scribe);
        self.spawn("watch-secrets", build_ours(), counted);
        Caches {
            clusters,
            tenants: self.watch("watch-tenants", every),
            join_tokens,
            namespaces: self.note_ours("watch-namespaces", retention::NAMESPACES),
            secrets,
            reserved,
            config_maps: self.note_ours("watch-configmaps", retention::CONFIG_MAPS),
            services: self.note_ours("watch-services", retention::SERVICES),
            stateful_sets: self.note(
                "watch-statefulsets",
                build_ours().page_size(PAGE_OF_SETS),
                retention::of_stateful_sets(keep_stateful_set),
            ),
            pods: self.watch_ours("watch-pods"),
            budgets: self.watch_ours("watch-poddisruptionbudgets"),
            nodes: self.watch("watch-nodes", watcher::Config::default()),
            network_policies: self.note_ours("watch-networkpolicies", retention::NETWORK_POLICIES),
            roles: self.watch_ours("watch-roles"),
            role_bindings: self.watch_ours("watch-rolebindings"),
            resource_quotas: self.watch_ours("watch-resourcequotas"),
            certificates: self.note_ours("watch-certificates", retention::CERTIFICATES),
            issuers: self.note_ours("watch-issuers", retention::ISSUERS),
        }
    }

    fn watch_ours<K: Watched>(&mut self, task: &'static str) -> Store<K> {
        self.watch(task, build_ours())
    }

    /// Watches the operator's own objects and caches one compact record per object.
    fn note_ours<K: Watched>(&mut self, task: &'static str, extent: Retention<K>) -> CompactStore<K> {
        self.note(task, build_ours(), extent)
    }

    fn note<K: Watched>(
        &mut self,
        task: &'static str,
        config: watcher::Config,
        extent: Retention<K>,
    ) -> CompactStore<K> {
        let (ledger, scribe) = compact_store::open(extent);
        self.spawn(task, config, scribe);
        ledger
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
                            tell_unserved::<K>(&unserved);
                        }
                        tracing::warn!(task, error = %crate::chain(&error), "watch of the host API failed");
                        continue;
                    }
                };
                let Some(event) = take_readable(task, &metrics, &mut sink, event) else {
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

/// Starts all watches.
///
/// `keep_stateful_set` removes the fields of a StatefulSet that its controller does not read.
pub fn start(
    client: &Client,
    supervisor: &mut Supervisor,
    metrics: &CacheMetrics,
    keep_stateful_set: fn(&mut StatefulSet),
) -> (Caches, Triggered) {
    let (cluster_sender, clusters) = mpsc::channel(TRIGGER_CAPACITY);
    let (tenant_sender, tenants) = mpsc::channel(TRIGGER_CAPACITY);
    let (join_token_sender, join_tokens) = mpsc::channel(TRIGGER_CAPACITY);
    let (known_clusters, clusters_kept) = Clusters::open();
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
    let caches = starter.watch_all(
        known_clusters,
        clusters_kept,
        join_token_store,
        join_token_writer,
        keep_stateful_set,
    );
    let triggered = Triggered {
        clusters: clusters.boxed(),
        tenants: tenants.boxed(),
        join_tokens: join_tokens.boxed(),
        unserved: is_unserved,
    };
    (caches, triggered)
}

/// Selects objects that the operator created or requested.
fn build_ours() -> watcher::Config {
    let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_OPERATOR);
    watcher::Config::default().labels(&selector)
}
