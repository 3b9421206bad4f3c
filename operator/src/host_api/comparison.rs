//! Compares objects as they are with objects as they are wanted, by a digest and by their fields. Pure.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use data_encoding::HEXLOWER;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use yoke_api::labels;

/// Objects of one kind that are known from a watch.
pub trait Known<K: Resource> {
    /// Compares the known object with the desired state, as JSON and by its digest.
    fn compare(&self, object: &K, wanted: &Value, digest: &str) -> Comparison;

    /// Returns a value that changes whenever the object changes.
    fn version(&self, object: &K) -> Option<String> {
        object.meta().resource_version.clone()
    }

    /// Returns whether a later [`Known::compare`] will show that the object is current. Otherwise
    /// the [`Applier`](crate::host_api::apply::Applier) remembers its version.
    fn sees(&self, found: &K, wanted: &Value) -> bool;
}

/// Result of a comparison between a known object and the desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Unchanged since the last apply, which equals the desired state.
    Applied,
    /// The desired state was applied, but the object differs. Either the API server normalized it,
    /// or another writer changed it. Contains its version.
    Normalized(Option<String>),
    /// The digest is that of the desired state, but the cache does not have the fields to compare.
    /// Contains the version.
    Unknown(String),
    /// Something else was applied, or nothing.
    Other,
}

impl<K> Known<K> for Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + 'static,
{
    fn compare(&self, object: &K, wanted: &Value, digest: &str) -> Comparison {
        let Some(known) = self.get(&ObjectRef::from_obj(object)) else {
            return Comparison::Other;
        };
        if !has_digest(known.as_ref(), digest) {
            return Comparison::Other;
        }
        match contains_fields(known.as_ref(), wanted) {
            true => Comparison::Applied,
            false => Comparison::Normalized(known.resource_version()),
        }
    }

    fn sees(&self, found: &K, wanted: &Value) -> bool {
        contains_fields(found, wanted)
    }
}

/// No object is known. For kinds that are not watched, and where the watch may not have delivered a
/// change yet.
#[derive(Clone, Copy, Debug)]
pub struct NotCached;

impl<K: Resource> Known<K> for NotCached {
    fn compare(&self, _: &K, _: &Value, _: &str) -> Comparison {
        Comparison::Other
    }

    fn sees(&self, _: &K, _: &Value) -> bool {
        true
    }
}

/// Hashes of the digest and of the version. Hashes save memory: each Cluster may have one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Normalized {
    digest: u64,
    version: u64,
}

impl Normalized {
    pub(crate) fn new(digest: &str, version: Option<&str>) -> Self {
        Self {
            digest: hash_of(digest),
            version: hash_of(&version),
        }
    }
}

/// Hashes a value. The result is stable only within this process.
pub(crate) fn hash_of<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Digest of an object. The result is stable across processes.
pub(crate) fn digest_of(wanted: &Value) -> String {
    HEXLOWER.encode(&Sha256::digest(wanted.to_string())[..8])
}

pub(crate) fn has_digest<K: Resource>(object: &K, digest: &str) -> bool {
    let applied_digest = object.annotations().get(labels::APPLIED_DIGEST);
    applied_digest.map(String::as_str) == Some(digest)
}

/// Returns whether an object contains all desired fields.
pub(crate) fn contains_fields<K: Serialize>(found: &K, wanted: &Value) -> bool {
    serde_json::to_value(found).is_ok_and(|found| is_part(wanted, &found))
}

/// Returns whether `found` contains all of `wanted`. An absent list equals an empty one.
pub(crate) fn is_part(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => wanted.iter().all(|(key, value)| match found.get(key) {
            Some(found) => is_part(value, found),
            None => value.as_array().is_some_and(Vec::is_empty),
        }),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(wanted, found)| is_part(wanted, found))
        }
        _ => wanted == found,
    }
}
