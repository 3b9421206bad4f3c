//! Clusters: in short for those who look at all of them, and whole for who looks at one.

use std::sync::Arc;

use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use yoke_api::cluster::ClusterStatus;
use yoke_api::{Cluster, ConditionType};

use super::shelf::Shelf;
use super::wait_for;
use crate::ledger::{self, Ended, Extent, Ledger, Scribe, by_version};

/// All Clusters. Each may be looked at beside all others, so these are there as they are, but for most of their statuses.
#[derive(Clone, Debug)]
pub struct Clusters {
    short: Store<Cluster>,
    whole: Ledger<Cluster>,
}

/// Keeps both.
pub(super) struct Twice {
    short: Writer<Cluster>,
    whole: Scribe<Cluster>,
}

impl Clusters {
    pub(super) fn open() -> (Self, Twice) {
        let (short, writer) = reflector::store();
        let (whole, scribe) = ledger::open(Extent {
            trim: |_| {},
            is_whole: true,
            version: by_version,
        });
        let twice = Twice {
            short: writer,
            whole: scribe,
        };
        (Self { short, whole }, twice)
    }

    /// A Cluster.
    pub fn get(&self, key: &ObjectRef<Cluster>) -> Option<Arc<Cluster>> {
        self.whole.get(key)
    }

    /// All Clusters, in short: of their statuses there is the phase, and whether they are accepted.
    pub fn state(&self) -> Vec<Arc<Cluster>> {
        self.short.state()
    }

    /// Those that are picked by what there is in short.
    pub fn state_filter(&self, pick: impl Fn(&Cluster) -> bool) -> Vec<Arc<Cluster>> {
        self.short.state_filter(pick)
    }

    /// Clusters in short, for those who are told of them one by one, and ask for each.
    pub(crate) fn short(&self) -> Store<Cluster> {
        self.short.clone()
    }

    pub(super) async fn wait_until_listed(&self) -> Result<(), Ended> {
        self.whole.wait_until_listed().await?;
        wait_for(&self.short).await
    }
}

impl Shelf<Cluster> for Twice {
    fn keep(&mut self, event: &Event<Cluster>) {
        // Who is told of one in short finds it whole.
        self.whole.note(event);
        let event = match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(cluster) => Event::InitApply(shorten(cluster)),
            Event::Apply(cluster) => Event::Apply(shorten(cluster)),
            Event::Delete(cluster) => Event::Delete(shorten(cluster)),
        };
        self.short.apply_watcher_event(&event);
    }

    fn find_gone(&mut self, key: ObjectRef<Cluster>) -> Option<Cluster> {
        self.whole.find_gone(key)
    }
}

fn shorten(cluster: &Cluster) -> Cluster {
    let status = cluster.status.as_ref().map(|status| {
        let mut conditions = status.conditions.iter();
        let accepted = conditions.find(|condition| condition.type_ == ConditionType::Accepted.as_str());
        ClusterStatus {
            phase: status.phase,
            conditions: accepted
                .map(|accepted| {
                    let mut accepted = accepted.clone();
                    accepted.message = String::new();
                    accepted
                })
                .into_iter()
                .collect(),
            ..ClusterStatus::default()
        }
    });
    Cluster {
        metadata: cluster.metadata.clone(),
        spec: cluster.spec.clone(),
        status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_whole_and_all_are_short() {
        let (clusters, mut twice) = Clusters::open();
        let cluster: Cluster = serde_json::from_value(
            serde_json::json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "a", "namespace": "demo", "resourceVersion": "7"}, "spec": {"version": "v1.35.4"},
            "status": {"phase": "Asleep", "version": "v1.35.4", "conditions": [
                {"type": "Ready", "status": "False", "reason": "Asleep", "message": "x",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Accepted", "status": "True", "reason": "AsExpected", "message": "x",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
        )
        .unwrap();
        for event in [Event::Init, Event::InitApply(cluster.clone()), Event::InitDone] {
            twice.keep(&event);
        }
        let whole = clusters.get(&ObjectRef::from_obj(&cluster)).unwrap();
        assert_eq!(
            serde_json::to_value(&*whole).unwrap(),
            serde_json::to_value(&cluster).unwrap()
        );
        let short = clusters.state()[0].clone();
        let status = short.status.clone().unwrap();
        assert_eq!(
            (status.phase, status.version, status.conditions.len()),
            (cluster.status.clone().unwrap().phase, None, 1)
        );
        assert_eq!((&short.spec, &short.metadata), (&cluster.spec, &cluster.metadata));
        twice.keep(&Event::Delete(cluster.clone()));
        assert!(clusters.get(&ObjectRef::from_obj(&cluster)).is_none() && clusters.state().is_empty());
    }
}
