//! Cache of Clusters: complete for a read of one, in outline for comparisons among all, and by name
//! for the controller.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::api::{ObjectMeta, PartialObjectMeta};
use kube::core::PartialObjectMetaExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use yoke_api::Cluster;

use crate::host_api::cache::sink::WatchSink;
use crate::host_api::cache::sync::wait_for;
use crate::host_api::compact_store::{self, CompactStore, CompactWriter, Ended, Retention, by_version};
use crate::model::cluster_summary::ClusterSummary;

/// A Cluster reduced to its name.
pub type Named = PartialObjectMeta<Cluster>;

/// All Clusters. Readers do not block each other.
#[derive(Clone, Debug)]
pub struct Clusters {
    named: Store<Named>,
    summaries: Summaries,
    complete: CompactStore<Cluster>,
}

/// Outlines of all Clusters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summaries(Arc<RwLock<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// By `NAMESPACE/NAME`.
    by_name: BTreeMap<Box<str>, Arc<ClusterSummary>>,
    /// By claim. Each Cluster is compared with those that have the same claim. A scan of all
    /// Clusters took most of the time of a reconciliation.
    by_claim: HashMap<Box<str>, Vec<Arc<ClusterSummary>>>,
}

/// Writes the events of the watch to all three stores.
pub(crate) struct ClustersWriter {
    named: Writer<Named>,
    summaries: Summaries,
    complete: CompactWriter<Cluster>,
    /// Outlines of a list that is not complete yet.
    listed: Known,
}

impl Clusters {
    pub(crate) fn open() -> (Self, ClustersWriter) {
        let (named, writer) = reflector::store();
        let summaries = Summaries::default();
        let (complete, complete_writer) = compact_store::open(Retention {
            trim: |_| {},
            is_complete: true,
            version: by_version,
        });
        let sink = ClustersWriter {
            named: writer,
            summaries: summaries.clone(),
            complete: complete_writer,
            listed: Known::default(),
        };
        (
            Self {
                named,
                summaries,
                complete,
            },
            sink,
        )
    }

    /// Returns a complete Cluster.
    pub fn get(&self, key: &ObjectRef<Cluster>) -> Option<Arc<Cluster>> {
        self.complete.get(key)
    }

    /// Returns the outlines of all Clusters.
    pub fn summaries(&self) -> Vec<Arc<ClusterSummary>> {
        self.summaries.pick(|_| true)
    }

    /// Returns the outlines of the Clusters in a namespace.
    pub fn summaries_in(&self, namespace: &str) -> Vec<Arc<ClusterSummary>> {
        self.summaries.of(namespace)
    }

    /// Returns the outlines that a Cluster is validated against: all in its namespace, itself
    /// included, and those elsewhere with the same claims.
    pub fn summaries_in_conflict(&self, cluster: &Cluster) -> Vec<Arc<ClusterSummary>> {
        self.summaries.find_in_conflict(&ClusterSummary::of(cluster))
    }

    /// Returns whether a Cluster claims this identity, label of a public name, or host name.
    pub fn is_claimed(&self, claim: &str) -> bool {
        self.summaries.read().by_claim.contains_key(claim)
    }

    /// Returns the store of names, for the Cluster controller.
    pub fn named(&self) -> Store<Named> {
        self.named.clone()
    }

    /// Returns a handle to the outlines, for `WatchRouter`.
    pub(crate) fn share_summaries(&self) -> Summaries {
        self.summaries.clone()
    }

    pub(crate) async fn wait_until_listed(&self) -> Result<(), Ended> {
        self.complete.wait_until_listed().await?;
        wait_for(&self.named).await
    }
}

impl Summaries {
    /// Returns the outlines that `pick` accepts.
    pub(crate) fn pick(&self, pick: impl Fn(&ClusterSummary) -> bool) -> Vec<Arc<ClusterSummary>> {
        let all = self.read();
        all.by_name.values().filter(|summary| pick(summary)).cloned().collect()
    }

