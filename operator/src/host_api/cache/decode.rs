//! Decodes the objects of watch events. An object that cannot be decoded is logged and left out.

use std::borrow::Cow;
use std::collections::BTreeSet;

use kube::Resource;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use yoke_api::Lenient;

use crate::host_api::cache::metrics::CacheMetrics;
use crate::host_api::cache::sink::WatchSink;
use crate::host_api::cache::trim::without_extras;

/// Returns whether the host API does not serve the kind. The list of a kind that it serves is never
/// 404.
pub(super) fn is_unserved(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

/// Logs once per kind that the host API does not serve it. The watcher continues to retry.
pub(super) fn tell_unserved<K: Resource<DynamicType = ()>>(unserved: &watch::Sender<BTreeSet<&'static str>>) {
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
pub(super) fn take_readable<K>(
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
    use kube::ResourceExt as _;
    use kube::runtime::reflector;
    use yoke_api::{Cluster, labels};

    use super::*;
    use crate::host_api::cache::sink::FullStore;

    #[test]
    fn what_people_add_is_not_kept() {
        let mut object = Cluster::new("a", Default::default());
        for key in ["note", labels::ID, labels::SLEEP] {
            object.labels_mut().insert(key.into(), "x".into());
            object.annotations_mut().insert(key.into(), "x".into());
            object.owner_references_mut().push(Default::default());
        }
        let metrics = CacheMetrics::new(&yoke_runtime::Metrics::new("operator"));
        let (store, writer) = reflector::store::<Cluster>();
        let mut sink = FullStore { store, writer };
        let kept = take_readable("test", &metrics, &mut sink, Event::Apply(Lenient(Ok(object))));
        let Some(Event::Apply(kept)) = kept else {
            panic!("{kept:?}");
        };
        assert_eq!(kept.labels().keys().collect::<Vec<_>>(), [labels::ID]);
        assert_eq!(kept.annotations().keys().collect::<Vec<_>>(), [labels::SLEEP]);
        assert!(kept.owner_references().is_empty());
    }

    fn object(name: &str, version: serde_json::Value) -> Lenient<Cluster> {
        let value = serde_json::json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "namespace": "demo"}, "spec": {"version": version}});
        serde_json::from_value(value).expect("it is an object")
    }

    #[test]
    fn one_that_cannot_be_read_is_left_out() {
        let metrics = CacheMetrics::new(&yoke_runtime::Metrics::new("operator"));
        let (store, writer) = reflector::store::<Cluster>();
        let known = store.clone();
        let mut sink = FullStore { store, writer };
        let mut see = |event| {
            let event = take_readable("test", &metrics, &mut sink, event);
            event.iter().for_each(|event| sink.apply(event));
            (event.is_some(), known.state().len())
        };
        let (good, bad) = (|name| object(name, "v1.35.4".into()), |name| object(name, 1.into()));
        assert_eq!(see(Event::Init), (true, 0));
        assert_eq!(see(Event::InitApply(bad("a"))), (false, 0));
        assert_eq!(see(Event::InitApply(good("b"))), (true, 0));
        assert_eq!(see(Event::InitDone), (true, 1));
        assert_eq!(see(Event::Apply(bad("b"))), (false, 1), "what was known stays");
        assert_eq!(see(Event::Delete(bad("a"))), (false, 1));
        assert_eq!(see(Event::Delete(bad("b"))), (true, 0));
    }
}
