//! What is known of objects that are applied and not read: a line each, in place of the object, of which there are ten and more
//! for each Cluster.
//!
//! A line says whether the object bears the digest of what was applied of it, and whether it is that. Who has to know more asks
//! the host API.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;
use yoke_api::labels;

use crate::apply::{Known, Sight, digest_of};

/// Lines of all objects of one kind.
#[derive(Debug)]
pub struct Ledger<K> {
    lines: Arc<RwLock<Lines>>,
    is_listed: watch::Receiver<bool>,
    kind: PhantomData<fn() -> K>,
}

/// Writes them, for the watch of that kind.
#[derive(Debug)]
pub(crate) struct Scribe<K> {
    lines: Arc<RwLock<Lines>>,
    is_listed: watch::Sender<bool>,
    /// What a list that is being read has brought up to now.
    listed: Lines,
    read_names: fn(&K) -> &[String],
}

/// The watch has ended before its first list.
#[derive(Debug, thiserror::Error)]
#[error("what was to come is dropped")]
pub struct Ended;

/// By `NAMESPACE/NAME`.
type Lines = HashMap<Box<str>, Line>;

#[derive(Clone, Debug)]
struct Line {
    /// The digest that the object bears.
    digest: Option<Box<str>>,
    /// Whether it is what that is the digest of.
    is_so: bool,
    version: Box<str>,
    /// The identity that it is labelled with.
    id: Option<Box<str>>,
    names: Box<[Box<str>]>,
}

impl<K> Clone for Ledger<K> {
    fn clone(&self) -> Self {
        Self {
            lines: Arc::clone(&self.lines),
            is_listed: self.is_listed.clone(),
            kind: PhantomData,
        }
    }
}

/// An empty ledger. `read_names` are names that an object has and others may look for.
pub(crate) fn open<K>(read_names: fn(&K) -> &[String]) -> (Ledger<K>, Scribe<K>) {
    let lines = Arc::new(RwLock::default());
    let (sender, is_listed) = watch::channel(false);
    let ledger = Ledger {
        lines: Arc::clone(&lines),
        is_listed,
        kind: PhantomData,
    };
    let scribe = Scribe {
        lines,
        is_listed: sender,
        listed: Lines::new(),
        read_names,
    };
    (ledger, scribe)
}

impl<K> Ledger<K> {
    /// Waits until it holds the first list.
    pub(crate) async fn wait_until_listed(&self) -> Result<(), Ended> {
        let mut is_listed = self.is_listed.clone();
        is_listed
            .wait_for(|is_listed| *is_listed)
            .await
            .map(|_| ())
            .map_err(|_| Ended)
    }

    /// Whether there is an object.
    pub(crate) fn has(&self, namespace: &str, name: &str) -> bool {
        self.read().contains_key(to_key(namespace, name).as_str())
    }

    /// The names that an object has; none if it is not there.
    pub(crate) fn names(&self, namespace: &str, name: &str) -> Vec<String> {
        let lines = self.read();
        let line = lines.get(to_key(namespace, name).as_str());
        line.iter()
            .flat_map(|line| &line.names)
            .map(ToString::to_string)
            .collect()
    }

    /// Names of the objects in a namespace that are labelled with an identity, in order.
    pub(crate) fn find(&self, namespace: &str, id: &str) -> Vec<String> {
        let lines = self.read();
        let of_id = lines.iter().filter(|(_, line)| line.id.as_deref() == Some(id));
        let mut names: Vec<_> = of_id
            .filter_map(|(key, _)| key.split_once('/'))
            .filter(|(own, _)| *own == namespace)
            .map(|(_, name)| name.to_owned())
            .collect();
        names.sort();
        names
    }

    fn read(&self) -> RwLockReadGuard<'_, Lines> {
        // Each line is whole by itself.
        self.lines.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource<DynamicType = ()>> Known<K> for Ledger<K> {
    fn compare(&self, object: &K, _: &Value, digest: &str) -> Sight {
        let key = to_key(&object.namespace().unwrap_or_default(), &object.name_any());
        match self.read().get(key.as_str()) {
            Some(line) if line.digest.as_deref() != Some(digest) => Sight::Other,
            Some(line) if line.is_so => Sight::Applied,
            Some(line) => Sight::Unread(line.version.to_string()),
            None => Sight::Other,
        }
    }
}

impl<K: Resource<DynamicType = ()> + Serialize> Scribe<K> {
    /// Notes what the watch has seen.
    pub(crate) fn note(&mut self, event: &Event<K>) {
        match event {
            Event::Init => self.listed = Lines::new(),
            Event::InitApply(object) => {
                self.listed.insert(key_of(object), self.to_line(object));
            }
            Event::InitDone => {
                let mut listed = std::mem::take(&mut self.listed);
                listed.shrink_to_fit();
                *self.write() = listed;
                self.is_listed.send_replace(true);
            }
            Event::Apply(object) => {
                let line = self.to_line(object);
                self.write().insert(key_of(object), line);
            }
            Event::Delete(object) => {
                self.write().remove(&key_of(object));
            }
        }
    }