    fn of(&self, namespace: &str) -> Vec<Arc<ClusterSummary>> {
        let first = to_key(namespace, "");
        let all = self.read();
        let range = all
            .by_name
            .range::<str, _>((Bound::Included(&*first), Bound::Unbounded));
        let range = range.take_while(|(key, _)| key.starts_with(&*first));
        range.map(|(_, summary)| Arc::clone(summary)).collect()
    }

    fn find_in_conflict(&self, own: &ClusterSummary) -> Vec<Arc<ClusterSummary>> {
        let mut found = self.of(&own.namespace);
        let all = self.read();
        let same = own
            .claims()
            .filter_map(|claim| all.by_claim.get(&*claim))
            .flatten()
            .filter(|other| other.namespace != own.namespace);
        let mut elsewhere: Vec<_> = same.cloned().collect();
        elsewhere.sort_by(|one, other| one.rank().cmp(&other.rank()));
        // A Cluster may match several claims.
        elsewhere.dedup_by(|one, other| Arc::ptr_eq(one, other));
        found.extend(elsewhere);
        found
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        // Every change is one insert or removal, so each entry is complete after a panic.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn insert(&mut self, cluster: &Cluster) {
        let summary = Arc::new(ClusterSummary::of(cluster));
        self.remove(&summary);
        for claim in summary.claims() {
            let claimed = self.by_claim.entry(claim.into());
            claimed
                .or_insert_with(|| Vec::with_capacity(1))
                .push(Arc::clone(&summary));
        }
        self.by_name.insert(to_key(&summary.namespace, &summary.name), summary);
    }

    /// Removes the Cluster with this namespace and name.
    fn remove(&mut self, removed: &ClusterSummary) {
        let Some(removed) = self.by_name.remove(&to_key(&removed.namespace, &removed.name)) else {
            return;
        };
        for claim in removed.claims() {
            let Some(claimed) = self.by_claim.get_mut(&*claim) else {
                continue;
            };
            claimed.retain(|summary| !Arc::ptr_eq(summary, &removed));
            if claimed.is_empty() {
                self.by_claim.remove(&*claim);
            }
        }
    }
}

impl WatchSink<Cluster> for ClustersWriter {
    fn apply(&mut self, event: &Event<Cluster>) {
        // The names come last: they trigger reconciliations, which read the complete Cluster and
        // the outlines.
        self.complete.apply_event(event);
        match event {
            Event::Init => self.listed = Known::default(),
            Event::InitApply(cluster) => self.listed.insert(cluster),
            Event::InitDone => *self.summaries.write() = std::mem::take(&mut self.listed),
            Event::Apply(cluster) => self.summaries.write().insert(cluster),
            Event::Delete(cluster) => self.summaries.write().remove(&ClusterSummary::of(cluster)),
        }
        let event = match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(cluster) => Event::InitApply(to_named(cluster)),
            Event::Apply(cluster) => Event::Apply(to_named(cluster)),
            Event::Delete(cluster) => Event::Delete(to_named(cluster)),
        };
        self.named.apply_watcher_event(&event);
    }

    fn find_deleted(&mut self, key: ObjectRef<Cluster>) -> Option<Cluster> {
        self.complete.find_deleted(key)
    }
}

fn to_key(namespace: &str, name: &str) -> Box<str> {
    format!("{namespace}/{name}").into()
}

