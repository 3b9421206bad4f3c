//! Objects that come back from a backup have other UIDs, and are who they were.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::{Cluster, Tenant};
use yoke_operator::tenant;

use crate::harness::{Host, TENANT, condition};

async fn annotation(host: &Host, namespace: &str, key: &str) -> Option<String> {
    let namespaces = Api::<Namespace>::all(host.client.clone());
    let annotations = namespaces.get(namespace).await.unwrap().metadata.annotations;
    annotations.unwrap_or_default().remove(&format!("yoke.drzzl.io/{key}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_that_is_made_again_takes_over_what_it_left() {
    let host = Host::start().await;
    let former = host.bring_up("a").await;
    let hosted = host.hosted("a").await;
    host.lose_cluster("a").await;
    let mut again = Cluster::new("a", Default::default());
    again.spec.id = former.spec.id.clone();
    let again = host.clusters().create(&PostParams::default(), &again).await.unwrap();
    assert_ne!(again.metadata.uid, former.metadata.uid);
    host.bring("a", "the namespace is the new object's", async || {
        annotation(&host, &hosted, "owner-uid").await == again.metadata.uid
    })
    .await;
    let accepted = async || condition(&host.cluster("a").await, "Accepted");
    host.bring("a", "it is accepted", async || accepted().await == "True/Valid")
        .await;
}

/// Takes the Tenant's object away without the operator.
async fn lose_tenant(host: &Host) {
    host.patch_tenant(serde_json::json!({"metadata": {"finalizers": null}}))
        .await;
    let tenants = Api::<Tenant>::all(host.client.clone());
    tenants.delete(TENANT, &Default::default()).await.unwrap();
    host.until("the watch knows that the Tenant is gone", async || {
        host.context.caches.tenants.get(&ObjectRef::new(TENANT)).is_none()
    })
    .await;
}

async fn make_tenant(host: &Host, name: &str) -> Tenant {
    let tenant = Tenant::new(name, Default::default());
    let tenants = Api::<Tenant>::all(host.client.clone());
    tenants.create(&PostParams::default(), &tenant).await.unwrap()
}

/// The state and the reason of a Tenant's condition after it was reconciled.
async fn judged(host: &Host, name: &str) -> String {
    let tenants = Api::<Tenant>::all(host.client.clone());
    let tenant = tenants.get(name).await.unwrap();
    let _ = Box::pin(tenant::reconcile(Arc::new(tenant), Arc::clone(&host.context))).await;
    let status = tenants.get(name).await.unwrap().status.unwrap_or_default();
    let mut conditions = status.conditions.into_iter();
    let accepted = conditions.find(|condition| condition.type_ == "Accepted").unwrap();
    format!("{}/{}", accepted.status, accepted.reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_that_is_restored_takes_its_namespace_back() {
    let host = Host::start().await;
    let former = Api::<Tenant>::all(host.client.clone()).get(TENANT).await.unwrap();
    host.bring_up("a").await;
    lose_tenant(&host).await;
    host.bring("a", "the Tenant is missed", async || {
        condition(&host.cluster("a").await, "Accepted") == "False/TenantMissing"
    })
    .await;
    let again = make_tenant(&host, TENANT).await;
    assert_ne!(again.uid(), former.uid());
    host.until("the Tenant is accepted", async || {
        judged(&host, TENANT).await == "True/Valid"
    })
    .await;
    assert_eq!(annotation(&host, TENANT, "owner-uid").await, again.uid());
    host.bring("a", "so is its Cluster", async || {
        condition(&host.cluster("a").await, "Accepted") == "True/Valid"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_takes_no_namespace_of_another() {
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
        make_tenant(&host, name).await;
        for _ in 0..3 {
            assert_eq!(judged(&host, name).await, "False/NamespaceConflict", "{name}");
        }
        let after = namespaces.get(name).await.unwrap();
        assert_eq!(
            after.resource_version(),
            before.resource_version(),
            "{name} is not written"
        );
    }
}
