//! A paused Cluster: its spec is not reconciled, but its control plane continues to run.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use crate::harness::{Host, Names, PKI, TENANT, condition};

/// A control plane outlives its certificates only if renewed ones reach it, and a pause may last
/// forever.
#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_reach_a_paused_cluster() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let before = host.stateful_set(&hosted).await.unwrap().spec;
    let change = serde_json::json!({"spec": {"paused": true, "version": "v1.35.5"}});
    host.patch_cluster("a", change).await;
    host.reconcile_until_condition("a", "Progressing", "False/Paused").await;
    for name in ["apiserver", "admin"] {
        host.lose_secret(PKI, &format!("{id}-{name}")).await;
    }
    host.reconcile("a").await.unwrap();
    assert_eq!(
        condition(&host.cluster("a").await, "CertificatesReady"),
        "False/CertificatesPending"
    );
    host.issuer.issue(&host.client).await;
    let renewed = host.text(PKI, &format!("{id}-apiserver"), "tls.crt").await;
    let copy = async || host.text(&hosted, "kube-apiserver", "tls.crt").await;
    host.reconcile_until_equal("a", "the copy of the serving certificate", copy, renewed)
        .await;
    let admin = host.text(PKI, &format!("{id}-admin"), "tls.crt").await;
    let admin = data_encoding::BASE64.encode(admin.as_bytes());
    assert!(host.text(TENANT, "a-kubeconfig", "value").await.contains(&admin));
    assert_eq!(
        condition(&host.cluster("a").await, "CertificatesReady"),
        "True/AsExpected"
    );
    assert_eq!(host.stateful_set(&hosted).await.unwrap().spec, before);
    // Lost objects are not restored during a pause: an administrator may be at work.
    host.lose_secret(PKI, &format!("{id}-service-account")).await;
    host.delete::<ConfigMap>(&hosted, "kube-apiserver").await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    let persisted = host.secret(PKI, &format!("{id}-service-account")).await;
    assert_eq!(persisted, None::<Secret>);
    let files = host.api::<ConfigMap>(&hosted).get_opt("kube-apiserver").await.unwrap();
    assert_eq!(files, None);
}

/// A tenant cannot use a pause to withhold a host name from others.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_cluster_loses_a_withdrawn_host_name() {
    let host = Host::start().await;
    host.bring_up_named("a", "api.example.org").await;
    host.patch_cluster("a", serde_json::json!({"spec": {"paused": true}}))
        .await;
    host.reconcile("a").await.unwrap();
    assert!(host.names_of("a").await.is_published);
    host.patch_tenant(serde_json::json!({"spec": {"allowedDomains": []}}))
        .await;
    host.reconcile_until_names("a", Names::NEITHER).await;
}
