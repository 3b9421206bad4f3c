//! Writes to the host API: server-side apply of owned fields. An object that needs no change is not
//! written.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use yoke_api::{Lenient, labels};

use crate::host_api::compact_store::CompactStore;
use crate::host_api::comparison::{Comparison, Known, Normalized, contains_fields, digest_of, hash_of};

/// A write failed.
#[derive(Debug, thiserror::Error)]
#[error("{verb} {kind} {namespace}/{name}")]
pub struct ApplyError {
    verb: &'static str,
    kind: String,
    namespace: String,
    name: String,
    /// Cause.
    #[source]
    pub source: Box<kube::Error>,
}

/// Writes objects as one field manager.
///
/// Each object has an annotation with a digest of what was last applied, by whatever process. An
/// object is not written again if both hold:
///
/// - its digest is that of the desired state, so that no owned field is left over;
/// - it contains all desired fields, so that no other writer has changed one.
pub struct Applier {
    client: Client,
    params: PatchParams,
    /// Objects that are current although a comparison does not show it: the API server normalizes
    /// them, or the cache has only a part. Maps the hash of the object's key to the version that is
    /// known to be current.
    normalized: Mutex<HashMap<u64, Normalized>>,
}

type Key = (String, String, String);

impl Debug for Applier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applier")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl Applier {
    /// Returns an applier with the field manager `yoke-operator/<controller>`.
    pub fn new(client: Client, controller: &str) -> Self {
        Self {
            client,
            params: PatchParams::apply(&format!("yoke-operator/{controller}")).force(),
            normalized: Mutex::default(),
        }
    }

    /// Parameters of a server-side apply.
    pub fn params(&self) -> &PatchParams {
        &self.params
    }

    /// Parameters of a merge patch, which is never forced.
    pub fn merge_params(&self) -> PatchParams {
        PatchParams {
            field_manager: self.params.field_manager.clone(),
            ..PatchParams::default()
        }
    }

    /// Applies an object in a namespace, unless `known` shows that it is current.
    pub async fn apply<K>(&self, known: &impl Known<K>, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let mut wanted = serde_json::to_value(object).expect("typed Kubernetes objects have string keys only");
        let digest = digest_of(&wanted);
        let comparison = known.compare(object, &wanted, &digest);
        let api = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        if self
            .is_applied(known, &api, object, comparison, &wanted, &digest)
            .await?
        {
            return Ok(());
        }
        write_digest(&mut wanted, &digest);
        let result = api
            .patch(&object.name_any(), &self.params, &Patch::Apply(&wanted))
            .await;
        let found = result.map_err(|source| failed("applying", object, source))?;
        if known.sees(&found, &wanted) {
            self.lock().remove(&hash_of(&key_of(object)));
        } else {
            self.record_current(object, &digest, known.version(&found));
        }
        Ok(())
    }

    /// Returns whether the object is unchanged since the last apply, which equals the desired
    /// state.
    async fn is_applied<K>(
        &self,
        known: &impl Known<K>,
        api: &Api<K>,
        object: &K,
        comparison: Comparison,
        wanted: &Value,
        digest: &str,
    ) -> Result<bool, ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let version = match &comparison {
            Comparison::Applied => return Ok(true),
            Comparison::Other => return Ok(false),
            Comparison::Normalized(version) => version.clone(),
            Comparison::Unknown(version) => Some(version.clone()),
        };
        let record = Normalized::new(digest, version.as_deref());
        if self.lock().get(&hash_of(&key_of(object))) == Some(&record) {
            return Ok(true);
        }
        if let Comparison::Normalized(_) = comparison {
            return Ok(false);
        }
        let found = api.get_opt(&object.name_any()).await;
        let found = found.map_err(|source| failed("reading", object, source))?;
        let Some(found) = found.filter(|found| contains_fields(found, wanted)) else {
            return Ok(false);
        };
        self.record_current(object, digest, known.version(&found));
        Ok(true)
    }

    /// Records that a version of an object is the desired state, even if its fields differ.
    fn record_current<K: Resource<DynamicType = ()>>(&self, object: &K, digest: &str, version: Option<String>) {
        let record = Normalized::new(digest, version.as_deref());
        self.lock().insert(hash_of(&key_of(object)), record);
    }

    /// Returns the digest of an object that is unchanged since it was applied. `None` if that
    /// cannot be decided without a request.
    pub(crate) fn find_standing<K>(&self, store: &CompactStore<K>, namespace: &str, name: &str) -> Option<String>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (digest, version) = store.applied_digest(namespace, name)?;
        let Some(version) = version else {
            return Some(digest);
        };
        let key = (K::kind(&()).into_owned(), namespace.to_owned(), name.to_owned());
        let record = Normalized::new(&digest, Some(&version));
        (self.lock().get(&hash_of(&key)) == Some(&record)).then_some(digest)
    }

    /// Creates an object. Returns `None` if an object of this name exists.
    pub async fn create<K>(&self, api: &Api<K>, object: &K) -> Result<Option<K>, ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let params = PostParams {
            field_manager: self.params.field_manager.clone(),
            ..PostParams::default()
        };
        match api.create(&params, object).await {
            Ok(created) => Ok(Some(created)),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(None),
            Err(source) => Err(failed("making", object, source)),
        }
    }

    /// Deletes an object, with its UID as a precondition. Absence is success.
    pub async fn delete<K>(&self, api: &Api<K>, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        self.lock().remove(&hash_of(&key_of(object)));
        let result = api.delete(&object.name_any(), &only(object)).await;
        accept_absence(result).map_err(|source| failed("deleting", object, source))
    }

    /// Deletes an object by name if `pick` accepts its metadata. Returns whether there was such an
    /// object.
    pub async fn delete_named<K>(
        &self,
        api: &Api<K>,
        key: &ObjectRef<K>,
        pick: impl Fn(&PartialObjectMeta<K>) -> bool,
    ) -> Result<bool, ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let named = (
            K::kind(&()).into_owned(),
            key.namespace.clone().unwrap_or_default(),
            key.name.clone(),
        );
        let found = api.get_metadata_opt(&key.name).await;
        let found = found.map_err(|source| failed_at("reading", named.clone(), source))?;
        let Some(found) = found.filter(pick) else {
            return Ok(false);
        };
        if found.metadata.deletion_timestamp.is_none() {
            self.lock().remove(&hash_of(&named));
            let result = api.delete(&key.name, &only(&found)).await;
            accept_absence(result).map_err(|source| failed_at("deleting", named, source))?;
        }
        Ok(true)
    }

    /// Deletes the object with this name in a namespace.
    pub async fn delete_at<K>(&self, namespace: &str, name: &str) -> Result<bool, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let key = ObjectRef::new(name).within(namespace);
        self.delete_named(&api, &key, |_| true).await
    }

    /// Removes the operator's finalizer, even if other field managers own it too: a server-side
    /// apply would leave it to them. The UID and the resource version are preconditions.
    pub async fn release<K>(&self, api: &Api<Lenient<K>>, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let fail = |source| failed("releasing", object, source);
        let found = api.get_opt(&object.name_any()).await.map_err(fail)?;
        let Some(found) = found.filter(|found| found.uid() == object.uid() && is_held(found)) else {
            return Ok(());
        };
        let patch = Patch::Merge(build_release(&found));
        match api.patch(&object.name_any(), &self.merge_params(), &patch).await {
            Ok(remaining) if is_held(&remaining) => {
                let message = "the finalizer is still present after the patch that removes it";
                Err(fail(kube::Error::Api(Box::new(
                    kube::core::Status::failure(message, "Conflict").with_code(409),
                ))))
            }
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(fail(source)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Normalized>> {
        // Every change is one insert or removal, so the map is consistent after any panic.
        self.normalized.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parameters that delete only the object with this UID.
fn only<K: Resource>(object: &K) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: object.meta().uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::background()
    }
}

fn accept_absence<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Ok(_) => Ok(()),
        // A conflict means that another object has the name now. The object to delete is gone.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(source) => Err(source),
    }
}

