//! A compact watch cache for the objects of Clusters: one record in place of each object. There are
//! forty objects per Cluster.
//!
//! ```text
//!  watch ─▶ CompactWriter: is it as it was applied? ─▶ without fields that are not read ─▶ compressed with an example ─▶ record
//!                                                                     reconciliation ◀─ decompressed ◀─┘
//! ```
//!
//! A record contains the digest annotation of the object, whether the complete object still matches
//! that digest, and the fields that the operator reads. For other fields, callers read the object
//! from the host API.

mod delta;
mod record;
mod records;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use data_encoding::HEXLOWER;
use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use yoke_api::labels;
use yoke_api::names::PKI_NAMESPACE;

use crate::host_api::compact_store::delta::DeltaBase;
use crate::host_api::compact_store::record::{AppliedDigest, build_record};
use crate::host_api::compact_store::records::Records;
use crate::host_api::comparison::{Comparison, Known, contains_fields, digest_of, hash_of};

/// Read side: the records of all objects of one kind.
#[derive(Debug)]
pub struct CompactStore<K> {
    inner: Arc<Inner>,
    is_listed: watch::Receiver<bool>,
    retention: Retention<K>,
}

/// Write side, used by the watch of that kind.
#[derive(Debug)]
pub(crate) struct CompactWriter<K> {
    inner: Arc<Inner>,
    is_listed: watch::Sender<bool>,
    /// Records of a list that is not complete yet.
    listed: Records,
    retention: Retention<K>,
}

/// Defines what is cached of the objects of a kind.
#[derive(Debug)]
pub(crate) struct Retention<K> {
    /// Removes the fields that the operator does not read.
    pub(crate) trim: fn(&mut K),
    /// Whether all applied fields are left after `trim`. Then the cached object is compared with
    /// the desired state directly.
    pub(crate) is_complete: bool,
    /// Returns a value that changes whenever the object changes.
    pub(crate) version: fn(&ObjectMeta) -> String,
}

/// The watch ended before its first list.
#[derive(Debug, thiserror::Error)]
#[error("the watch ended before its first list")]
pub struct Ended;

#[derive(Debug, Default)]
struct Inner {
    records: RwLock<Records>,
    examples: DeltaBase,
}

impl<K> Clone for Retention<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Retention<K> {}

impl<K> Clone for CompactStore<K> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            is_listed: self.is_listed.clone(),
            retention: self.retention,
        }
    }
}

/// Version of an object by its resource version: also a change of the status counts.
pub(crate) fn by_version(meta: &ObjectMeta) -> String {
    meta.resource_version.clone().unwrap_or_default()
}

/// Version of an object that has a generation and of whose status nothing is applied: a change of
/// the status does not count.
pub(crate) fn by_generation(meta: &ObjectMeta) -> String {
    let fields = (&meta.uid, meta.generation, &meta.labels, &meta.annotations);
    format!("{:x}", hash_of(&fields))
}

/// Opens an empty cache.
pub(crate) fn open<K>(retention: Retention<K>) -> (CompactStore<K>, CompactWriter<K>) {
    let inner = Arc::<Inner>::default();
    let (sender, is_listed) = watch::channel(false);
    let store = CompactStore {
        inner: Arc::clone(&inner),
        is_listed,
        retention,
    };
    let writer = CompactWriter {
        inner,
        is_listed: sender,
        listed: Records::default(),
        retention,
    };
    (store, writer)
}

impl<K> CompactStore<K> {
    /// Waits until the first list is complete.
    pub(crate) async fn wait_until_listed(&self) -> Result<(), Ended> {
        let mut is_listed = self.is_listed.clone();
        let listed = is_listed.wait_for(|is_listed| *is_listed).await;
        listed.map(|_| ()).map_err(|_| Ended)
    }

    /// Returns the number of objects.
    pub fn count(&self) -> usize {
        self.inner.read().len()
    }

    /// Returns whether the object exists.
    pub(crate) fn has(&self, namespace: &str, name: &str) -> bool {
        self.inner.read().get(&to_key(namespace, name)).is_some()
    }

    /// Returns the names of the objects in a namespace that `pick` accepts, in order. An empty
    /// namespace means cluster-scoped objects.
    pub(crate) fn names(&self, namespace: &str, pick: impl FnMut(&str) -> bool) -> Vec<String> {
        self.inner.names(namespace, "", pick)
    }

    /// Returns the digest of an object, and whether the object matches it.
    fn digest_state(&self, key: &str) -> Option<AppliedDigest> {
        self.inner.read().get(key)?.digest_state()
    }
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> CompactStore<K> {
    /// Returns an object with the fields that are cached.
    pub fn get(&self, key: &ObjectRef<K>) -> Option<Arc<K>> {
        let found = self.find_one(key.namespace.as_deref().unwrap_or_default(), &key.name);
        found.map(Arc::new)
    }

    /// Returns the names of the objects in a namespace that have an identity's label, in order. In
    /// the namespace of the CAs these names start with the identity.
    pub(crate) fn find(&self, namespace: &str, id: &str) -> Vec<String> {
        let prefix = if namespace == PKI_NAMESPACE { id } else { "" };
        let mut names = self.inner.names(namespace, prefix, |_| true);
        names.retain(|name| {
            let object = self.find_one(namespace, name);
            object.is_some_and(|object| object.labels().get(labels::ID).map(String::as_str) == Some(id))
        });
        names
    }

    /// Returns the digest of an object. If the object does not match its digest, returns its
    /// version too.
    pub(crate) fn applied_digest(&self, namespace: &str, name: &str) -> Option<(String, Option<String>)> {
        let state = self.digest_state(&to_key(namespace, name))?;
        let digest = HEXLOWER.encode(&state.digest);
        if state.digest_matches {
            return Some((digest, None));
        }
        let known = self.find_one(namespace, name)?;
        Some((digest, Some((self.retention.version)(known.meta()))))
    }

    fn find_one(&self, namespace: &str, name: &str) -> Option<K> {
        self.inner.find(namespace, name)
    }
}

impl<K> Known<K> for CompactStore<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    fn compare(&self, object: &K, wanted: &Value, digest: &str) -> Comparison {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        match self.digest_state(&to_key(&namespace, &name)) {
            Some(state) if HEXLOWER.encode(&state.digest) != digest => Comparison::Other,
            Some(state) if state.digest_matches => Comparison::Applied,
            Some(_) => match self.find_one(&namespace, &name) {
                Some(known) if self.retention.is_complete => match contains_fields(&known, wanted) {
                    true => Comparison::Applied,
                    false => Comparison::Normalized(self.version(&known)),
                },
                Some(known) => Comparison::Unknown(self.version(&known).unwrap_or_default()),
                None => Comparison::Other,
            },
            None => Comparison::Other,
        }
    }