    /// Strikes out an object that is gone, and cannot be read.
    pub(crate) fn strike(&mut self, namespace: &str, name: &str) {
        self.write().remove(to_key(namespace, name).as_str());
    }

    fn to_line(&self, object: &K) -> Line {
        let meta = object.meta();
        let digest = object.annotations().get(labels::APPLIED_DIGEST);
        Line {
            is_so: digest.is_some_and(|digest| *digest == digest_of(&to_applied(object))),
            digest: digest.map(|digest| digest.as_str().into()),
            version: meta.resource_version.as_deref().unwrap_or_default().into(),
            id: object.labels().get(labels::ID).map(|id| id.as_str().into()),
            names: (self.read_names)(object)
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, Lines> {
        self.lines.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was applied of an object to which nobody has added anything: it is of a kind that the API server leaves as it is.
fn to_applied<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(value) = value.as_object_mut() {
        value.remove("status");
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|key, _| ["name", "namespace", "labels", "annotations"].contains(&key.as_str()));
            let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
            let is_bare = annotations.is_some_and(|annotations| {
                annotations.remove(labels::APPLIED_DIGEST);
                annotations.is_empty()
            });
            if is_bare {
                metadata.remove("annotations");
            }
        }
    }
    value
}

fn key_of<K: Resource>(object: &K) -> Box<str> {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    to_key(namespace, object.meta().name.as_deref().unwrap_or_default()).into()
}

fn to_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

#[cfg(test)]
mod tests {
    use yoke_pki::cert_manager::Certificate;

    use super::*;
    use crate::apply::seal;

    /// As an API server keeps what was applied, and others add to it.
    fn kept(name: &str, change: impl FnOnce(&mut Value)) -> Certificate {
        let mut value = wanted(name);
        seal(&mut value);
        for (key, text) in [
            ("uid", "1"),
            ("resourceVersion", "7"),
            ("creationTimestamp", "2026-01-01T00:00:00Z"),
        ] {
            value["metadata"][key] = text.into();
        }
        value["status"] = serde_json::json!({"conditions": []});
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    fn wanted(name: &str) -> Value {
        let value = serde_json::json!({"metadata": {"name": name, "namespace": "n", "labels": {labels::ID: "bcdfghjk24"}},
            "spec": {"secretName": name, "dnsNames": ["a.example"], "issuerRef": {"name": "i"}},
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate"});
        let object: Certificate = serde_json::from_value(value).unwrap();
        serde_json::to_value(object).unwrap()
    }

    fn look(ledger: &Ledger<Certificate>, name: &str) -> Sight {
        let value = wanted(name);
        let object = serde_json::from_value(value.clone()).unwrap();
        ledger.compare(&object, &value, &digest_of(&value))
    }

    #[test]
    fn lines_say_what_is_as_it_was_applied() {
        let (ledger, mut scribe) = open(|object: &Certificate| &object.spec.dns_names);
        for (rule, change, expected) in [
            (
                "as it was",
                Box::new(|_: &mut Value| {}) as Box<dyn Fn(&mut Value)>,
                Sight::Applied,
            ),
            (
                "changed by others",
                Box::new(|value: &mut Value| value["spec"]["secretName"] = "other".into()),
                Sight::Unread("7".into()),
            ),
            (
                "more in it",
                Box::new(|value: &mut Value| value["metadata"]["labels"]["more"] = "x".into()),
                Sight::Unread("7".into()),
            ),
            (
                "another annotation",
                Box::new(|value: &mut Value| value["metadata"]["annotations"]["more"] = "x".into()),
                Sight::Unread("7".into()),
            ),
            (
                "another digest",
                Box::new(|value: &mut Value| value["metadata"]["annotations"][labels::APPLIED_DIGEST] = "x".into()),
                Sight::Other,
            ),
            (
                "no digest",
                Box::new(|value: &mut Value| value["metadata"]["annotations"] = serde_json::json!({})),
                Sight::Other,
            ),
        ] {
            scribe.note(&Event::Apply(kept("a", change)));
            assert_eq!(look(&ledger, "a"), expected, "{rule}");
        }
        assert_eq!(ledger.names("n", "a"), ["a.example"]);
        scribe.note(&Event::Delete(kept("a", |_| {})));
        assert_eq!(look(&ledger, "a"), Sight::Other, "gone");
    }

    #[test]
    fn a_list_replaces_all_when_it_is_complete() {
        let (ledger, mut scribe) = open(|object: &Certificate| &object.spec.dns_names);
        scribe.note(&Event::Apply(kept("a", |_| {})));
        scribe.note(&Event::Init);
        scribe.note(&Event::InitApply(kept("b", |_| {})));
        assert!(ledger.has("n", "a") && !ledger.has("n", "b") && !*ledger.is_listed.borrow());
        scribe.note(&Event::InitDone);
        assert!(!ledger.has("n", "a") && ledger.has("n", "b") && *ledger.is_listed.borrow());
        assert_eq!(ledger.find("n", "bcdfghjk24"), ["b"]);
        assert!(ledger.find("m", "bcdfghjk24").is_empty() && ledger.find("n", "other").is_empty());
        scribe.strike("n", "b");
        assert!(!ledger.has("n", "b"));
    }
}
