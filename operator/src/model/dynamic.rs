//! Typed objects as untyped ones, for APIs whose kinds are known only at run time. Pure.

use kube::api::DynamicObject;
use serde::Serialize;

/// Converts a typed Kubernetes object to a dynamic one.
pub(crate) fn to_dynamic<K: Serialize>(object: &K) -> DynamicObject {
    let value = serde_json::to_value(object).expect("typed Kubernetes objects have string keys only");
    serde_json::from_value(value).expect("a typed object has a kind and metadata")
}
