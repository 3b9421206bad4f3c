//! Destination of watch events: a store of complete objects, or a store of compact records.

use std::hash::Hash;

use kube::Resource;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, ObjectRef, Store};
use kube::runtime::watcher::Event;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::host_api::compact_store::CompactWriter;

/// Destination of the events of one watch.
pub(crate) trait WatchSink<K>: Send + 'static {
    /// Applies an event.
    fn apply(&mut self, event: &Event<K>);
    /// Returns the known state of a deleted object whose final state cannot be decoded.
    fn find_deleted(&mut self, key: ObjectRef<K>) -> Option<K>
    where
        K: Lookup,
        K::DynamicType: Eq + Hash + Clone;
}

/// A store of complete objects.
pub(crate) struct FullStore<K>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    pub(crate) store: Store<K>,
    pub(crate) writer: Writer<K>,
}

impl<K> WatchSink<K> for FullStore<K>
where
    K: Lookup<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    fn apply(&mut self, event: &Event<K>) {
        self.writer.apply_watcher_event(event);
    }

    fn find_deleted(&mut self, key: ObjectRef<K>) -> Option<K> {
        self.store.get(&key).map(|known| (*known).clone())
    }
}

impl<K> WatchSink<K> for CompactWriter<K>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Send + 'static,
{
    fn apply(&mut self, event: &Event<K>) {
        self.apply_event(event);
    }

    fn find_deleted(&mut self, key: ObjectRef<K>) -> Option<K> {
        self.find(key.namespace.as_deref().unwrap_or_default(), &key.name)
    }
}