/// Returns whether the object has the operator's finalizer.
pub(crate) fn is_held<K: Resource>(object: &K) -> bool {
    object
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == labels::FINALIZER)
}

/// Builds a merge patch of the finalizers. The API server refuses it if the object was replaced or
/// has changed.
fn build_release<K: Resource>(object: &K) -> serde_json::Value {
    let mut remaining = object.finalizers().to_vec();
    remaining.retain(|finalizer| finalizer != labels::FINALIZER);
    serde_json::json!({"metadata": {
        "uid": object.uid(),
        "resourceVersion": object.resource_version(),
        "finalizers": remaining,
    }})
}

fn key_of<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    let meta = object.meta();
    (
        K::kind(&()).into_owned(),
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

fn write_digest(wanted: &mut Value, digest: &str) {
    wanted["metadata"]["annotations"][labels::APPLIED_DIGEST] = digest.into();
}

/// Adds the digest annotation, as [`Applier::apply`] does.
pub fn seal(wanted: &mut Value) {
    let digest = digest_of(wanted);
    write_digest(wanted, &digest);
}

fn failed<K: Resource<DynamicType = ()>>(verb: &'static str, object: &K, source: kube::Error) -> ApplyError {
    failed_at(verb, key_of(object), source)
}

fn failed_at(verb: &'static str, (kind, namespace, name): Key, source: kube::Error) -> ApplyError {
    ApplyError {
        verb,
        kind,
        namespace,
        name,
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_api::comparison::is_part;

    #[test]
    fn an_object_may_have_more_fields_than_desired() {
        use serde_json::json;
        for (rule, wanted, found, expected) in [
            ("more fields", json!({"a": 1}), json!({"a": 1, "b": 2}), true),
            ("another value", json!({"a": 1}), json!({"a": 2}), false),
            ("a missing field", json!({"a": {}}), json!({}), false),
            ("an empty list that is left out", json!({"a": []}), json!({}), true),
            ("a list that is not empty", json!({"a": []}), json!({"a": [1]}), false),
            ("defaults in items", json!([{"a": 1}]), json!([{"a": 1, "b": 2}]), true),
            ("one item more", json!([1]), json!([1, 2]), false),
            ("another order", json!([1, 2]), json!([2, 1]), false),
        ] {
            assert_eq!(is_part(&wanted, &found), expected, "{rule}");
        }
    }

    #[test]
    fn release_removes_one_finalizer_of_the_read_version() {
        let mut tenant = yoke_api::Tenant::new("a", Default::default());
        tenant.metadata.uid = Some("1".into());
        tenant.metadata.resource_version = Some("7".into());
        tenant.metadata.finalizers = Some(vec!["other.example/hold".into(), labels::FINALIZER.into()]);
        assert!(is_held(&tenant));
        let expected = serde_json::json!({"metadata": {
            "uid": "1", "resourceVersion": "7", "finalizers": ["other.example/hold"]}});
        assert_eq!(build_release(&tenant), expected);
    }
}
