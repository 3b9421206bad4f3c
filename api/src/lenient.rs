//! Reading objects that others write.
//!
//! An API server takes more than a typed client can read: a time in the year 9999 in `metadata.managedFields`, which everybody
//! may write who may write the object, is one, and fields there that lie deeper than a parser goes are another. In a list or a
//! watch, one such object would keep all others from being read.
//!
//! ```text
//!  list, watch, get ─▶ Lenient<K> ─┬─ Ok(K), without managedFields
//!                                  └─ Err: why not, and whose name it has
//! ```

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// The part of an object that nobody here reads.
const SKIPPED: &[&str] = &["metadata", "managedFields"];
/// Bytes of a parser's words that are kept: they may repeat what somebody else wrote.
const ERROR_MAX: usize = 200;

/// An object as an API server shows it, whether or not it can be read as a `K`.
#[derive(Clone, Debug)]
pub struct Lenient<K>(pub Result<K, Unreadable>);

/// An object that cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unreadable {
    /// Why not, in few words.
    pub error: String,
    /// What can be read of its metadata: name, namespace, UID and version.
    pub metadata: Box<ObjectMeta>,
}

impl<K> Lenient<K> {
    /// The object, or the error of a client that cannot read it.
    pub fn into_object(self) -> Result<K, kube::Error> {
        let object = self.0;
        object.map_err(|unreadable| kube::Error::SerdeError(serde::de::Error::custom(unreadable.error)))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Without(SKIPPED).deserialize(deserializer)?;
        Ok(Self(K::deserialize(&object).map_err(|error| Unreadable {
            error: clip(error.to_string()),
            metadata: Box::new(read_metadata(&object)),
        })))
    }
}

impl<K: Serialize> Serialize for Lenient<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(unreadable) => Err(serde::ser::Error::custom(&unreadable.error)),
        }
    }
}

impl<K: Resource> Resource for Lenient<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unreadable| &*unreadable.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0
            .as_mut()
            .map_or_else(|unreadable| &mut *unreadable.metadata, K::meta_mut)
    }
}

/// Reads a value without the field at this path, however that one looks: a parser skips it at any depth.
struct Without<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for Without<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Without<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let value = match self.0 {
                [skipped] if *skipped == key => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                [outer, inner @ ..] if !inner.is_empty() && *outer == key => fields.next_value_seed(Without(inner))?,
                _ => fields.next_value()?,
            };
            kept.insert(key, value);
        }
        Ok(Value::Object(kept))
    }
}

fn read_metadata(object: &Value) -> ObjectMeta {
    let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    }
}

fn clip(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(ERROR_MAX));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Cluster;

    fn cluster(managed: &Value, version: &Value) -> String {
        let object = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "a", "namespace": "t", "uid": "1", "resourceVersion": "7", "managedFields": managed},
            "spec": {"version": version}});
        object.to_string()
    }

    #[test]
    fn fields_that_nobody_reads_are_no_reason() {
        let deep = format!("{}1{}", r#"{"f:a":"#.repeat(2000), "}".repeat(2000));
        let far = json!([{"manager": "m", "time": "9999-12-31T23:59:59Z"}]);
        for (rule, managed) in [("a time far away", far.to_string()), ("fields without end", deep)] {
            let text = cluster(&"X".into(), &"v1.35.4".into()).replace(r#""X""#, &managed);
            assert!(serde_json::from_str::<Cluster>(&text).is_err(), "{rule}");
            let read: Lenient<Cluster> = serde_json::from_str(&text).unwrap();
            let object = read.0.unwrap();
            assert_eq!(object.spec.version.as_deref(), Some("v1.35.4"), "{rule}");
            assert_eq!(object.metadata.managed_fields, None, "{rule}");
        }
    }

    #[test]
    fn of_what_cannot_be_read_the_name_is_known() {
        let long = json!(["x".repeat(5000)]);
        let read: Lenient<Cluster> = serde_json::from_str(&cluster(&json!([]), &long)).unwrap();
        let unreadable = read.0.unwrap_err();
        assert!(unreadable.error.len() <= ERROR_MAX, "{}", unreadable.error);
        let metadata = &unreadable.metadata;
        assert_eq!(
            (metadata.name.as_deref(), metadata.namespace.as_deref()),
            (Some("a"), Some("t"))
        );
        assert_eq!(
            (metadata.uid.as_deref(), metadata.resource_version.as_deref()),
            (Some("1"), Some("7"))
        );
    }

    #[test]
    fn one_of_a_list_does_not_take_the_others_with_it() {
        let list = format!(
            r#"{{"kind":"ClusterList","apiVersion":"v1","metadata":{{"resourceVersion":"9"}},"items":[{},{},{{}}]}}"#,
            cluster(&json!([{"time": "9999-12-31T23:59:59Z"}]), &"v1.35.4".into()),
            cluster(&json!([]), &json!({}))
        );
        let list: kube::core::ObjectList<Lenient<Cluster>> = serde_json::from_str(&list).unwrap();
        let read: Vec<_> = list.items.iter().map(|item| item.0.is_ok()).collect();
        assert_eq!(read, [true, false, false]);
    }
}