    fn version(&self, object: &K) -> Option<String> {
        Some((self.retention.version)(object.meta()))
    }

    fn sees(&self, found: &K, wanted: &Value) -> bool {
        if self.retention.is_complete {
            return contains_fields(found, wanted);
        }
        digest_state_of(found).is_some_and(|state| state.digest_matches)
    }
}

impl<K> CompactWriter<K>
where
    K: Resource<DynamicType = ()> + Clone + Serialize,
{
    /// Applies an event of the watch.
    pub(crate) fn apply_event(&mut self, event: &Event<K>) {
        match event {
            Event::Init => self.listed = Records::default(),
            Event::InitApply(object) => {
                let record = self.to_record(object);
                self.listed.put(&record);
            }
            Event::InitDone => {
                *self.inner.write() = std::mem::take(&mut self.listed);
                self.is_listed.send_replace(true);
            }
            Event::Apply(object) => {
                let record = self.to_record(object);
                self.inner.write().put(&record);
            }
            Event::Delete(object) => {
                self.inner.write().remove(&key_of(object));
            }
        }
    }

    /// Returns an object with the fields that are cached.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<K>
    where
        K: DeserializeOwned,
    {
        self.inner.find(namespace, name)
    }

    fn to_record(&self, object: &K) -> Vec<u8> {
        let key = key_of(object);
        let state = digest_state_of(object);
        let mut trimmed = object.clone();
        (self.retention.trim)(&mut trimmed);
        let sort = sort_of(&trimmed);
        // Name and namespace are part of the key.
        (trimmed.meta_mut().name, trimmed.meta_mut().namespace) = (None, None);
        let text = serde_json::to_vec(&trimmed).unwrap_or_default();
        let (example, packed) = self.inner.examples.pack(&sort, &text);
        build_record(&key, state, example, &packed)
    }
}

impl Inner {
    fn find<K: Resource + DeserializeOwned>(&self, namespace: &str, name: &str) -> Option<K> {
        let text = {
            let records = self.read();
            let record = records.get(&to_key(namespace, name))?;
            let (example, packed) = record.packed();
            self.examples.unpack(example, packed)?
        };
        let mut object: K = serde_json::from_slice(&text).ok()?;
        let meta = object.meta_mut();
        meta.name = Some(name.to_owned());
        meta.namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        Some(object)
    }

    /// Returns the names in a namespace that start with `prefix` and that `pick` accepts, in order.
    fn names(&self, namespace: &str, prefix: &str, mut pick: impl FnMut(&str) -> bool) -> Vec<String> {
        let (first, skip) = (to_key(namespace, prefix), namespace.len() + 1);
        let records = self.read();
        let keys = records.from(&first).map(|record| record.key());
        keys.take_while(|key| key.starts_with(&first))
            .map(|key| &key[skip..])
            .filter(|name| pick(name))
            .map(str::to_owned)
            .collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Records> {
        // Every change replaces a complete record.
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Records> {
        self.records.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Group of objects with nearly the same content: the name without the part that identifies the
/// Cluster.
fn sort_of<K: Resource>(object: &K) -> String {
    let (name, labels) = (object.name_any(), object.labels());
    let (Some(id), Some(cluster)) = (labels.get(labels::ID), labels.get(labels::CLUSTER)) else {
        return String::new();
    };
    match name.split_once(id.as_str()) {
        Some((before, after)) => format!("{before}{after}"),
        None => name.strip_prefix(cluster.as_str()).unwrap_or(&name).to_owned(),
    }
}

fn digest_state_of<K: Resource + Serialize>(object: &K) -> Option<AppliedDigest> {
    let digest = object.annotations().get(labels::APPLIED_DIGEST)?;
    Some(AppliedDigest {
        digest: HEXLOWER.decode(digest.as_bytes()).ok()?.try_into().ok()?,
        digest_matches: *digest == digest_of(&to_applied(object)),
    })
}

/// Restores what was applied, provided that neither the API server nor another writer has added
/// anything. Only kinds that the API server does not normalize match.
fn to_applied<K: Resource + Serialize>(object: &K) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(value) = value.as_object_mut() {
        value.remove("status");
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|key, _| ["name", "namespace", "labels", "annotations"].contains(&key.as_str()));
            let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
            let is_bare = annotations.is_some_and(|annotations| {
                annotations.remove(labels::APPLIED_DIGEST);
                annotations.is_empty()
            });
            if is_bare {
                metadata.remove("annotations");
            }
        }
    }
    value
}

fn key_of<K: Resource>(object: &K) -> String {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    to_key(namespace, object.meta().name.as_deref().unwrap_or_default())
}

fn to_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

#[cfg(test)]
mod tests;
