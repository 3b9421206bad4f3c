//! Reads, writes and deletes one object in a tenant's API.
//!
//! Other clients write it too, and may make it large. Only the fields that are compared are
//! decoded.

use std::fmt;

use kube::api::{ApiResource, DeleteParams, DynamicObject, GetParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use kube::{Client, Resource as _, ResourceExt as _};
use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::host_api::comparison::is_part;
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::limits::{AnswerMax, limited};

/// Size limit of an answer about one object in bytes: the operator's own objects have a few
/// thousand.
const ANSWER_MAX: AnswerMax = AnswerMax(256 << 10);

/// Immutable fields by kind: a change requires another object.
const FIXED: [(&str, &str); 7] = [
    ("ClusterRoleBinding", "/roleRef"),
    ("EndpointSlice", "/addressType"),
    ("DaemonSet", "/spec/selector"),
    ("Deployment", "/spec/selector"),
    ("RoleBinding", "/roleRef"),
    ("Secret", "/type"),
    ("Service", "/spec/clusterIP"),
];

/// Endpoint of the objects of one kind and namespace.
pub(crate) struct Objects<'a> {
    client: &'a Client,
    what: &'static str,
    endpoint: Request,
}

impl<'a> Objects<'a> {
    /// Endpoint for the kind and namespace of this object. Errors call it `what`.
    pub(crate) fn of(client: &'a Client, what: &'static str, kind: &ApiResource, object: &DynamicObject) -> Self {
        let endpoint = Request::new(DynamicObject::url_path(kind, object.namespace().as_deref()));
        Self { client, what, endpoint }
    }

    /// Reads an object: its UID, its deletion timestamp, and the fields that `wanted` has.
    pub(crate) async fn find(&self, wanted: &DynamicObject) -> Result<Option<DynamicObject>, TenantApiError> {
        let request = self.endpoint.get(&wanted.name_any(), &GetParams::default());
        let text = match self.send(request).await {
            Err(error) if error.is_missing() => return Ok(None),
            text => text?,
        };
        let found = read_like(wanted, &text).map_err(|error| TenantApiError::Request {
            what: self.what,
            source: Box::new(kube::Error::SerdeError(error)),
        })?;
        Ok(Some(found))
    }

    /// Applies an object. `found` is its current state.
    pub(crate) async fn write(
        &self,
        wanted: &DynamicObject,
        found: Option<&DynamicObject>,
        params: &PatchParams,
    ) -> Result<(), TenantApiError> {
        let mut same = wanted.clone();
        // The UID prevents an apply to another object that has the name by now.
        same.metadata.uid = found.and_then(|found| found.uid());
        match (self.apply(&same, params).await, found) {
            // A tenant's admission rules refuse with the same code.
            (Err(error), Some(found)) if error.is_invalid() && needs_replacement(wanted, found) => {
                self.delete(found).await?;
                self.apply(wanted, params).await
            }
            (applied, _) => applied,
        }
    }

    /// Deletes an object, with its UID as a precondition.
    pub(crate) async fn delete(&self, found: &DynamicObject) -> Result<(), TenantApiError> {
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: found.uid(),
            resource_version: None,
        });
        let request = self.endpoint.delete(&found.name_any(), &params);
        self.send(request).await.map(|_| ())
    }

    async fn apply(&self, object: &DynamicObject, params: &PatchParams) -> Result<(), TenantApiError> {
        let request = self.endpoint.patch(&object.name_any(), params, &Patch::Apply(object));
        self.send(request).await.map(|_| ())
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String, TenantApiError> {
        limited(self.what, async {
            let mut request = request.map_err(kube::Error::BuildRequest)?;
            request.extensions_mut().insert(ANSWER_MAX);
            self.client.request_text(request).await
        })
        .await
    }
}

/// Returns whether `found` contains all of `wanted`.
pub(crate) fn matches_desired<K: Serialize>(wanted: &K, found: &K) -> bool {
    match (serde_json::to_value(wanted), serde_json::to_value(found)) {
        (Ok(wanted), Ok(found)) => is_part(&wanted, &found),
        _ => false,
    }
}

fn needs_replacement(wanted: &DynamicObject, found: &DynamicObject) -> bool {
    let kind = wanted.types.as_ref().map_or("", |types| &types.kind);
    let mut fields = FIXED.iter().filter(|(of_kind, _)| *of_kind == kind);
    fields.any(
        |(_, field)| match (wanted.data.pointer(field), found.data.pointer(field)) {
            (Some(wanted), Some(found)) => !is_part(wanted, found),
            _ => false,
        },
    )
}

