//! Objects as kube-apiserver stores them.

use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::{Map, Value, json};
use yoke_operator::testing::host_api::apply;

/// The field manager of the operator's Cluster controller.
const MANAGER: &str = "yoke-operator/cluster";

/// An object and its etcd key.
pub(crate) struct Stored {
    pub(crate) key: String,
    pub(crate) value: Value,
}

impl Stored {
    /// An object that the operator has applied.
    pub(crate) fn applied<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Self {
        let mut value = to_value(object);
        apply::seal(&mut value);
        Self::new(object, value)
    }

    /// An object that was created and never applied.
    pub(crate) fn made<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Self {
        Self::new(object, to_value(object))
    }

    fn new<K: Resource<DynamicType = ()>>(object: &K, mut value: Value) -> Self {
        let fields = to_fields(&value);
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let key = to_key(object);
        let metadata = &mut value["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = draw_uid().into();
        }
        metadata["creationTimestamp"] = now.clone().into();
        metadata["generation"] = 1.into();
        metadata["managedFields"] = json!([{
            "manager": MANAGER, "operation": "Apply", "apiVersion": K::api_version(&()), "time": now,
            "fieldsType": "FieldsV1", "fieldsV1": fields,
        }]);
        Self { key, value }
    }

    /// Adds fields that other clients have written.
    pub(crate) fn with(mut self, more: Value) -> Self {
        merge(&mut self.value, more);
        self
    }
}

fn to_value<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).expect("typed Kubernetes objects have string keys only")
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// The key below `/registry/` that kube-apiserver uses. Keys of built-in resources do not contain
/// the API group.
fn to_key<K: Resource<DynamicType = ()>>(object: &K) -> String {
    let (group, plural, name) = (K::group(&()), K::plural(&()), object.name_any());
    let place = match plural.as_ref() {
        "services" => "services/specs".to_owned(),
        plural if group.ends_with("yoke.drzzl.io") || group.ends_with("cert-manager.io") => format!("{group}/{plural}"),
        plural => plural.to_owned(),
    };
    match object.namespace() {
        Some(namespace) => format!("/registry/{place}/{namespace}/{name}"),
        None => format!("/registry/{place}/{name}"),
    }
}

/// Approximate `managedFields`: each field, and each list item that has a name.
fn to_fields(value: &Value) -> Value {
    let mut fields = Map::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "name", "namespace"].contains(&key.as_str()) {
            fields.insert(format!("f:{key}"), to_owned_fields(value));
        }
    }
    Value::Object(fields)
}

fn to_owned_fields(value: &Value) -> Value {
    let mut fields = Map::new();
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                fields.insert(format!("f:{key}"), to_owned_fields(value));
            }
        }
        Value::Array(items) => {
            for item in items {
                if let Some(name) = item.get("name") {
                    fields.insert(format!("k:{}", json!({"name": name})), to_owned_fields(item));
                }
            }
        }
        _ => {}
    }
    Value::Object(fields)
}

/// A random UID.
pub(crate) fn draw_uid() -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = || std::hash::RandomState::new().build_hasher().finish();
    let (high, low) = (random(), random());
    let mut text = format!("{high:016x}{low:016x}");
    for at in [8, 13, 18, 23] {
        text.insert(at, '-');
    }
    text
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Namespace, Service};
    use yoke_api::Cluster;

    use super::*;

    #[test]
    fn objects_are_where_kube_apiserver_looks() {
        let mut service = Service::default();
        service.metadata.name = Some("a".into());
        service.metadata.namespace = Some("n".into());
        assert_eq!(to_key(&service), "/registry/services/specs/n/a");
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some("n".into());
        assert_eq!(to_key(&namespace), "/registry/namespaces/n");
        let mut cluster = Cluster::new("c", Default::default());
        cluster.metadata.namespace = Some("t".into());
        assert_eq!(to_key(&cluster), "/registry/yoke.drzzl.io/clusters/t/c");
    }

    #[test]
    fn fields_are_those_that_are_said() {
        let value = json!({"kind": "X", "metadata": {"name": "a", "labels": {"b": "c"}}, "spec": {"l": [{"name": "d", "e": 1}, 2]}});
        let expected = json!({"f:metadata": {"f:name": {}, "f:labels": {"f:b": {}}},
            "f:spec": {"f:l": {"k:{\"name\":\"d\"}": {"f:name": {}, "f:e": {}}}}});
        assert_eq!(to_fields(&value), expected);
    }

    #[test]
    fn uids_look_like_uids() {
        let uid = draw_uid();
        assert_eq!(uid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    }
}
