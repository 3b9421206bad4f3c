//! Objects restored from a backup have other UIDs, and are still recognized.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::{Cluster, ClusterId, Tenant};
use yoke_operator::testing::tenant;

use crate::harness::{Host, PKI, TENANT, condition};

async fn annotation(host: &Host, namespace: &str, key: &str) -> Option<String> {
    let namespaces = Api::<Namespace>::all(host.client.clone());
    let annotations = namespaces.get(namespace).await.unwrap().metadata.annotations;
    annotations.unwrap_or_default().remove(&format!("yoke.drzzl.io/{key}"))
}

/// Creates a Cluster again with its previous name and identity, but an empty status.
async fn create_again(host: &Host, name: &str, id: &ClusterId) -> Cluster {
    let mut again = Cluster::new(name, Default::default());
    again.spec.id = Some(id.to_string());
    host.clusters().create(&PostParams::default(), &again).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_cluster_adopts_its_objects() {
    let host = Host::start().await;
    let previous = host.bring_up("a").await;
    let hosted = host.hosted("a").await;
    host.lose_cluster("a").await;
    let again = create_again(&host, "a", &previous.id().unwrap()).await;
    assert_ne!(again.metadata.uid, previous.metadata.uid);
    let owner = async || annotation(&host, &hosted, "owner-uid").await;
    let expected = again.metadata.uid.clone();
    host.reconcile_until_equal("a", "the owner of the namespace", owner, expected)
        .await;
    host.reconcile_until_condition("a", "Accepted", "True/Valid").await;
}

/// A re-created Cluster has no status that names its account; the Secret of its store does.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_log_is_not_replaced_for_a_recreated_cluster() {
    let mut host = Host::start().await;
    let mut clusters = Vec::new();
    for name in ["restored", "retained", "copied"] {
        let id = host.bring_up(name).await.id().unwrap();
        let account = host.text(PKI, &format!("{id}-store"), "account.pub").await;
        assert!(host.has_stream(&account, id.as_str()).await, "{name}");
        clusters.push((name, id, account));
    }
    host.lose_cluster("restored").await;
    host.patch_cluster("retained", serde_json::json!({"spec": {"deletionPolicy": "Retain"}}))
        .await;
    host.take_down("retained").await;
    // Only the copy of its user's credentials is left of this one.
    host.lose_cluster("copied").await;
    let hosted = clusters[2].1.hosted_namespace();
    host.delete::<StatefulSet>(hosted.as_str(), "control-plane").await;
    host.lose_secret(PKI, &format!("{}-store", clusters[2].1)).await;
    host.restart_operator().await;
    for (name, id, account) in &clusters {
        host.nats.lose_streams(account).await;
        create_again(&host, name, id).await;
        host.reconcile_until_condition(name, "Degraded", "True/StoreLost").await;
        assert!(!host.has_stream(account, id.as_str()).await, "{name}");
        assert_eq!(host.text(PKI, &format!("{id}-store"), "account.pub").await, *account);
    }
}

/// The streams of a Cluster whose control plane never started are empty.
#[tokio::test(flavor = "multi_thread")]
async fn lost_empty_streams_are_created_again() {
    let mut host = Host::start().await;
    host.create_cluster("a").await;
    // No certificate is issued, so the control plane does not start.
    let observe = async || {
        let _ = host.reconcile("a").await;
        condition(&host.cluster("a").await, "StoreReady")
    };
    host.until_equal("the condition StoreReady", observe, "True/AsExpected")
        .await;
    let id = host.cluster("a").await.id().unwrap();
    let account = host.text(PKI, &format!("{id}-store"), "account.pub").await;
    assert!(host.stateful_set(id.hosted_namespace().as_str()).await.is_none());
    host.lose_cluster("a").await;
    host.restart_operator().await;
    host.nats.lose_streams(&account).await;
    create_again(&host, "a", &id).await;
    host.reconcile_until_started("a").await;
    assert!(host.has_stream(&account, id.as_str()).await);
}

/// Deletes the Tenant's object without the operator.
async fn lose_tenant(host: &Host) {
    host.patch_tenant(serde_json::json!({"metadata": {"finalizers": null}}))
        .await;
    let tenants = Api::<Tenant>::all(host.client.clone());
    tenants.delete(TENANT, &Default::default()).await.unwrap();
    let is_cached = async || host.context.host.caches.tenants.get(&ObjectRef::new(TENANT)).is_some();
    host.until_equal("the presence of the Tenant in the cache", is_cached, false)
        .await;
}

async fn create_tenant(host: &Host, name: &str) -> Tenant {
    let tenant = Tenant::new(name, Default::default());
    let tenants = Api::<Tenant>::all(host.client.clone());
    tenants.create(&PostParams::default(), &tenant).await.unwrap()
}

/// Reconciles a Tenant, and returns status and reason of its condition.
async fn reconcile_tenant(host: &Host, name: &str) -> String {
    let tenants = Api::<Tenant>::all(host.client.clone());
    let tenant = tenants.get(name).await.unwrap();
    let _ = Box::pin(tenant::reconcile(Arc::new(tenant), Arc::clone(&host.tenant))).await;
    let status = tenants.get(name).await.unwrap().status.unwrap_or_default();
    let mut conditions = status.conditions.into_iter();
    let accepted = conditions.find(|condition| condition.type_ == "Accepted").unwrap();
    format!("{}/{}", accepted.status, accepted.reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_tenant_adopts_its_namespace() {
    let host = Host::start().await;
    let previous = Api::<Tenant>::all(host.client.clone()).get(TENANT).await.unwrap();
    host.bring_up("a").await;
    lose_tenant(&host).await;
    host.reconcile_until_condition("a", "Accepted", "False/TenantMissing")
        .await;
    let again = create_tenant(&host, TENANT).await;
    assert_ne!(again.uid(), previous.uid());
    let accepted = async || reconcile_tenant(&host, TENANT).await;
    host.until_equal("the condition Accepted of the Tenant", accepted, "True/Valid")
        .await;
    assert_eq!(annotation(&host, TENANT, "owner-uid").await, again.uid());
    host.reconcile_until_condition("a", "Accepted", "True/Valid").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_does_not_adopt_a_namespace_of_another_owner() {
    let host = Host::start().await;
    let namespaces = Api::<Namespace>::all(host.client.clone());
    let owner = Api::<Tenant>::all(host.client.clone()).get(TENANT).await.unwrap();
    let labelled = |tenant: &str| serde_json::json!({"app.kubernetes.io/managed-by": "yoke-operator", "yoke.drzzl.io/tenant": tenant});
    for (name, metadata) in [
        ("b", serde_json::json!({"name": "b"})),
        ("c", serde_json::json!({"name": "c", "labels": labelled(TENANT)})),
        (
            "d",
            serde_json::json!({"name": "d", "labels": labelled("d"),
                "annotations": {"yoke.drzzl.io/owner": TENANT}}),
        ),
        (
            "e",
            serde_json::json!({"name": "e", "labels": labelled("e"),
                "annotations": {"yoke.drzzl.io/owner": "e", "yoke.drzzl.io/owner-uid": owner.uid()}}),
        ),
    ] {
        let namespace = serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap();
        let before: Namespace = namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        create_tenant(&host, name).await;
        for _ in 0..3 {
            assert_eq!(reconcile_tenant(&host, name).await, "False/NamespaceConflict", "{name}");
        }
        let after = namespaces.get(name).await.unwrap();
        assert_eq!(
            after.resource_version(),
            before.resource_version(),
            "{name} was written"
        );
    }
}
