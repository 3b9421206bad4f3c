//! Watches the cluster's Nodes for the Pod network, and writes this worker's key and endpoint on
//! its own Node.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use yoke_api::labels;

use super::plan::PeerNode;
use crate::error_chain::format_chain;
use crate::layout::Layout;
use crate::node::{self, with_limit};
use crate::output::progress;
use crate::state::Worker;

/// Delay after a watch that ended early.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Page size of the list. A Node has many kilobytes, so pages bound the memory.
const PAGE: u32 = 50;
/// Upper bound for values that other clients write, longer than any key or endpoint.
const VALUE_MAX: usize = 100;
const RANGES_MAX: usize = 2;
/// Timeout of a watch without events. Kubelets write their Node's status every five minutes, so
/// such a connection is broken.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// Nodes by name; `None` before the first complete list.
pub(super) type Nodes = Option<BTreeMap<String, PeerNode>>;

/// Publishes the Nodes, with the newest certificate of the kubelet, until dropped. While the API is
/// unreachable the last state stays.
pub(super) async fn follow(layout: &Layout, worker: &Worker, known: &watch::Sender<Nodes>) {
    let mut backoff = BACKOFF_MIN;
    let mut last_message = String::new();
    loop {
        if let Some(client) = node::connect(layout, worker).await {
            let config = watcher::Config::default().page_size(PAGE);
            let events = watcher(Api::<Node>::all(client), config);
            let (listed_once, why) = follow_watch(events, known).await;
            if listed_once {
                backoff = BACKOFF_MIN;
                last_message.clear();
            }
            if !why.is_empty() && why != last_message {
                progress(&format!(
                    "cannot watch the Nodes: {why}; Pods of new workers are unreachable until the watch works again"
                ));
                last_message = why;
            }
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Follows a watch until an error. Returns whether there was a complete list, and the error.
async fn follow_watch(
    events: impl Stream<Item = Result<Event<Node>, watcher::Error>>,
    known: &watch::Sender<Nodes>,
) -> (bool, String) {
    let mut events = pin!(events);
    let mut listed = BTreeMap::new();
    let mut listed_once = false;
    loop {
        let event = match tokio::time::timeout(IDLE_LIMIT, events.next()).await {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) => return (listed_once, format_chain(&error)),
            Ok(None) | Err(_) => return (listed_once, String::new()),
        };
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(node) => drop(listed.insert(node.name_any(), extract(node))),
            Event::InitDone => {
                listed_once = true;
                let complete = Some(std::mem::take(&mut listed));
                known.send_if_modified(|nodes| {
                    let differs = *nodes != complete;
                    *nodes = complete;
                    differs
                });
            }
            Event::Apply(node) => {
                let (name, seen) = (node.name_any(), extract(node));
                known.send_if_modified(|nodes| {
                    let before = nodes.get_or_insert_default().insert(name, seen.clone());
                    before != Some(seen)
                });
            }
            Event::Delete(node) => {
                let name = node.name_any();
                known.send_if_modified(|nodes| nodes.get_or_insert_default().remove(&name).is_some());
            }
        }
    }
}

/// Extracts the fields that matter. A value that is too long counts as missing.
fn extract(node: Node) -> PeerNode {
    let short = |text: &String| text.len() <= VALUE_MAX;
    let annotation = |name: &str| {
        let text = node.annotations().get(name)?;
        Some(if short(text) { text.clone() } else { String::new() })
    };
    let (key, endpoint) = (
        annotation(labels::WIREGUARD_PUBLIC_KEY),
        annotation(labels::WIREGUARD_ENDPOINT),
    );
    let spec = node.spec.unwrap_or_default();
    let ranges = spec.pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect());
    let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
    let internal = addresses.into_iter().find(|address| address.type_ == "InternalIP");
    PeerNode {
        uid: node.metadata.uid.unwrap_or_default(),
        created: node.metadata.creation_timestamp.map(|time| time.0),
        ranges: ranges.into_iter().filter(short).take(RANGES_MAX).collect(),
        address: internal.map(|address| address.address).filter(short),
        key,
        endpoint,
    }
}

/// Writes the key and the endpoint on the Node with this UID.
pub(super) async fn publish(
    layout: &Layout,
    worker: &Worker,
    uid: &str,
    key: &str,
    endpoint: &str,
) -> Result<(), String> {
    let Some(client) = node::connect(layout, worker).await else {
        return Err("the kubelet has no certificate".to_owned());
    };
    let patch = json!({"metadata": {"uid": uid, "annotations": {
        labels::WIREGUARD_PUBLIC_KEY: key,
        labels::WIREGUARD_ENDPOINT: endpoint,
    }}});
    let nodes = Api::<Node>::all(client);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let request = nodes.patch_metadata(&worker.name, &params, &patch);
    with_limit(request)
        .await
        .map(drop)
        .map_err(|error| format_chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: serde_json::Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_fields_of_a_node_are_extracted() {
        let complete = node(json!({
            "metadata": {
                "name": "a", "uid": "u1", "creationTimestamp": "2026-11-23T00:00:00Z",
                "annotations": {labels::WIREGUARD_PUBLIC_KEY: "k", labels::WIREGUARD_ENDPOINT: "x".repeat(101)},
            },
            "spec": {"podCIDR": "10.1.2.0/24", "podCIDRs": ["10.1.2.0/24", "fd00::/64", "10.9.0.0/24"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "a"},
                {"type": "InternalIP", "address": "192.0.2.1"},
            ]},
        }));
        let expected = PeerNode {
            uid: "u1".into(),
            created: Some("2026-11-23T00:00:00Z".parse().unwrap()),
            ranges: vec!["10.1.2.0/24".into(), "fd00::/64".into()],
            address: Some("192.0.2.1".into()),
            key: Some("k".into()),
            endpoint: Some(String::new()),
        };
        assert_eq!(extract(complete), expected);
        let alone = node(json!({"metadata": {"name": "a"}, "spec": {"podCIDR": "10.1.2.0/24"}}));
        assert_eq!(extract(alone).ranges, ["10.1.2.0/24"]);
    }

    #[tokio::test]
    async fn nodes_stay_known_until_there_is_another_list() {
        let named = |name: &str| node(json!({"metadata": {"name": name}}));
        let (known, mut heard) = watch::channel(None);
        let names = |nodes: &Nodes| nodes.as_ref().map(|nodes| nodes.keys().cloned().collect::<Vec<_>>());
        let lost = || Err(watcher::Error::NoResourceVersion);
        let first = [
            Ok(Event::Init),
            Ok(Event::InitApply(named("a"))),
            Ok(Event::InitApply(named("b"))),
            Ok(Event::InitDone),
            Ok(Event::Apply(named("c"))),
            Ok(Event::Delete(named("a"))),
            lost(),
        ];
        let (listed_once, why) = follow_watch(futures::stream::iter(first), &known).await;
        assert!(listed_once && !why.is_empty(), "{why}");
        assert_eq!(names(&heard.borrow_and_update()).unwrap(), ["b", "c"]);
        let half = [Ok(Event::Init), Ok(Event::InitApply(named("d"))), lost()];
        assert!(!follow_watch(futures::stream::iter(half), &known).await.0);
        assert_eq!(names(&heard.borrow()).unwrap(), ["b", "c"]);
        let second = [
            Ok(Event::Init),
            Ok(Event::InitApply(named("b"))),
            Ok(Event::InitApply(named("c"))),
            Ok(Event::InitDone),
            Ok(Event::Apply(named("b"))),
        ];
        follow_watch(futures::stream::iter(second), &known).await;
        assert!(!heard.has_changed().unwrap(), "nothing is new");
    }
}
