//! A null that the host API stores must be readable by the operator: one unreadable object would
//! end the watch of all objects.

use serde_json::{Value, json};
use yoke_api::{Cluster, Tenant};

/// Paths that may be null. In Rust, each is an `Option`.
const CLUSTER: [&str; 31] = [
    "spec.class",
    "spec.id",
    "spec.sleep.afterInactivity",
    "spec.sleep.schedules[].sleep",
    "spec.sleep.schedules[].timeZone",
    "spec.sleep.schedules[].wake",
    "spec.ttl",
    "spec.version",
    "status",
    "status.activity",
    "status.activity.lastActivityTime",
    "status.activity.scheduledTime",
    "status.activity.sleepReason",
    "status.activity.sleepRequestedTime",
    "status.activity.wakeRequestedTime",
    "status.endpoint",
    "status.history[].completed",
    "status.kubeconfigRef",
    "status.nodes",
    "status.observedGeneration",
    "status.phase",
    "status.pki",
    "status.pki.current",
    "status.storage",
    "status.storage.bytes",
    "status.usage",
    "status.usage.awakeSince",
    "status.usage.pricePerHour",
    "status.version",
    "status.workers",
    "status.workers.oldestVersion",
];

const TENANT: [&str; 4] = [
    "status",
    "status.clusters",
    "status.observedGeneration",
    "status.retainedStorage",
];

fn nullable<C: kube::CustomResourceExt>() -> Vec<String> {
    let definition = serde_json::to_value(C::crd()).expect("a CRD is JSON");
    let mut found = Vec::new();
    collect(
        &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
        "",
        &mut found,
    );
    found
}

fn collect(schema: &Value, path: &str, found: &mut Vec<String>) {
    if schema["nullable"] == true {
        found.push(path.trim_start_matches('.').to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        collect(property, &format!("{path}.{name}"), found);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        collect_if_any(schema.get(key), &format!("{path}{suffix}"), found);
    }
}

fn collect_if_any(schema: Option<&Value>, path: &str, found: &mut Vec<String>) {
    if let Some(schema) = schema.filter(|schema| schema.is_object()) {
        collect(schema, path, found);
    }
}

#[test]
fn only_options_are_nullable() {
    for (kind, found, allowed) in [
        ("Cluster", nullable::<Cluster>(), &CLUSTER[..]),
        ("Tenant", nullable::<Tenant>(), &TENANT[..]),
    ] {
        let stray: Vec<_> = found.iter().filter(|path| !allowed.contains(&path.as_str())).collect();
        assert!(stray.is_empty(), "{kind}: {stray:?} may be null and cannot be read so");
    }
}

#[test]
fn nulls_of_optional_fields_are_read() {
    let schedule = json!({"sleep": null, "timeZone": null, "wake": null});
    let sleep = json!({"afterInactivity": null, "schedules": [schedule]});
    let spec = json!({"class": null, "id": null, "sleep": sleep, "ttl": null, "version": null});
    let activity = json!({"lastActivityTime": null, "scheduledTime": null, "sleepReason": null,
        "sleepRequestedTime": null, "wakeRequestedTime": null});
    let usage = json!({"awakeSeconds": 0, "awakeSince": null, "pricePerHour": null});
    let workers = json!({"total": 0, "updated": 0, "unavailable": 0, "oldestVersion": null});
    for (activity, usage, workers) in [(json!(null), json!(null), json!(null)), (activity, usage, workers)] {
        let status = json!({"activity": activity, "usage": usage, "workers": workers});
        let object = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
            "spec": {}, "status": status});
        serde_json::from_value::<Cluster>(object).unwrap();
    }
    let object = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
        "spec": spec, "status": {"endpoint": null, "kubeconfigRef": null, "nodes": null, "observedGeneration": null,
            "phase": null, "pki": null, "storage": null, "version": null}});
    serde_json::from_value::<Cluster>(object).unwrap();
    let object = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant", "metadata": {"name": "a"},
        "spec": {}, "status": {"clusters": null, "observedGeneration": null, "retainedStorage": null}});
    serde_json::from_value::<Tenant>(object).unwrap();
}
