//! ConfigMap → [`Base`]: parses Envoy's messages from protobuf's JSON mapping, written as YAML.
//! Pure.
//!
//! The message types come from descriptors of the same version as the crate with Envoy's types
//! (`cargo xtask descriptors`), because those types do not support JSON. Unknown fields are
//! rejected, as Envoy rejects them in its own files.

use k8s_openapi::api::core::v1::ConfigMap;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, Value as Field};
use serde_json::Value;

use super::resources::Base;
use super::restrictions::{RestrictionError, check_restrictions};
use crate::snapshot::resource::{Resource, ResourceKind, to_version};

const DESCRIPTORS: &[u8] = include_bytes!("../../envoy/descriptors.binpb");
const TYPE: &str = "@type";
const TYPE_PREFIX: &str = "type.googleapis.com/";
/// Keys of the ConfigMap: resource type, message type, and the field with the name. Clusters come
/// before their endpoints.
const KEYS: [(&str, ResourceKind, &str, &str); 4] = [
    (
        "clusters",
        ResourceKind::Cluster,
        "envoy.config.cluster.v3.Cluster",
        "name",
    ),
    (
        "endpoints",
        ResourceKind::Endpoints,
        "envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name",
    ),
    (
        "listeners",
        ResourceKind::Listener,
        "envoy.config.listener.v3.Listener",
        "name",
    ),
    (
        "routes",
        ResourceKind::Routes,
        "envoy.config.route.v3.RouteConfiguration",
        "name",
    ),
];

/// Why a base configuration is not served.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// An unknown key: probably a typing error, and its content would be ignored silently.
    #[error("the key {0} is unknown; allowed are clusters, endpoints, listeners and routes")]
    Key(String),
    /// The text is not YAML.
    #[error("reading the key {key}: it must be a list in YAML or JSON")]
    Text {
        /// Key of the ConfigMap.
        key: &'static str,
        /// The parse error.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A member has another type than the key requires.
    #[error("{key}[{index}] is not {expected}")]
    Type {
        /// Key of the ConfigMap.
        key: &'static str,
        /// Index in the list.
        index: usize,
        /// The required message type.
        expected: &'static str,
    },
    /// A member is not a valid message of its type.
    #[error("reading {key}[{index}]")]
    Message {
        /// Key of the ConfigMap.
        key: &'static str,
        /// Index in the list.
        index: usize,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// A member has no name.
    #[error("{key}[{index}] has no name")]
    Nameless {
        /// Key of the ConfigMap.
        key: &'static str,
        /// Index in the list.
        index: usize,
    },
    /// Two members have the same name.
    #[error("{key} contains {name} twice")]
    Twice {
        /// Key of the ConfigMap.
        key: &'static str,
        /// The duplicate name.
        name: String,
    },
    /// A member uses something that is reserved.
    #[error("{key} {name}")]
    Restricted {
        /// Key of the ConfigMap.
        key: &'static str,
        /// Name of the member.
        name: String,
        /// The reserved thing that it uses.
        #[source]
        source: RestrictionError,
    },
}

/// Parses a base configuration. `ports` are the ports of Envoy's bootstrap.
pub fn read(map: &ConfigMap, ports: &[u16]) -> Result<Base, BaseError> {
    if map.data.is_none() && map.binary_data.is_none() {
        return Ok(Base::default());
    }
    // The descriptors are large, and each change needs them only for a moment.
    read_with(&decode_pool(), map, ports)
}

pub(super) fn decode_pool() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTORS).expect("the descriptors are whole: a test reads them")
}

pub(super) fn read_with(pool: &DescriptorPool, map: &ConfigMap, ports: &[u16]) -> Result<Base, BaseError> {
    let data = map.data.clone().unwrap_or_default();
    let binary = map.binary_data.clone().unwrap_or_default();
    let is_read = |key: &&String| KEYS.iter().any(|(known, ..)| known == key) && !binary.contains_key(*key);
    if let Some(key) = data.keys().chain(binary.keys()).find(|key| !is_read(key)) {
        return Err(BaseError::Key(key.clone()));
    }
    let mut base = Base::default();
    // Envoy needs the endpoints again when a Cluster changes, so their version includes the
    // Clusters' content: see `ads`.
    let clusters = data.get("clusters").map_or("", String::as_str);
    for (key, kind, expected, name_field) in KEYS {
        let Some(text) = data.get(key).filter(|text| !text.trim().is_empty()) else {
            continue;
        };
        let message = pool.get_message_by_name(expected).expect("the descriptors have it");
        let salt = if kind == ResourceKind::Endpoints { clusters } else { "" };
        let members: Option<Vec<Value>> = serde_saphyr::from_str(text).map_err(|source| BaseError::Text {
            key,
            source: Box::new(source),
        })?;
        for (index, member) in members.unwrap_or_default().into_iter().enumerate() {
            let (json, body) = to_message(member, key, index, expected, &message)?;
            let name = body.get_field_by_name(name_field);
            let name = name.as_deref().and_then(Field::as_str).unwrap_or_default().to_owned();
            if name.is_empty() {
                return Err(BaseError::Nameless { key, index });
            }
            let body = body.encode_to_vec();
            check_restrictions(kind, &name, &json, &body, ports).map_err(|source| BaseError::Restricted {
                key,
                name: name.clone(),
                source,
            })?;
            let resource = Resource {
                // Hash of the JSON text, in which keys are ordered; a map in an encoded message has
                // no order.
                version: to_version(&[json.to_string().as_bytes(), salt.as_bytes()]),
                body: body.into(),
            };
            if !base.add(kind, &name, resource) {
                return Err(BaseError::Twice { key, name });
            }
        }
    }
    Ok(base)
}

fn to_message(
    mut member: Value,
    key: &'static str,
    index: usize,
    expected: &'static str,
    message: &MessageDescriptor,
) -> Result<(Value, DynamicMessage), BaseError> {
    let wrong = BaseError::Type { key, index, expected };
    let Value::Object(fields) = &mut member else {
        return Err(wrong);
    };
    let given = fields.remove(TYPE);
    if given.is_some_and(|given| given.as_str().and_then(|given| given.strip_prefix(TYPE_PREFIX)) != Some(expected)) {
        return Err(wrong);
    }
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let body = DynamicMessage::deserialize_with_options(message.clone(), &member, &options)
        .map_err(|source| BaseError::Message { key, index, source })?;
    Ok((member, body))
}