fn to_named(cluster: &Cluster) -> Named {
    let meta = ObjectMeta {
        name: cluster.metadata.name.clone(),
        namespace: cluster.metadata.namespace.clone(),
        ..ObjectMeta::default()
    };
    meta.into_response_partial()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(namespace: &str, name: &str) -> Cluster {
        serde_json::from_value(
            serde_json::json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "namespace": namespace, "resourceVersion": "7"}, "spec": {"version": "v1.35.4"},
            "status": {"phase": "Asleep", "version": "v1.35.4", "conditions": [
                {"type": "Ready", "status": "False", "reason": "Asleep", "message": "x",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
        )
        .unwrap()
    }

    #[test]
    fn one_cluster_is_complete_and_lists_are_summaries() {
        let (clusters, mut sink) = Clusters::open();
        let demo = cluster("demo", "a");
        let names = || {
            let all = clusters.summaries();
            all.iter()
                .map(|summary| format!("{}/{}", summary.namespace, summary.name))
                .collect::<Vec<_>>()
        };
        sink.apply(&Event::Init);
        sink.apply(&Event::InitApply(demo.clone()));
        assert!(names().is_empty(), "the list is not complete");
        sink.apply(&Event::InitDone);
        let complete = clusters.get(&ObjectRef::from_obj(&demo)).unwrap();
        assert_eq!(
            serde_json::to_value(&*complete).unwrap(),
            serde_json::to_value(&demo).unwrap()
        );
        assert_eq!(*clusters.summaries()[0], ClusterSummary::of(&demo));
        for (namespace, name) in [("demo", "b"), ("demo-2", "a"), ("dem", "z")] {
            sink.apply(&Event::Apply(cluster(namespace, name)));
        }
        assert_eq!(names(), ["dem/z", "demo-2/a", "demo/a", "demo/b"]);
        let of_demo = clusters.summaries_in("demo");
        assert_eq!(
            of_demo.iter().map(|summary| &*summary.name).collect::<Vec<_>>(),
            ["a", "b"]
        );
        let named = clusters.named().get(&ObjectRef::new("b").within("demo")).unwrap();
        assert_eq!(named.metadata.name.as_deref(), Some("b"));
        sink.apply(&Event::Delete(demo.clone()));
        assert!(clusters.get(&ObjectRef::from_obj(&demo)).is_none());
        assert_eq!(names(), ["dem/z", "demo-2/a", "demo/b"]);
        assert!(clusters.named().get(&ObjectRef::new("a").within("demo")).is_none());
        for event in [Event::Init, Event::InitDone] {
            sink.apply(&event);
        }
        assert!(names().is_empty() && clusters.named().state().is_empty());
    }

    #[test]
    fn a_cluster_conflicts_with_its_tenants_and_with_the_same_claims() {
        let (clusters, mut sink) = Clusters::open();
        let claiming = |namespace: &str, name: &str, id: &str, host: &str| {
            let mut cluster = cluster(namespace, name);
            cluster.spec.id = Some(id.into());
            cluster.spec.endpoint.extra_sans = vec![host.into()];
            cluster
        };
        let own = claiming("a", "x", "bcdfghjk24", "x.example");
        for (namespace, name, id, host) in [
            ("b", "x", "bcdfghjk25", "1.example"),
            ("c", "y", "bcdfghjk24", "2.example"),
            ("d", "y", "bcdfghjk26", "x.example"),
            ("e", "y", "bcdfghjk27", "3.example"),
            ("f", "x", "bcdfghjk24", "x.example"),
            ("a", "y", "bcdfghjk28", "4.example"),
            ("g", "x", "zzzzzzzzz2", "5.example"),
        ] {
            sink.apply(&Event::Apply(claiming(namespace, name, id, host)));
        }
        sink.apply(&Event::Apply(own.clone()));
        let conflicting = || {
            let mut found: Vec<_> = clusters.summaries_in_conflict(&own).into_iter().collect();
            found.sort_by(|one, other| one.rank().cmp(&other.rank()));
            found
                .iter()
                .map(|summary| format!("{}/{}", summary.namespace, summary.name))
                .collect::<Vec<_>>()
        };
        assert_eq!(conflicting(), ["a/x", "a/y", "b/x", "c/y", "d/y", "f/x"]);
        sink.apply(&Event::Apply(claiming("c", "y", "bcdfghjk29", "2.example")));
        sink.apply(&Event::Delete(claiming("d", "y", "bcdfghjk26", "x.example")));
        assert_eq!(
            conflicting(),
            ["a/x", "a/y", "b/x", "f/x"],
            "a released claim still conflicts"
        );
        assert!(clusters.is_claimed("bcdfghjk29") && !clusters.is_claimed("bcdfghjk26"));
        sink.apply(&Event::Init);
        sink.apply(&Event::InitApply(own.clone()));
        sink.apply(&Event::InitDone);
        assert_eq!(conflicting(), ["a/x"]);
    }
}