fn read_like(wanted: &DynamicObject, text: &str) -> Result<DynamicObject, serde_json::Error> {
    let mut like = serde_json::to_value(wanted)?;
    for field in ["uid", "deletionTimestamp"] {
        like["metadata"][field] = Value::Null;
    }
    let mut parser = serde_json::Deserializer::from_str(text);
    serde_json::from_value(Like(&like).deserialize(&mut parser)?)
}

/// Deserializes only the fields that another value has too. A longer list is cut after one extra
/// entry.
struct Like<'a>(&'a Value);

impl<'de> DeserializeSeed<'de> for Like<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Like<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        for like in self.0.as_array().into_iter().flatten() {
            match entries.next_element_seed(Like(like))? {
                Some(entry) => values.push(entry),
                None => return Ok(values.into()),
            }
        }
        let mut is_longer = false;
        while entries.next_element::<IgnoredAny>()?.is_some() {
            is_longer = true;
        }
        values.extend(is_longer.then_some(Value::Null));
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            match self.0.get(&key) {
                Some(like) => {
                    let value = fields.next_value_seed(Like(like))?;
                    object.insert(key, value);
                }
                None => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(mut value: Value) -> DynamicObject {
        value["apiVersion"] = "apps/v1".into();
        value["metadata"]["name"] = "a".into();
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn fields_that_a_server_adds_make_no_difference() {
        let wanted = json!({"roleRef": {"name": "role"}, "subjects": [{"kind": "Group", "name": "group"}]});
        let mut found = wanted.clone();
        found["metadata"] = json!({"uid": "1"});
        assert!(is_part(&wanted, &found));
        found["subjects"][0]["name"] = "other".into();
        assert!(!is_part(&wanted, &found));
        let mut longer = wanted.clone();
        longer["subjects"] = json!([wanted["subjects"][0], wanted["subjects"][0]]);
        assert!(!is_part(&wanted, &longer));
    }

    #[test]
    fn only_the_compared_fields_are_decoded() {
        let wanted = object(json!({"kind": "DaemonSet", "metadata": {"labels": {"app": "a"}},
            "spec": {"list": [{"name": "x"}], "none": {"a": 1}, "text": "x", "number": 2}}));
        let entry = json!({"name": "x", "more": "y"});
        let many: Vec<_> = std::iter::repeat_n(entry, 5000).collect();
        let deep = format!("{}1{}", "[".repeat(2000), "]".repeat(2000));
        let text = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "status": many, "far": "DEEP",
            "metadata": {"name": "a", "uid": "7", "managedFields": [{"time": "9999-12-31T23:59:59Z"}],
                "labels": {"app": "b", "other": "c"}, "annotations": {"a": "b"}},
            "spec": {"list": many, "none": many, "text": {"a": many}, "number": 2}});
        let text = text.to_string().replace(r#""DEEP""#, &deep);
        let found = serde_json::to_value(read_like(&wanted, &text).unwrap()).unwrap();
        let expected = json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "a", "uid": "7", "labels": {"app": "b"}},
            "spec": {"list": [{"name": "x"}, null], "none": [null], "text": {}, "number": 2}});
        assert_eq!(found, expected);
    }

    #[test]
    fn a_change_of_an_immutable_field_needs_a_replacement() {
        for (kind, wanted, found, expected) in [
            (
                "ClusterRoleBinding",
                json!({"roleRef": {"name": "a"}}),
                json!({"roleRef": {"name": "b"}}),
                true,
            ),
            (
                "ClusterRoleBinding",
                json!({"subjects": [1]}),
                json!({"subjects": [2]}),
                false,
            ),
            (
                "EndpointSlice",
                json!({"addressType": "IPv4"}),
                json!({"addressType": "IPv6"}),
                true,
            ),
            (
                "DaemonSet",
                json!({"spec": {"selector": {"a": "b"}}}),
                json!({"spec": {"selector": {"a": "c"}}}),
                true,
            ),
            (
                "DaemonSet",
                json!({"spec": {"template": 1}}),
                json!({"spec": {"template": 2}}),
                false,
            ),
            (
                "Service",
                json!({"spec": {"clusterIP": "10.0.0.1"}}),
                json!({"spec": {"clusterIP": "None"}}),
                true,
            ),
            (
                "Service",
                json!({"spec": {"selector": {"a": "b"}}}),
                json!({"spec": {"selector": {"a": "c"}}}),
                false,
            ),
        ] {
            let with_kind = |mut value: Value| {
                value["kind"] = kind.into();
                object(value)
            };
            let rule = format!("{kind} {wanted} {found}");
            assert_eq!(
                needs_replacement(&with_kind(wanted), &with_kind(found)),
                expected,
                "{rule}"
            );
        }
    }
}
