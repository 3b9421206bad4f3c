//! The kinds and objects of a fleet. A number always produces the same bytes.

use serde::Deserialize;
use serde_json::{Value, json};

/// Path for creating CRDs.
pub(super) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Path for creating namespaces.
pub(super) const NAMESPACES: &str = "/api/v1/namespaces";
/// Number of kinds in an API group.
const IN_GROUP: u64 = 50;
/// Number of fields in the schema of a kind. Makes a CRD of about 10 KiB.
const FIELDS: u64 = 60;
/// Number of fields that are set in an object, each to a text of `LETTERS` letters. With the API
/// server's metadata, a stored object has 1 KiB.
const FILLED: u64 = 6;
const LETTERS: usize = 40;

/// Size of the fleet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fleet {
    /// Number of CRDs.
    pub(super) kinds: u64,
    /// Number of objects of all kinds together.
    pub(super) objects: u64,
    /// Number of namespaces that contain the objects.
    pub(super) namespaces: u64,
}

impl Fleet {
    /// The path below which object `number` is created, and its JSON. Consecutive numbers belong to
    /// different kinds.
    pub(super) fn object(self, number: u64) -> (String, Vec<u8>) {
        let (kind, namespace) = self.place(number);
        let path = format!("/apis/{}/v1/namespaces/{namespace}/{}", group(kind), plural(kind));
        (path, self.json(number).to_string().into_bytes())
    }

    /// The etcd key under which kube-apiserver stores object `number`.
    pub(super) fn key(self, number: u64) -> String {
        let (kind, namespace) = self.place(number);
        format!(
            "/registry/{}/{}/{namespace}/{}",
            group(kind),
            plural(kind),
            name(number)
        )
    }

    /// Kind and namespace of object `number`.
    fn place(self, number: u64) -> (u64, String) {
        let namespace = number / self.kinds % self.namespaces;
        (number % self.kinds, format!("ns-{namespace}"))
    }

    pub(super) fn json(self, number: u64) -> Value {
        let (kind, namespace) = self.place(number);
        let fields = (0..FILLED).map(|field| (field_name(field), json!(letters(number * FILLED + field))));
        let labels = json!({"fleet.example/owner": format!("owner-{}", number % 97)});
        json!({
            "apiVersion": format!("{}/v1", group(kind)),
            "kind": kind_name(kind),
            "metadata": {"name": name(number), "namespace": namespace, "labels": labels},
            "spec": {"forProvider": Value::Object(fields.collect()), "providerConfigRef": {"name": "default"}},
        })
    }

    /// The path that lists the objects of a kind in all namespaces.
    pub(super) fn list(kind: u64) -> String {
        format!("/apis/{}/v1/{}", group(kind), plural(kind))
    }

    /// The path that reads one object of a kind, if there is one, from the kind's watch cache.
    /// While the cache is not loaded, the API server rejects a list that has a selector and no
    /// limit with 429 (`ResilientWatchCacheInitialization`, Kubernetes 1.35).
    pub(super) fn cached(kind: u64) -> String {
        format!(
            "{}?resourceVersion=0&fieldSelector=metadata.name%3D{}",
            Self::list(kind),
            name(kind)
        )
    }
}

/// The fields of a CRD that the benchmark reads.
#[derive(Deserialize)]
pub(super) struct Crd {
    #[serde(default)]
    status: CrdStatus,
}

#[derive(Default, Deserialize)]
struct CrdStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl Crd {
    /// Whether the condition `Established` is true.
    pub(super) fn is_established(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|condition| condition.r#type == "Established" && condition.status == "True")
    }
}

/// The path of a kind's CRD.
pub(super) fn crd_path(kind: u64) -> String {
    format!("{CRDS}/{}.{}", plural(kind), group(kind))
}

/// The CRD of a kind.
pub(super) fn crd(kind: u64) -> Vec<u8> {
    let fields = (0..FIELDS).map(|field| {
        let description = format!(
            "Field {field} of the resource as its provider knows it. {}",
            letters(field)
        );
        (
            field_name(field),
            json!({"type": "string", "description": description, "maxLength": 4096}),
        )
    });
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let spec = object(json!({
        "forProvider": object(Value::Object(fields.collect())),
        "providerConfigRef": object(json!({"name": {"type": "string"}})),
    }));
    let schema =
        object(json!({"spec": spec, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}));
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", plural(kind), group(kind))},
        "spec": {
            "group": group(kind),
            "scope": "Namespaced",
            "names": {"kind": kind_name(kind), "plural": plural(kind)},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    });
    crd.to_string().into_bytes()
}

pub(super) fn namespace(number: u64) -> Vec<u8> {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("ns-{number}")}});
    object.to_string().into_bytes()
}

fn group(kind: u64) -> String {
    format!("group-{}.fleet.example", kind / IN_GROUP)
}

fn kind_name(kind: u64) -> String {
    format!("Resource{kind}")
}

fn plural(kind: u64) -> String {
    format!("resource{kind}s")
}

fn name(number: u64) -> String {
    format!("object-{number:07}")
}

fn field_name(field: u64) -> String {
    format!("field{field:02}")
}

/// A text of letters that does not compress well.
fn letters(seed: u64) -> String {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let letter = || {
        // An xorshift generator.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'a' + (state >> 32) as u8 % 26)
    };
    std::iter::repeat_with(letter).take(LETTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: Fleet = Fleet {
        kinds: 60,
        objects: 1000,
        namespaces: 3,
    };

    #[test]
    fn kinds_take_turns_and_then_namespaces() {
        for (number, path) in [
            (0, "/apis/group-0.fleet.example/v1/namespaces/ns-0/resource0s"),
            (59, "/apis/group-1.fleet.example/v1/namespaces/ns-0/resource59s"),
            (60, "/apis/group-0.fleet.example/v1/namespaces/ns-1/resource0s"),
            (180, "/apis/group-0.fleet.example/v1/namespaces/ns-0/resource0s"),
        ] {
            assert_eq!(FLEET.object(number).0, path);
        }
    }

    #[test]
    fn an_object_has_fields_of_its_schema_only() {
        let object: Value = serde_json::from_slice(&FLEET.object(7).1).unwrap();
        let crd: Value = serde_json::from_slice(&crd(7)).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        let fields = object["spec"]["forProvider"].as_object().unwrap();
        assert_eq!(fields.len(), 6);
        for name in fields.keys() {
            assert!(schema["forProvider"]["properties"][name].is_object(), "{name}");
        }
    }

    #[test]
    fn a_crd_is_established_when_its_condition_says_so() {
        for (crd, expected) in [
            (json!({}), false),
            (
                json!({"status": {"conditions": [{"type": "NamesAccepted", "status": "True"}]}}),
                false,
            ),
            (
                json!({"status": {"conditions": [{"type": "Established", "status": "False"}]}}),
                false,
            ),
            (
                json!({"status": {"conditions": [{"type": "Established", "status": "True"}]}}),
                true,
            ),
        ] {
            assert_eq!(serde_json::from_value::<Crd>(crd).unwrap().is_established(), expected);
        }
    }
}
