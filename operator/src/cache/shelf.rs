//! Where what a watch sees is kept: whole objects, or a line each.

use std::hash::Hash;

use kube::Resource;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, ObjectRef, Store};
use kube::runtime::watcher::Event;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ledger::Scribe;

/// Where what a watch sees is kept.
pub(super) trait Shelf<K>: Send + 'static {
    /// Keeps it.
    fn keep(&mut self, event: &Event<K>);
    /// What is known of an object that is gone, and cannot be read.
    fn find_gone(&mut self, key: ObjectRef<K>) -> Option<K>
    where
        K: Lookup,
        K::DynamicType: Eq + Hash + Clone;
}

/// Whole objects.
pub(super) struct Whole<K>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    pub(super) store: Store<K>,
    pub(super) writer: Writer<K>,
}

impl<K> Shelf<K> for Whole<K>
where
    K: Lookup<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    fn keep(&mut self, event: &Event<K>) {
        self.writer.apply_watcher_event(event);
    }

    fn find_gone(&mut self, key: ObjectRef<K>) -> Option<K> {
        self.store.get(&key).map(|known| (*known).clone())
    }
}

impl<K> Shelf<K> for Scribe<K>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Send + 'static,
{
    fn keep(&mut self, event: &Event<K>) {
        self.note(event);
    }

    fn find_gone(&mut self, key: ObjectRef<K>) -> Option<K> {
        self.find(key.namespace.as_deref().unwrap_or_default(), &key.name)
    }
}
