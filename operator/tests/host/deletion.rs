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

use crate::harness::{Host, PKI, TENANT, condition};

/// Creates a pod of a control plane that no kubelet ends.
async fn make_pod(host: &Host, hosted: &str, id: &str) {
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
async fn left(host: &Host, hosted: &str, id: &str, account: &str) -> Vec<&'static str> {
    let selector = ListParams::default().labels(&format!("yoke.drzzl.io/id={id}"));
    let secrets = host.api::<Secret>(PKI).list(&selector).await.unwrap().items;
    let kept = secrets
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
        ("keys", secrets.len() > usize::from(kept)),
        ("namespace", namespace.is_some()),
        ("streams", host.has_stream(account, id).await),
        ("store", kept),
        ("cluster", host.clusters().get_opt("a").await.unwrap().is_some()),
    ]
    .into_iter()
    .filter_map(|(what, is)| is.then_some(what))
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_goes_in_order_and_its_data_last() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    make_pod(&host, &hosted, id).await;
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
    assert_eq!(left(&host, &hosted, id, &account).await, order);
    host.clusters().delete("a", &DeleteParams::default()).await.unwrap();
    // While the pod runs, nothing that it depends on is deleted.
    host.bring("a", "the control plane is being stopped", async || {
        host.stateful_set(&hosted).await.is_none()
    })
    .await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    assert_eq!(left(&host, &hosted, id, &account).await, &order[2..]);
    assert!(host.lets_in(&credentials).await);
    let now = DeleteParams::default().grace_period(0);
    host.api::<Pod>(&hosted).delete("control-plane-0", &now).await.unwrap();
    let seen = Mutex::new(Vec::new());
    host.until("the Cluster is gone", async || {
        let _ = host.reconcile("a").await;
        let left = left(&host, &hosted, id, &account).await;
        let gone = left.is_empty();
        assert!(
            left.contains(&"keys") || !host.lets_in(&credentials).await,
            "nobody writes when the keys are gone"
        );
        // The remaining items are always the end of the order.
        assert_eq!(left, &order[order.len() - left.len()..]);
        if left.first() == Some(&"namespace") {
            host.finalize(&hosted).await;
        }
        seen.lock().unwrap().push(left.len());
        gone
    })
    .await;
    assert!(
        seen.lock().unwrap().contains(&4),
        "streams outlive all but the namespace: {seen:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_of_others_are_left_to_them() {
    let host = Host::start().await;
    host.make_cluster("a").await;
    host.reconcile("a").await.unwrap();
    let both = serde_json::json!({"metadata": {"finalizers": ["yoke.drzzl.io/operator", "other.example/hold"]}});
    host.patch_cluster("a", both).await;
    host.clusters().delete("a", &DeleteParams::default()).await.unwrap();
    host.until("the operator's finalizer is gone", async || {
        let _ = host.reconcile("a").await;
        let hosted = host.hosted("a").await;
        host.finalize(&hosted).await;
        host.cluster("a").await.metadata.finalizers == Some(vec!["other.example/hold".to_owned()])
    })
    .await;
    host.patch_cluster("a", serde_json::json!({"metadata": {"finalizers": null}}))
        .await;
    assert!(host.clusters().get_opt("a").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_tenant_loses_the_subjects_that_it_loses() {
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
async fn assert_copy_goes_first(host: &Host, hosted: &str, id: &str, account: &str) {
    let has_copy = host.secret(hosted, "kine-nats").await.is_some();
    assert!(!has_copy || host.has_stream(account, id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_takes_what_an_orphan_left() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    let (account, _) = store_of(&host, id).await;
    assert!(host.secret(&hosted, "kine-nats").await.is_some());
    host.lose_cluster("a").await;
    let tenants = Api::<Tenant>::all(host.client.clone());
    tenants.delete(TENANT, &DeleteParams::default()).await.unwrap();
    host.until("the Tenant is gone", async || {
        let _ = host.reconcile_tenant().await;
        assert_copy_goes_first(&host, &hosted, id, &account).await;
        host.finalize(TENANT).await;
        tenants.get_opt(TENANT).await.unwrap().is_none()
    })
    .await;
    assert_eq!(host.context.nats.find_account(&account).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_stays_while_one_of_its_clusters_cannot_be_read() {
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
        "it cannot be read"
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
async fn what_a_cluster_left_is_collected_after_a_while() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    let (account, _) = store_of(&host, id).await;
    host.lose_cluster("a").await;
    let mut orphans = Orphans::default();
    let now = Instant::now();
    let before = left(&host, &hosted, id, &account).await;
    assert_eq!(
        before,
        ["ingress", "control plane", "keys", "namespace", "streams", "store"]
    );
    orphans.sweep(&host.context, now).await;
    orphans.sweep(&host.context, now + Duration::from_secs(599)).await;
    assert_eq!(
        left(&host, &hosted, id, &account).await,
        before,
        "a Cluster may be restored"
    );
    let orphans = tokio::sync::Mutex::new(orphans);
    host.until("all is gone, the data too", async || {
        let later = now + Duration::from_secs(601);
        orphans.lock().await.sweep(&host.context, later).await;
        assert_copy_goes_first(&host, &hosted, id, &account).await;
        host.finalize(&hosted).await;
        left(&host, &hosted, id, &account).await.is_empty()
    })
    .await;
    let remembered = || host.context.memory.has(&id.parse().unwrap());
    host.until("it is forgotten", async || {
        orphans.lock().await.sweep(&host.context, now).await;
        !remembered()
    })
    .await;
}

/// Only the copy of its user's credentials names the account.
#[tokio::test(flavor = "multi_thread")]
async fn orphan_without_its_secret_leaves_nothing_at_nats() {
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
    host.until("all is gone, the data too", async || {
        let later = now + Duration::from_secs(601);
        orphans.lock().await.sweep(&host.context, later).await;
        assert_copy_goes_first(&host, &hosted, id, &account).await;
        host.finalize(&hosted).await;
        left(&host, &hosted, id, &account).await.is_empty()
    })
    .await;
    assert_eq!(host.context.nats.find_account(&account).await.unwrap(), None);
}

async fn annotation(host: &Host, hosted: &str, key: &str) -> Option<String> {
    let namespaces = Api::<Namespace>::all(host.client.clone());
    let annotations = namespaces.get(hosted).await.unwrap().metadata.annotations;
    annotations.unwrap_or_default().remove(&format!("yoke.drzzl.io/{key}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_tells_what_becomes_of_the_data() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let hosted = host.hosted("a").await;
    let policy = async || annotation(&host, &hosted, "deletion-policy").await;
    assert_eq!(policy().await.as_deref(), Some("Delete"));
    let told = async |wanted: &str| {
        host.patch_cluster("a", serde_json::json!({"spec": {"deletionPolicy": wanted}}))
            .await;
        host.bring("a", wanted, async || policy().await.as_deref() == Some(wanted))
            .await;
    };
    told("Retain").await;
    // Also while the spec is refused.
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 0}}}))
        .await;
    told("Delete").await;
    told("Retain").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_data_outlives_its_cluster() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let id = id.as_str();
    let (account, former) = store_of(&host, id).await;
    host.patch_cluster("a", serde_json::json!({"spec": {"deletionPolicy": "Retain"}}))
        .await;
    host.take_down("a").await;
    // The orphan collector does not delete it.
    let mut orphans = Orphans::default();
    let now = Instant::now();
    for later in [Duration::ZERO, Duration::from_secs(601), Duration::from_secs(1202)] {
        orphans.sweep(&host.context, now + later).await;
    }
    let kept = async || left(&host, &hosted, id, &account).await == ["streams", "store"];
    assert!(kept().await && !host.lets_in(&former).await);
    let tenants = Api::<Tenant>::all(host.client.clone());
    let retained = async || {
        host.reconcile_tenant().await.unwrap();
        tenants.get(TENANT).await.unwrap().status.unwrap().retained_storage
    };
    assert_eq!(retained().await, Some(256 << 20), "it counts");

    // Another Cluster with this identity gets none of it, and leaves it when it is deleted.
    let made = async |name: &str| {
        let mut cluster = Cluster::new(name, Default::default());
        cluster.spec.id = Some(id.to_owned());
        host.clusters().create(&PostParams::default(), &cluster).await.unwrap();
    };
    made("b").await;
    host.bring("b", "it is refused", async || {
        condition(&host.cluster("b").await, "Accepted") == "False/IdentityConflict"
    })
    .await;
    assert_eq!(retained().await, Some(256 << 20), "what it claims is not its own");
    host.take_down("b").await;
    assert!(kept().await);
    // The first Cluster gets its data back, with a new user.
    made("a").await;
    host.bring("a", "a control plane is asked for", async || {
        host.stateful_set(&hosted).await.is_some()
    })
    .await;
    let (again, credentials) = store_of(&host, id).await;
    assert_eq!(again, account);
    assert!(host.lets_in(&credentials).await && !host.lets_in(&former).await);
    assert_eq!(retained().await, None);

    // Retained data is deleted with the Tenant.
    host.patch_cluster("a", serde_json::json!({"spec": {"deletionPolicy": "Retain"}}))
        .await;
    host.take_down("a").await;
    assert!(kept().await);
    tenants.delete(TENANT, &DeleteParams::default()).await.unwrap();
    host.until("the Tenant is gone", async || {
        let _ = host.reconcile_tenant().await;
        host.finalize(TENANT).await;
        tenants.get_opt(TENANT).await.unwrap().is_none()
    })
    .await;
    assert!(left(&host, &hosted, id, &account).await.is_empty());
    assert_eq!(host.context.nats.find_account(&account).await.unwrap(), None);
}
