//! Field ownership: which fields of an applied object the operator owns, and which it leaves to
//! other managers.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::Host;

/// Field manager of all other clients.
const OTHER: &str = "other.example";

/// Returns an object as JSON.
async fn read<K>(host: &Host, hosted: &str, name: &str) -> Value
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    serde_json::to_value(host.api::<K>(hosted).get(name).await.unwrap()).unwrap()
}

/// Applies an object with another field manager.
async fn apply_with_other_manager<K>(host: &Host, hosted: &str, name: &str, mut object: Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    host.api::<K>(hosted)
        .patch(name, &PatchParams::apply(OTHER).force(), &Patch::Apply(&object))
        .await
        .unwrap();
}

/// Collects the paths of fields that a manager owns but the applied object does not have, or the
/// reverse.
fn compare(fields: &Value, object: &Value, path: &str, found: &mut Vec<String>) {
    let fields = fields.as_object().unwrap();
    let named: Vec<_> = fields.iter().filter(|(key, _)| *key != ".").collect();
    // A single value, or a field that is owned as a whole.
    if named.is_empty() {
        return;
    }
    let mut covered = Vec::new();
    for (key, inner) in named {
        let (kind, name) = key.split_once(':').unwrap();
        let at = match kind {
            "f" => object.get(name).map(|_| name.to_owned()),
            "k" => {
                let keys: Value = serde_json::from_str(name).unwrap();
                let has = |item: &Value| keys.as_object().unwrap().iter().all(|(key, value)| item[key] == *value);
                let items = object.as_array().map(Vec::as_slice).unwrap_or_default();
                items.iter().position(has).map(|index| index.to_string())
            }
            _ => panic!("{path}: {key}"),
        };
        match at {
            Some(at) => {
                let part = if kind == "f" {
                    &object[&at]
                } else {
                    &object[at.parse::<usize>().unwrap()]
                };
                compare(inner, part, &format!("{path}/{at}"), found);
                covered.push(at);
            }
            None => found.push(format!("{path}/{key} is owned")),
        }
    }
    let all: Vec<String> = match object {
        Value::Object(members) => members.keys().cloned().collect(),
        Value::Array(items) => (0..items.len()).map(|index| index.to_string()).collect(),
        _ => vec![],
    };
    let missing = all.into_iter().filter(|key| !covered.contains(key));
    found.extend(missing.map(|key| format!("{path}/{key} is not owned")));
}

/// Compares the fields that the operator owns with a golden file of its build.
fn assert_owned(object: &Value, golden: &str) {
    let managers = object["metadata"]["managedFields"].as_array().unwrap();
    let own: Vec<_> = managers
        .iter()
        .filter(|entry| entry["manager"].as_str().unwrap().starts_with("yoke-operator"))
        .collect();
    let kind = &object["kind"];
    assert_eq!(own.len(), 1, "{kind}: {own:?}");
    assert_eq!(
        (&own[0]["manager"], &own[0]["operation"]),
        (&json!("yoke-operator/cluster"), &json!("Apply"))
    );
    let mut built: Value = serde_saphyr::from_str(golden).unwrap();
    let members = built.as_object_mut().unwrap();
    // Identifying fields have no owner.
    members.retain(|key, _| !["apiVersion", "kind"].contains(&key.as_str()));
    let meta = built["metadata"].as_object_mut().unwrap();
    meta.retain(|key, _| !["name", "namespace"].contains(&key.as_str()));
    let annotations = meta.entry("annotations").or_insert_with(|| json!({}));
    annotations[yoke_api::labels::APPLIED_DIGEST] = json!("of all this");
    let mut found = Vec::new();
    compare(&own[0]["fieldsV1"], &built, "", &mut found);
    assert_eq!(found, Vec::<String>::new(), "{kind}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_other_managers_stay_and_built_fields_are_owned() {
    let mut host = Host::start().await;
    host.bring_up("a").await;
    let hosted = host.hosted("a").await;
    let marked = |spec: Value| {
        let (labels, annotations) = (json!({"other.example/team": "x"}), json!({"other.example/note": "y"}));
        json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec})
    };
    // Metadata of another manager, and a field that the operator does not build.
    apply_with_other_manager::<StatefulSet>(&host, &hosted, "control-plane", marked(json!({"minReadySeconds": 3})))
        .await;
    apply_with_other_manager::<Service>(&host, &hosted, "a", marked(json!({"sessionAffinity": "ClientIP"}))).await;
    // A field that the operator builds, taken over by another manager.
    apply_with_other_manager::<NetworkPolicy>(
        &host,
        &hosted,
        "control-plane",
        marked(json!({"policyTypes": ["Ingress"]})),
    )
    .await;
    // Forces a new apply: the object changes, and the new operator remembers nothing.
    host.patch_cluster("a", json!({"spec": {"version": "v1.35.5"}})).await;
    host.restart_operator().await;
    let image = async || {
        let set = read::<StatefulSet>(&host, &hosted, "control-plane").await;
        set["spec"]["template"]["spec"]["containers"][1]["image"].clone()
    };
    let expected = "registry.k8s.io/kube-apiserver:v1.35.5";
    host.reconcile_until_equal("a", "the API server's image", image, expected)
        .await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    let set = read::<StatefulSet>(&host, &hosted, "control-plane").await;
    let service = read::<Service>(&host, &hosted, "a").await;
    let policy = read::<NetworkPolicy>(&host, &hosted, "control-plane").await;
    for object in [&set, &service, &policy] {
        let meta = &object["metadata"];
        assert_eq!(meta["labels"]["other.example/team"], "x", "{}", object["kind"]);
        assert_eq!(meta["annotations"]["other.example/note"], "y", "{}", object["kind"]);
    }
    assert_eq!(set["spec"]["minReadySeconds"], 3);
    assert_eq!(service["spec"]["sessionAffinity"], "ClientIP");
    assert_eq!(
        policy["spec"]["policyTypes"],
        json!(["Ingress", "Egress"]),
        "the operator did not take its field back"
    );
    assert_owned(&set, include_str!("../../testdata/build/plain/out.statefulset.yaml"));
    assert_owned(&service, include_str!("../../testdata/build/plain/out.service.yaml"));
    assert_owned(
        &policy,
        include_str!("../../testdata/build/plain/out.networkpolicy.yaml"),
    );
    let files = read::<ConfigMap>(&host, &hosted, "kube-apiserver").await;
    assert_owned(&files, include_str!("../../testdata/build/plain/out.configmap.yaml"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unchanged_objects_are_not_written_again() {
    let mut host = Host::start().await;
    host.bring_up("a").await;
    let hosted = host.hosted("a").await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    let before = host.count_applies().await;
    host.restart_operator().await;
    assert!(before > 10, "only {before} objects were applied");
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    assert_eq!(host.count_applies().await, before, "a restarted operator wrote objects");
    let taken = json!({"spec": {"policyTypes": ["Ingress"]}});
    apply_with_other_manager::<NetworkPolicy>(&host, &hosted, "control-plane", taken).await;
    host.restart_operator().await;
    let policy_types = async || {
        let policy = read::<NetworkPolicy>(&host, &hosted, "control-plane").await;
        policy["spec"]["policyTypes"].clone()
    };
    let expected = json!(["Ingress", "Egress"]);
    host.reconcile_until_equal("a", "the policy types", policy_types, expected)
        .await;
    assert_eq!(
        host.count_applies().await,
        before + 2,
        "the operator wrote more than the changed object"
    );
}
