//! The order in which a Cluster and a Tenant are deleted, and what remains.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, Tenant};
use yoke_operator::testing::cluster::Orphans;

use crate::harness::{Host, PKI, TENANT};

/// Creates a pod of a control plane that no kubelet ends.
async fn create_pod(host: &Host, hosted: &str, id: &str) {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "control-plane-0", "labels": {
            "yoke.drzzl.io/id": id, "yoke.drzzl.io/tenant": TENANT, "yoke.drzzl.io/cluster": "a",
            "yoke.drzzl.io/component": "control-plane", "app.kubernetes.io/managed-by": "yoke-operator"}},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }))
    .unwrap();
    host.api::<Pod>(hosted)
        .create(&PostParams::default(), &pod)
        .await
        .unwrap();
}

/// Returns the account of a Cluster's store, and the credentials of its user.
async fn store_of(host: &Host, id: &str) -> (String, String) {
    let name = format!("{id}-store");
    (
        host.text(PKI, &name, "account.pub").await,
        host.text(PKI, &name, "user.creds").await,
    )
}

/// Returns what remains of a Cluster that is being deleted, in the required order.
async fn list_remaining(host: &Host, hosted: &str, id: &str, account: &str) -> Vec<&'static str> {
    let selector = ListParams::default().labels(&format!("yoke.drzzl.io/id={id}"));
    let secrets = host.api::<Secret>(PKI).list(&selector).await.unwrap().items;
    let has_store_secret = secrets
        .iter()
        .any(|secret| secret.metadata.name.as_deref() == Some(&format!("{id}-store")));
    let namespaces = Api::<Namespace>::all(host.client.clone());
    let namespace = namespaces.get_opt(hosted).await.unwrap();
    [
        (
            "ingress",
            host.api::<ConfigMap>(hosted)
                .get_opt("yoke-ingress")
                .await
                .unwrap()
                .is_some(),
        ),
        ("control plane", host.stateful_set(hosted).await.is_some()),
        (
            "pod",
            host.api::<Pod>(hosted)
                .get_opt("control-plane-0")
                .await
                .unwrap()
                .is_some(),
        ),
        ("keys", secrets.len() > usize::from(has_store_secret)),
        ("namespace", namespace.is_some()),
        ("streams", host.has_stream(account, id).await),
        ("store", has_store_secret),
        ("cluster", host.clusters().get_opt("a").await.unwrap().is_some()),
    ]
    .into_iter()
    .filter_map(|(part, exists)| exists.then_some(part))
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_deleted_in_order_and_its_data_last() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    create_pod(&host, &hosted, id).await;
    let (account, credentials) = store_of(&host, id).await;
    let order = [
        "ingress",
        "control plane",
        "pod",
        "keys",
        "namespace",
        "streams",
        "store",
        "cluster",
    ];
    assert_eq!(list_remaining(&host, &hosted, id, &account).await, order);
    host.clusters().delete("a", &DeleteParams::default()).await.unwrap();
    // While the pod runs, nothing that it depends on is deleted.
    let has_set = async || host.stateful_set(&hosted).await.is_some();
    host.reconcile_until_equal("a", "the existence of the StatefulSet", has_set, false)
        .await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    assert_eq!(list_remaining(&host, &hosted, id, &account).await, &order[2..]);
    assert!(host.accepts_user(&credentials).await);
    let now = DeleteParams::default().grace_period(0);
    host.api::<Pod>(&hosted).delete("control-plane-0", &now).await.unwrap();
    let counts = Mutex::new(Vec::new());
    let observe = async || {
        let _ = host.reconcile("a").await;
        let remaining = list_remaining(&host, &hosted, id, &account).await;
        assert!(
            remaining.contains(&"keys") || !host.accepts_user(&credentials).await,
            "the store's user is accepted although the keys are deleted"
        );
        // The remaining items are always the end of the order.
        assert_eq!(remaining, &order[order.len() - remaining.len()..]);
        if remaining.first() == Some(&"namespace") {
            host.finalize(&hosted).await;
        }
        counts.lock().unwrap().push(remaining.len());
        remaining
    };
    host.until("the deletion of the Cluster", observe, Vec::is_empty).await;
    assert!(
        counts.lock().unwrap().contains(&4),
        "the streams did not outlive everything but the namespace: {counts:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_of_other_controllers_are_not_removed() {
    let host = Host::start().await;
    host.create_cluster("a").await;
    host.reconcile("a").await.unwrap();
    let both = serde_json::json!({"metadata": {"finalizers": ["yoke.drzzl.io/operator", "other.example/hold"]}});
    host.patch_cluster("a", both).await;
    host.clusters().delete("a", &DeleteParams::default()).await.unwrap();
    let finalizers = async || {
        let _ = host.reconcile("a").await;
        let hosted = host.hosted("a").await;
        host.finalize(&hosted).await;
        host.cluster("a").await.metadata.finalizers
    };
    let expected = Some(vec!["other.example/hold".to_owned()]);
    host.until_equal("the finalizers", finalizers, expected).await;
    host.patch_cluster("a", serde_json::json!({"metadata": {"finalizers": null}}))
        .await;
    assert!(host.clusters().get_opt("a").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_tenant_loses_its_removed_subjects() {
    let host = Host::start().await;
    let people = |names: &[&str]| -> serde_json::Value {
        let subjects = names
            .iter()
            .map(|name| serde_json::json!({"kind": "User", "name": name}));
        serde_json::json!({"spec": {"subjects": subjects.collect::<Vec<_>>()}})
    };
    host.patch_tenant(people(&["ann", "bob"])).await;
    host.reconcile_tenant().await.unwrap();
    let bound = async || {
        let bindings = host.api::<RoleBinding>(TENANT).get("yoke-tenant").await.unwrap();
        let names = bindings.subjects.unwrap().into_iter().map(|subject| subject.name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(bound().await, ["ann", "bob"]);
    host.patch_tenant(people(&["ann"])).await;
    host.patch_tenant(serde_json::json!({"spec": {"allowedDomains": ["yoke.test"]}}))
        .await;
    host.reconcile_tenant().await.unwrap();
    let tenant = Api::<Tenant>::all(host.client.clone()).get(TENANT).await.unwrap();
    let conditions = tenant.status.unwrap().conditions;
    let accepted = conditions
        .iter()
        .find(|condition| condition.type_ == "Accepted")
        .unwrap();
    assert_eq!(
        (accepted.status.as_str(), accepted.reason.as_str()),
        ("False", "HostnameNotAllowed")
    );
    assert_eq!(bound().await, ["ann"]);
}

/// A deleted account could be restored from the copy of its user's credentials.
async fn assert_copy_is_deleted_first(host: &Host, hosted: &str, id: &str, account: &str) {
    let has_copy = host.secret(hosted, "kine-nats").await.is_some();
    assert!(!has_copy || host.has_stream(account, id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_tenant_takes_its_orphans_along() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    let (account, _) = store_of(&host, id).await;
    assert!(host.secret(&hosted, "kine-nats").await.is_some());
    host.lose_cluster("a").await;
    let tenants = Api::<Tenant>::all(host.client.clone());
    tenants.delete(TENANT, &DeleteParams::default()).await.unwrap();
    let observe = async || {
        let _ = host.reconcile_tenant().await;
        assert_copy_is_deleted_first(&host, &hosted, id, &account).await;
        host.finalize(TENANT).await;
        tenants.get_opt(TENANT).await.unwrap()
    };
    host.until_none("the deletion of the Tenant", observe).await;
    assert_eq!(host.context.nats.find_account(&account).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_an_unreadable_cluster_is_not_deleted() {
    let mut host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let (account, _) = store_of(&host, id.as_str()).await;
    // More values than the operator decodes of one object.
    let labels: serde_json::Map<_, _> = (0..17_000).map(|number| (format!("l{number}"), "".into())).collect();
    host.patch_cluster("a", serde_json::json!({"metadata": {"labels": labels}}))
        .await;
    host.restart_operator().await;
    let key = ObjectRef::<Cluster>::new("a").within(TENANT);
    assert!(
        host.context.host.caches.clusters.get(&key).is_none(),
        "the Cluster is in the cache"
    );
    let tenants = Api::<Tenant>::all(host.client.clone());
    tenants.delete(TENANT, &DeleteParams::default()).await.unwrap();
    for _ in 0..3 {
        host.reconcile_tenant().await.unwrap();
    }
    let conditions = tenants.get(TENANT).await.unwrap().status.unwrap().conditions;
    let mut reasons = conditions.iter().map(|condition| condition.reason.as_str());
    assert!(reasons.any(|reason| reason == "ClustersRemain"), "{conditions:?}");
    assert!(host.context.nats.find_account(&account).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn orphaned_objects_are_deleted_after_a_delay() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    let (account, _) = store_of(&host, id).await;
    host.lose_cluster("a").await;
    let mut orphans = Orphans::default();
    let now = Instant::now();
    let before = list_remaining(&host, &hosted, id, &account).await;
    assert_eq!(
        before,
        ["ingress", "control plane", "keys", "namespace", "streams", "store"]
    );
    orphans.sweep(&host.context, now).await;
    orphans.sweep(&host.context, now + Duration::from_secs(599)).await;
    assert_eq!(
        list_remaining(&host, &hosted, id, &account).await,
        before,
        "an orphan was deleted too early"
    );
    let orphans = tokio::sync::Mutex::new(orphans);
    let observe = async || {
        let later = now + Duration::from_secs(601);
        orphans.lock().await.sweep(&host.context, later).await;
        assert_copy_is_deleted_first(&host, &hosted, id, &account).await;
        host.finalize(&hosted).await;
        list_remaining(&host, &hosted, id, &account).await
    };
    host.until("the deletion of everything, including the data", observe, Vec::is_empty)
        .await;
    let is_remembered = async || {
        orphans.lock().await.sweep(&host.context, now).await;
        host.context.memory.has(&id.parse().unwrap())
    };
    host.until_equal("the memory of the Cluster", is_remembered, false)
        .await;
}

/// Only the copy of its user's credentials names the account.
#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_an_orphan_without_its_secret_is_deleted() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    let (account, _) = store_of(&host, id).await;
    host.lose_cluster("a").await;
    host.lose_secret(PKI, &format!("{id}-store")).await;
    let orphans = tokio::sync::Mutex::new(Orphans::default());
    let now = Instant::now();
    orphans.lock().await.sweep(&host.context, now).await;
    let observe = async || {
        let later = now + Duration::from_secs(601);
        orphans.lock().await.sweep(&host.context, later).await;
        assert_copy_is_deleted_first(&host, &hosted, id, &account).await;
        host.finalize(&hosted).await;
        list_remaining(&host, &hosted, id, &account).await
    };
    host.until("the deletion of everything, including the data", observe, Vec::is_empty)
        .await;
    assert_eq!(host.context.nats.find_account(&account).await.unwrap(), None);
}

async fn annotation(host: &Host, hosted: &str, key: &str) -> Option<String> {
    let namespaces = Api::<Namespace>::all(host.client.clone());
    let annotations = namespaces.get(hosted).await.unwrap().metadata.annotations;
    annotations.unwrap_or_default().remove(&format!("yoke.drzzl.io/{key}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_namespace_records_the_deletion_policy() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let hosted = host.hosted("a").await;
    let policy = async || annotation(&host, &hosted, "deletion-policy").await;
    assert_eq!(policy().await.as_deref(), Some("Delete"));
    let set_policy = async |expected: &str| {
        host.patch_cluster("a", serde_json::json!({"spec": {"deletionPolicy": expected}}))
            .await;
        let expected = Some(expected.to_owned());
        host.reconcile_until_equal("a", "the policy of the namespace", policy, expected)
            .await;
    };
    set_policy("Retain").await;
    // Also while the spec is refused.
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 0}}}))
        .await;
    set_policy("Delete").await;
    set_policy("Retain").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_data_outlives_its_cluster() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    let (account, previous) = store_of(&host, id).await;
    host.patch_cluster("a", serde_json::json!({"spec": {"deletionPolicy": "Retain"}}))
        .await;
    host.take_down("a").await;
    // The orphan collector does not delete it.
    let mut orphans = Orphans::default();
    let now = Instant::now();
    for later in [Duration::ZERO, Duration::from_secs(601), Duration::from_secs(1202)] {
        orphans.sweep(&host.context, now + later).await;
    }
    let is_retained = async || list_remaining(&host, &hosted, id, &account).await == ["streams", "store"];
    assert!(is_retained().await && !host.accepts_user(&previous).await);
    let tenants = Api::<Tenant>::all(host.client.clone());
    let retained = async || {
        host.reconcile_tenant().await.unwrap();
        tenants.get(TENANT).await.unwrap().status.unwrap().retained_storage
    };
    assert_eq!(retained().await, Some(256 << 20));

    // Another Cluster with this identity gets none of it, and leaves it when it is deleted.
    let create = async |name: &str| {
        let mut cluster = Cluster::new(name, Default::default());
        cluster.spec.id = Some(id.to_owned());
        host.clusters().create(&PostParams::default(), &cluster).await.unwrap();
    };
    create("b").await;
    host.reconcile_until_condition("b", "Accepted", "False/IdentityConflict")
        .await;
    assert_eq!(retained().await, Some(256 << 20));
    host.take_down("b").await;
    assert!(is_retained().await);
    // The first Cluster gets its data back, with a new user.
    create("a").await;
    host.reconcile_until_started("a").await;
    let (again, credentials) = store_of(&host, id).await;
    assert_eq!(again, account);
    assert!(host.accepts_user(&credentials).await && !host.accepts_user(&previous).await);
    assert_eq!(retained().await, None);

    // Retained data is deleted with the Tenant.
    host.patch_cluster("a", serde_json::json!({"spec": {"deletionPolicy": "Retain"}}))
        .await;
    host.take_down("a").await;
    assert!(is_retained().await);
    tenants.delete(TENANT, &DeleteParams::default()).await.unwrap();
    let observe = async || {
        let _ = host.reconcile_tenant().await;
        host.finalize(TENANT).await;
        tenants.get_opt(TENANT).await.unwrap()
    };
    host.until_none("the deletion of the Tenant", observe).await;
    assert!(list_remaining(&host, &hosted, id, &account).await.is_empty());
    assert_eq!(host.context.nats.find_account(&account).await.unwrap(), None);
}
