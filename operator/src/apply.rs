//! Writes to the host API: server-side apply of owned fields, and nothing where nothing changes.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use data_encoding::HEXLOWER;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use yoke_api::{Lenient, labels};

/// A write failed.
#[derive(Debug, thiserror::Error)]
#[error("{verb} {kind} {namespace}/{name}")]
pub struct ApplyError {
    verb: &'static str,
    kind: String,
    namespace: String,
    name: String,
    /// Why.
    #[source]
    pub source: Box<kube::Error>,
}

/// Writes as one field manager.
///
/// Each object bears a digest of what was applied of it, by whatever process. One that bears that of what is wanted, and says
/// all of it, is not written again: of its owned fields none is too many, and none was changed by others.
pub struct Applier {
    client: Client,
    params: PatchParams,
    /// What the API server says in other words than were applied, and the version that says so: few objects, if any.
    reworded: Mutex<HashMap<Key, Reworded>>,
}

type Key = (String, String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Reworded {
    digest: String,
    version: Option<String>,
}

impl Debug for Applier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applier")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl Applier {
    /// An applier with the field manager `yoke-operator/<controller>`.
    pub fn new(client: Client, controller: &str) -> Self {
        Self {
            client,
            params: PatchParams::apply(&format!("yoke-operator/{controller}")).force(),
            reworded: Mutex::default(),
        }
    }

    /// The field manager's parameters.
    pub fn params(&self) -> &PatchParams {
        &self.params
    }

    /// Its parameters for a merge patch, which is never forced.
    pub fn merge_params(&self) -> PatchParams {
        PatchParams {
            field_manager: self.params.field_manager.clone(),
            ..PatchParams::default()
        }
    }

    /// Applies an object that lives in a namespace. `store` is what is known of its kind.
    pub async fn apply<K>(&self, store: &Store<K>, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let namespace = object.namespace().unwrap_or_default();
        self.apply_by(store, &Api::namespaced(self.client.clone(), &namespace), object)
            .await
    }

    async fn apply_by<K>(&self, store: &Store<K>, api: &Api<K>, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let mut wanted = serde_json::to_value(object).expect("typed Kubernetes objects have string keys only");
        let digest = digest_of(&wanted);
        let known = store.get(&ObjectRef::from_obj(object));
        if known.is_some_and(|known| self.is_applied(known.as_ref(), &wanted, &digest)) {
            return Ok(());
        }
        write_digest(&mut wanted, &digest);
        let result = api
            .patch(&object.name_any(), &self.params, &Patch::Apply(&wanted))
            .await;
        let found = result.map_err(|source| failed("applying", object, source))?;
        let key = key_of(object);
        if says(&found, &wanted) {
            self.lock().remove(&key);
        } else {
            let version = found.resource_version();
            self.lock().insert(key, Reworded { digest, version });
        }
        Ok(())
    }

    /// Whether an object is as it was applied, and that is what is wanted.
    fn is_applied<K>(&self, known: &K, wanted: &Value, digest: &str) -> bool
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let borne = known.annotations().get(labels::APPLIED_DIGEST);
        if borne.map(String::as_str) != Some(digest) {
            return false;
        }
        says(known, wanted)
            || self
                .lock()
                .get(&key_of(known))
                .is_some_and(|reworded| reworded.digest == digest && reworded.version == known.resource_version())
    }

    /// Makes an object that must not be there yet; `None` if one of its name is.
    pub async fn create<K>(&self, api: &Api<K>, object: &K) -> Result<Option<K>, ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let params = PostParams {
            field_manager: self.params.field_manager.clone(),
            ..PostParams::default()
        };
        match api.create(&params, object).await {
            Ok(made) => Ok(Some(made)),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(None),
            Err(source) => Err(failed("making", object, source)),
        }
    }

    /// Deletes what is there of an object: only the very one that was seen. Absence is success.
    pub async fn delete<K>(&self, api: &Api<K>, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        self.lock().remove(&key_of(object));
        match api.delete(&object.name_any(), &params).await {
            Ok(_) => Ok(()),
            // Conflict: another object of that name, which is not the one that was to go.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            Err(source) => Err(failed("deleting", object, source)),
        }
    }

    /// Removes the operator's finalizer, whoever else owns it too: a server-side apply would leave it to them. Only of the
    /// very object that was seen, and as it is now.
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
            Ok(left) if is_held(&left) => {
                let message = "the finalizer is still there after it was removed";
                Err(fail(kube::Error::Api(Box::new(
                    kube::core::Status::failure(message, "Conflict").with_code(409),
                ))))
            }
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(fail(source)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Reworded>> {
        // Each change is one insert or removal, so the map is whole after any panic.
        self.reworded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an object waits for the operator before it goes.
pub(crate) fn is_held<K: Resource>(object: &K) -> bool {
    object
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == labels::FINALIZER)
}

/// A patch of the finalizers that is refused if the object is another one by now, or has changed.
fn build_release<K: Resource>(object: &K) -> serde_json::Value {
    let mut left = object.finalizers().to_vec();
    left.retain(|finalizer| finalizer != labels::FINALIZER);
    serde_json::json!({"metadata": {
        "uid": object.uid(),
        "resourceVersion": object.resource_version(),
        "finalizers": left,
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

/// The same for the same object, in whatever process.
fn digest_of(wanted: &Value) -> String {
    HEXLOWER.encode(&Sha256::digest(wanted.to_string())[..8])
}

fn write_digest(wanted: &mut Value, digest: &str) {
    wanted["metadata"]["annotations"][labels::APPLIED_DIGEST] = digest.into();
}

/// Makes an object what is applied of it: the same, with its digest.
pub fn seal(wanted: &mut Value) {
    let digest = digest_of(wanted);
    write_digest(wanted, &digest);
}

/// Whether an object says all that is wanted of it.
fn says<K: Serialize>(found: &K, wanted: &Value) -> bool {
    serde_json::to_value(found).is_ok_and(|found| is_part(wanted, &found))
}

/// Whether all of `wanted` is in `found`, which may say more. An empty list is the same as none.
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

fn failed<K: Resource<DynamicType = ()>>(verb: &'static str, object: &K, source: kube::Error) -> ApplyError {
    let (kind, namespace, name) = key_of(object);
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

    #[test]
    fn an_object_may_say_more_than_is_wanted() {
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
    fn release_takes_one_finalizer_of_the_object_as_it_was_read() {
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
