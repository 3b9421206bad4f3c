//! A Cluster that is refused after it was accepted stays alive.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use yoke_api::Tenant;

use crate::harness::{Host, PKI, TENANT, condition};

/// A certificate that cert-manager renews is copied, whatever has become of the spec.
#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_reach_a_refused_cluster() {
    let host = Host::start().await;
    let cluster = host.bring_up("a").await;
    let id = cluster.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let before = host.stateful_set(&hosted).await.unwrap().spec;
    // Refused: the quota is lowered below what there is.
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 0}}}))
        .await;
    host.bring("a", "the Cluster is refused", async || {
        condition(&host.cluster("a").await, "Accepted") == "False/QuotaExceeded"
    })
    .await;
    // Renewed.
    for leaf in ["apiserver", "admin"] {
        host.delete::<Secret>(PKI, &format!("{id}-{leaf}")).await;
    }
    host.issuer.issue(&host.client).await;
    let text = async |namespace: &str, name: &str, key: &str| {
        let data = host
            .secret(namespace, name)
            .await
            .and_then(|secret| secret.data?.remove(key));
        String::from_utf8(data.map(|bytes| bytes.0).unwrap_or_default()).unwrap()
    };
    let wanted = text(PKI, &format!("{id}-apiserver"), "tls.crt").await;
    host.bring("a", "the renewed serving certificate is copied", async || {
        text(&hosted, "kube-apiserver", "tls.crt").await == wanted
    })
    .await;
    let admin = data_encoding::BASE64.encode(text(PKI, &format!("{id}-admin"), "tls.crt").await.as_bytes());
    assert!(text("demo", "a-kubeconfig", "value").await.contains(&admin));
    assert_eq!(condition(&host.cluster("a").await, "Accepted"), "False/QuotaExceeded");
    // Worse: the Tenant is to go, and waits for its Cluster.
    Api::<Tenant>::all(host.client.clone())
        .delete(TENANT, &Default::default())
        .await
        .unwrap();
    host.bring("a", "the Tenant is no more", async || {
        condition(&host.cluster("a").await, "Accepted") == "False/TenantMissing"
    })
    .await;
    host.delete::<Secret>(PKI, &format!("{id}-apiserver")).await;
    host.issuer.issue(&host.client).await;
    let wanted = text(PKI, &format!("{id}-apiserver"), "tls.crt").await;
    host.bring("a", "the next one is copied too", async || {
        text(&hosted, "kube-apiserver", "tls.crt").await == wanted
    })
    .await;
    assert_eq!(
        host.stateful_set(&hosted).await.unwrap().spec,
        before,
        "what runs is left"
    );
}
