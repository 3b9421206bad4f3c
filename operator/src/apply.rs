//! Writes to the host API: server-side apply of owned fields, and nothing where nothing changes.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Mutex, PoisonError};

use data_encoding::HEXLOWER;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use yoke_api::{Lenient, labels};

use crate::ledger::Ledger;

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
    /// What is not seen to be as it was applied and is, by a hash of its key, and the version that is so: what the API server
    /// says in other words, and what is kept in parts.
    reworded: Mutex<HashMap<u64, Reworded>>,
}

type Key = (String, String, String);

/// What is known of the objects of a kind.
pub trait Known<K: Resource> {
    /// How what there is of an object compares with what is wanted, as JSON and by its digest.
    fn compare(&self, object: &K, wanted: &Value, digest: &str) -> Sight;

    /// What tells one state of an object from another.
    fn version(&self, object: &K) -> Option<String> {
        object.meta().resource_version.clone()
    }

    /// Whether it will be seen of an object that it is as it was applied; otherwise that is remembered of its version.
    fn sees(&self, found: &K, wanted: &Value) -> bool;
}

/// What is seen of an object that is to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// It is as it was applied, and that is what is wanted.
    Applied,
    /// What is wanted was applied, and it says something else: in other words, or since somebody changed it. Its version.
    Reworded(Option<String>),
    /// It is not seen to be what was applied, and what it says is not known.
    Unread(String),
    /// Something else was applied, or nothing.
    Other,
}

impl<K> Known<K> for Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + 'static,
{
    fn compare(&self, object: &K, wanted: &Value, digest: &str) -> Sight {
        let Some(known) = self.get(&ObjectRef::from_obj(object)) else {
            return Sight::Other;
        };
        if !bears(known.as_ref(), digest) {
            return Sight::Other;
        }
        match says(known.as_ref(), wanted) {
            true => Sight::Applied,
            false => Sight::Reworded(known.resource_version()),
        }
    }

    fn sees(&self, found: &K, wanted: &Value) -> bool {
        says(found, wanted)
    }
}

/// Nothing is known: a watch may not tell yet what became of an object.
#[derive(Clone, Copy, Debug)]
pub struct Unseen;

impl<K: Resource> Known<K> for Unseen {
    fn compare(&self, _: &K, _: &Value, _: &str) -> Sight {
        Sight::Other
    }

    fn sees(&self, _: &K, _: &Value) -> bool {
        true
    }
}

/// Hashes of the digest and of the version: each Cluster may have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reworded {
    digest: u64,
    version: u64,
}

impl Reworded {
    fn new(digest: &str, version: Option<&str>) -> Self {
        Self {
            digest: hash_of(digest),
            version: hash_of(&version),
        }
    }
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

    /// Applies an object that lives in a namespace. `known` is what is known of its kind.
    pub async fn apply<K>(&self, known: &impl Known<K>, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let mut wanted = serde_json::to_value(object).expect("typed Kubernetes objects have string keys only");
        let digest = digest_of(&wanted);
        let sight = known.compare(object, &wanted, &digest);
        let api = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        if self.is_applied(known, &api, object, sight, (&wanted, &digest)).await? {
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
            self.note(object, &digest, known.version(&found));
        }
        Ok(())
    }

    /// Whether an object is as it was applied, and that is what is wanted.
    async fn is_applied<K>(
        &self,
        known: &impl Known<K>,
        api: &Api<K>,
        object: &K,
        sight: Sight,
        (wanted, digest): (&Value, &str),
    ) -> Result<bool, ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let version = match &sight {
            Sight::Applied => return Ok(true),
            Sight::Other => return Ok(false),
            Sight::Reworded(version) => version.clone(),
            Sight::Unread(version) => Some(version.clone()),
        };
        let noted = Reworded::new(digest, version.as_deref());
        if self.lock().get(&hash_of(&key_of(object))) == Some(&noted) {
            return Ok(true);
        }
        if let Sight::Reworded(_) = sight {
            return Ok(false);
        }
        let found = api.get_opt(&object.name_any()).await;
        let found = found.map_err(|source| failed("reading", object, source))?;
        let Some(found) = found.filter(|found| says(found, wanted)) else {
            return Ok(false);
        };
        self.note(object, digest, known.version(&found));
        Ok(true)
    }

    /// Notes that a version of an object is what is wanted, whatever it looks like.
    fn note<K: Resource<DynamicType = ()>>(&self, object: &K, digest: &str, version: Option<String>) {
        let noted = Reworded::new(digest, version.as_deref());
        self.lock().insert(hash_of(&key_of(object)), noted);
    }

    /// The digest of what was applied of an object that still is that, as far as that is known without asking for it.
    pub(crate) fn find_standing<K>(&self, ledger: &Ledger<K>, namespace: &str, name: &str) -> Option<String>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (digest, version) = ledger.borne(namespace, name)?;
        let Some(version) = version else {
            return Some(digest);
        };
        let key = (K::kind(&()).into_owned(), namespace.to_owned(), name.to_owned());
        let noted = Reworded::new(&digest, Some(&version));
        (self.lock().get(&hash_of(&key)) == Some(&noted)).then_some(digest)
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
        self.lock().remove(&hash_of(&key_of(object)));
        let result = api.delete(&object.name_any(), &only(object)).await;
        accept_absence(result).map_err(|source| failed("deleting", object, source))
    }

    /// The same, of an object of which only the name is known. Says whether there is one that is picked.
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

    /// The same, of whatever has a name in a namespace.
    pub async fn delete_at<K>(&self, namespace: &str, name: &str) -> Result<bool, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let key = ObjectRef::new(name).within(namespace);
        self.delete_named(&api, &key, |_| true).await
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

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Reworded>> {
        // Each change is one insert or removal, so the map is whole after any panic.
        self.reworded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deletes the very object that was seen.
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
        // Conflict: another object of that name, which is not the one that was to go.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(source) => Err(source),
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

/// The same for the same value, as long as the process.
pub(crate) fn hash_of<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The same for the same object, in whatever process.
pub(crate) fn digest_of(wanted: &Value) -> String {
    HEXLOWER.encode(&Sha256::digest(wanted.to_string())[..8])
}

fn bears<K: Resource>(object: &K, digest: &str) -> bool {
    let borne = object.annotations().get(labels::APPLIED_DIGEST);
    borne.map(String::as_str) == Some(digest)
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
pub(crate) fn says<K: Serialize>(found: &K, wanted: &Value) -> bool {
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
