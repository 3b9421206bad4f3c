//! Reads objects that other clients write.
//!
//! An API server accepts more than a typed client can parse. Examples are a time in the year 9999
//! in `metadata.managedFields`, which every writer of the object can set, and fields there that are
//! nested deeper than a parser's limit. In a list or watch, one such object would make all others
//! unreadable. The API server also limits the bytes of an object, but not the number of its labels
//! or finalizers. Small values take many times their size in memory.
//!
//! ```text
//!  list, watch, get ─▶ Lenient<K> ─┬─ Ok(K), without managedFields
//!                                  └─ Err: reason, such as too many values, and the object's name
//! ```

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// Field of an object that is always skipped.
const SKIPPED_FIELD: &[&str] = &["metadata", "managedFields"];
/// Maximum number of values read of one object. Nested values count.
const VALUES_MAX: usize = 16_384;
/// Metadata fields that are read even of an object with too many values.
const IDENTITY: [&str; 4] = ["name", "namespace", "uid", "resourceVersion"];
/// Maximum length of a stored parser error, in bytes: it may repeat what another client wrote.
const ERROR_MAX: usize = 200;

/// An object from an API server, whether or not it can be parsed as a `K`.
#[derive(Clone, Debug)]
pub struct Lenient<K>(pub Result<K, Unreadable>);

/// An object that cannot be parsed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unreadable {
    /// Short reason.
    pub error: String,
    /// Metadata that can be read: name, namespace, UID and resourceVersion.
    pub metadata: Box<ObjectMeta>,
}

impl<K> Lenient<K> {
    /// The object, or the error that a client reports for an object it cannot parse.
    pub fn into_object(self) -> Result<K, kube::Error> {
        let object = self.0;
        object.map_err(|unreadable| kube::Error::SerdeError(serde::de::Error::custom(unreadable.error)))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let left = Cell::new(Some(VALUES_MAX));
        let object = Bounded::new(&left).deserialize(deserializer)?;
        let read = match left.get() {
            Some(_) => K::deserialize(&object).map_err(|error| clip(error.to_string())),
            None => Err(format!("the object has more than {VALUES_MAX} values")),
        };
        Ok(Self(read.map_err(|error| Unreadable {
            error,
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

/// Reads a value without [`SKIPPED_FIELD`], whatever that field contains: a parser skips it at any
/// depth. When the limit of values is reached, all further values are skipped too, except the
/// identity of the object.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    /// Number of values that may still be read. `None` once the limit is exceeded.
    left: &'a Cell<Option<usize>>,
    position: Position,
}

/// Position of a value in an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Object,
    Metadata,
    Identity,
    Elsewhere,
}

impl Position {
    /// Position of the field `key` of a value at this position.
    fn of(self, key: &str) -> Self {
        match self {
            Self::Object if key == SKIPPED_FIELD[0] => Self::Metadata,
            Self::Metadata if IDENTITY.contains(&key) => Self::Identity,
            _ => Self::Elsewhere,
        }
    }
}

impl<'a> Bounded<'a> {
    fn new(left: &'a Cell<Option<usize>>) -> Self {
        Self {
            left,
            position: Position::Object,
        }
    }

    /// How to read the value of a field. `None` to skip it.
    fn field(self, key: &str) -> Option<Self> {
        if self.position == Position::Metadata && key == SKIPPED_FIELD[1] {
            return None;
        }
        let position = self.position.of(key);
        let inner = Self { position, ..self };
        (inner.count_value() || position != Position::Elsewhere).then_some(inner)
    }

    /// Counts one value, and returns whether it may be read.
    fn count_value(self) -> bool {
        self.left.set(self.left.get().and_then(|left| left.checked_sub(1)));
        self.left.get().is_some()
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
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

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        let inner = Self {
            position: Position::Elsewhere,
            ..self
        };
        // The value that exceeds the limit is read and dropped.
        while let Some(value) = values.next_element_seed(inner)? {
            if !self.count_value() {
                while values.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
            kept.push(value);
        }
        Ok(Value::Array(kept))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            match self.field(&key) {
                Some(inner) => {
                    kept.insert(key, fields.next_value_seed(inner)?);
                }
                None => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
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
    fn managed_fields_are_ignored() {
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
    fn unreadable_object_keeps_its_identity() {
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
    fn object_with_too_many_values_is_refused() {
        let labels = |count: usize| -> Value {
            let labels = (0..count).map(|number| (format!("l{number}"), Value::from("")));
            Value::Object(labels.collect())
        };
        let many = json!(vec![""; VALUES_MAX]);
        let deep = json!({"a": [[], [{}, {"b": many}]]});
        for (rule, field, value, is_read) in [
            ("some labels", "labels", labels(16_000), true),
            ("too many", "labels", labels(VALUES_MAX), false),
            ("finalizers", "finalizers", many.clone(), false),
            ("what nobody reads", "managedFields", many.clone(), true),
            ("within others", "other", deep, false),
            ("a name", "name", many.clone(), false),
        ] {
            // The fields are sorted, as an API server returns them.
            let mut object: Value = serde_json::from_str(&cluster(&json!([]), &"v1.35.4".into())).unwrap();
            object["metadata"][field] = value;
            let read: Lenient<Cluster> = serde_json::from_str(&object.to_string()).unwrap();
            let metadata = match &read.0 {
                Ok(object) => &object.metadata,
                Err(unreadable) => &unreadable.metadata,
            };
            assert_eq!(read.0.is_ok(), is_read, "{rule}");
            assert_eq!(metadata.uid.as_deref(), Some("1"), "{rule}");
            assert_eq!(metadata.resource_version.as_deref(), Some("7"), "{rule}");
            if let Err(unreadable) = &read.0 {
                assert_eq!(unreadable.error, "the object has more than 16384 values", "{rule}");
                assert_eq!(unreadable.metadata.labels, None, "{rule}");
            }
        }
    }

    #[test]
    fn all_kinds_of_values_are_read() {
        let object = json!({"metadata": {"name": "a"}, "a": [null, true, 1, -1, 1.5, "x\n", {"b": []}]});
        let left = Cell::new(Some(VALUES_MAX));
        let mut text = serde_json::Deserializer::from_str(
            r#"{"metadata": {"name": "a", "managedFields": [1]},
            "a": [null, true, 1, -1, 1.5, "x\n", {"b": []}]}"#,
        );
        assert_eq!(Bounded::new(&left).deserialize(&mut text).unwrap(), object);
        assert_eq!(left.get(), Some(VALUES_MAX - 11));
    }

    #[test]
    fn unreadable_object_does_not_break_its_list() {
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
