//! Builds objects as kube-apiserver stores them, so that a store can be filled without it.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use serde_json::{Value, json};

use super::objects::Fleet;
use crate::client::Client;

/// The stored form of the first object of each kind. The other objects differ only in name,
/// namespace, labels and spec.
pub(super) struct Stored {
    fleet: Fleet,
    firsts: Vec<Value>,
}

impl Stored {
    /// Reads the first objects, which kube-apiserver has created.
    pub(super) async fn read(store: &Client, fleet: Fleet) -> Result<Self> {
        let mut firsts = Vec::new();
        for kind in 0..fleet.kinds {
            let key = fleet.key(kind);
            let bytes = store
                .value(&key)
                .await?
                .with_context(|| format!("{key} is not stored"))?;
            firsts.push(serde_json::from_slice(&bytes).with_context(|| format!("reading {key}"))?);
        }
        Ok(Self { fleet, firsts })
    }

    /// Key and value of an object. Timestamps and `managedFields` are those of the first object of
    /// its kind.
    pub(super) fn object(&self, number: u64) -> (String, Bytes) {
        let mut stored = self.firsts[(number % self.fleet.kinds) as usize].clone();
        let mut object = self.fleet.json(number);
        for field in ["name", "namespace", "labels"] {
            stored["metadata"][field] = object["metadata"][field].take();
        }
        stored["metadata"]["uid"] = json!(format!("{number:08x}-0000-4000-8000-{number:012x}"));
        stored["spec"] = object["spec"].take();
        (self.fleet.key(number), format!("{stored}\n").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_the_first_of_its_kind_under_another_name() {
        let fleet = Fleet {
            kinds: 2,
            objects: 10,
            namespaces: 3,
        };
        let first = |kind: u64| {
            let mut object = fleet.json(kind);
            object["metadata"]["uid"] = json!("first");
            object["metadata"]["generation"] = json!(1);
            object
        };
        let stored = Stored {
            fleet,
            firsts: vec![first(0), first(1)],
        };
        let (key, value) = stored.object(3);
        assert_eq!(key, "/registry/group-0.fleet.example/resource1s/ns-1/object-0000003");
        let mut expected = fleet.json(3);
        expected["metadata"]["uid"] = json!("00000003-0000-4000-8000-000000000003");
        expected["metadata"]["generation"] = json!(1);
        assert_eq!(serde_json::from_slice::<Value>(&value).unwrap(), expected);
    }
}
