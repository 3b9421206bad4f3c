//! A refused Cluster reports why. If it was accepted before, it continues to run.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::runtime::controller::Action;
use yoke_api::{Cluster, Tenant};

use crate::harness::{Host, Names, PKI, TENANT, condition};

/// The schema accepts the name, so that the status can report the reason. No object is created with
/// that name.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_a_too_long_name_is_refused_and_deletable() {
    let host = Host::start().await;
    let name = &"n".repeat(63);
    host.create_cluster(name).await;
    host.reconcile_until_condition(name, "Accepted", "False/NameInvalid")
        .await;
    assert_eq!(host.events().await, ["NameInvalid"]);
    let status = host.cluster(name).await.status.unwrap();
    assert_eq!(status.endpoint, None, "no DNS label is that long");
    let hosted = Api::<Namespace>::all(host.client.clone())
        .get_opt(&host.hosted(name).await)
        .await
        .unwrap();
    assert_eq!(hosted, None);
    host.clusters().delete(name, &Default::default()).await.unwrap();
    let observe = async || host.clusters().get_opt(name).await.unwrap();
    host.reconcile_until(name, "the deletion of the Cluster", observe, Option::is_none)
        .await;
    let longer = Cluster::new(&"n".repeat(64), Default::default());
    let refused = host.clusters().create(&Default::default(), &longer).await.unwrap_err();
    assert!(refused.to_string().contains("at most 63"), "{refused}");
}

/// A certificate that cert-manager renews is copied, whether or not the spec is refused.
#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_reach_a_refused_cluster() {
    let host = Host::start().await;
    let cluster = host.bring_up("a").await;
    let id = cluster.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let before = host.stateful_set(&hosted).await.unwrap().spec;
    // Refused: the quota is now below the usage.
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 0}}}))
        .await;
    host.reconcile_until_condition("a", "Accepted", "False/QuotaExceeded")
        .await;
    // Renewal of the certificates.
    for name in ["apiserver", "admin"] {
        host.delete::<Secret>(PKI, &format!("{id}-{name}")).await;
    }
    host.issuer.issue(&host.client).await;
    let text = async |namespace: &str, name: &str, key: &str| {
        let data = host
            .secret(namespace, name)
            .await
            .and_then(|secret| secret.data?.remove(key));
        String::from_utf8(data.map(|bytes| bytes.0).unwrap_or_default()).unwrap()
    };
    let renewed = text(PKI, &format!("{id}-apiserver"), "tls.crt").await;
    let copy = async || text(&hosted, "kube-apiserver", "tls.crt").await;
    host.reconcile_until_equal("a", "the copy of the serving certificate", copy, renewed)
        .await;
    let admin = data_encoding::BASE64.encode(text(PKI, &format!("{id}-admin"), "tls.crt").await.as_bytes());
    assert!(text("demo", "a-kubeconfig", "value").await.contains(&admin));
    assert_eq!(condition(&host.cluster("a").await, "Accepted"), "False/QuotaExceeded");
    // In addition, the Tenant is being deleted, and waits for its Cluster.
    Api::<Tenant>::all(host.client.clone())
        .delete(TENANT, &Default::default())
        .await
        .unwrap();
    host.reconcile_until_condition("a", "Accepted", "False/TenantMissing")
        .await;
    host.delete::<Secret>(PKI, &format!("{id}-apiserver")).await;
    host.issuer.issue(&host.client).await;
    let renewed = text(PKI, &format!("{id}-apiserver"), "tls.crt").await;
    host.reconcile_until_equal("a", "the copy of the next serving certificate", copy, renewed)
        .await;
    assert_eq!(
        host.stateful_set(&hosted).await.unwrap().spec,
        before,
        "the running control plane changed"
    );
}

/// Returns the incarnation and the digest in the StatefulSet.
async fn start(host: &Host, hosted: &str) -> (u64, String) {
    let template = host.stateful_set(hosted).await.unwrap().spec.unwrap().template;
    let annotations = template.metadata.unwrap().annotations.unwrap();
    let number = annotations["yoke.drzzl.io/incarnation"].clone();
    let arguments = template.spec.unwrap().containers.remove(0).args.unwrap();
    assert!(arguments.contains(&format!("--incarnation={number}")));
    (
        number.parse().unwrap(),
        annotations["yoke.drzzl.io/config-digest"].clone(),
    )
}

/// A change of files that are read only once restarts a maintained control plane, with another
/// incarnation. The tenant's namespace cannot be written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_cluster_restarts_with_a_higher_incarnation() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let hosted = host.hosted("a").await;
    let (number, digest) = start(&host, &hosted).await;
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 0}}}))
        .await;
    host.reconcile_until_condition("a", "Accepted", "False/QuotaExceeded")
        .await;
    assert_eq!(start(&host, &hosted).await, (number, digest.clone()));
    let action = host.reconcile("a").await.unwrap();
    assert_eq!(action, Action::requeue(Duration::from_secs(2)), "no wait for its pod");
    // The tenant's namespace ends, so its kubeconfig cannot be created again.
    Api::<Namespace>::all(host.client.clone())
        .delete(TENANT, &Default::default())
        .await
        .unwrap();
    host.lose_secret(TENANT, "a-kubeconfig").await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut root = rcgen::CertificateParams::default();
    root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = root.self_signed(&key).unwrap().pem();
    host.context.host.replace_root_certificate(root).await;
    let incarnation = async || start(&host, &hosted).await.0;
    host.reconcile_until_equal("a", "the incarnation", incarnation, number + 1)
        .await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap_err();
        let (current_number, current_digest) = start(&host, &hosted).await;
        assert_eq!(current_number, number + 1);
        assert_ne!(current_digest, digest);
    }
    assert_eq!(condition(&host.cluster("a").await, "Degraded"), "True/ReconcileFailed");
}

/// The ingress configuration loses a name that the Tenant may no longer have, and the next serving
/// certificate does not contain it.
#[tokio::test(flavor = "multi_thread")]
async fn host_names_of_a_withdrawn_domain_are_removed() {
    let host = Host::start().await;
    host.bring_up_named("a", "api.example.org").await;
    host.patch_tenant(serde_json::json!({"spec": {"allowedDomains": []}}))
        .await;
    host.reconcile_until_names("a", Names::NEITHER).await;
    assert_eq!(
        condition(&host.cluster("a").await, "Accepted"),
        "False/HostnameNotAllowed"
    );
    assert!(host.stateful_set(&host.hosted("a").await).await.is_some());
    // With the domain allowed again, the name is back.
    host.patch_tenant(serde_json::json!({"spec": {"allowedDomains": ["example.org"]}}))
        .await;
    host.reconcile_until_names("a", Names::BOTH).await;
}

/// If two Clusters request a name, the older gets it, even if the younger had it before.
#[tokio::test(flavor = "multi_thread")]
async fn the_older_of_two_clusters_gets_a_host_name() {
    let host = Host::start().await;
    host.bring_up("a").await;
    host.bring_up_named("b", "api.example.org").await;
    let claim = |names: &[&str]| serde_json::json!({"spec": {"endpoint": {"extraSANs": names}}});
    host.patch_cluster("a", claim(&["api.example.org"])).await;
    host.reconcile_until_names("b", Names::NEITHER).await;
    assert_eq!(
        condition(&host.cluster("b").await, "Accepted"),
        "False/HostnameConflict"
    );
    assert!(host.stateful_set(&host.hosted("b").await).await.is_some());
    host.reconcile_until_names("a", Names::BOTH).await;
    host.patch_cluster("a", claim(&[])).await;
    let names = async || host.names_of("b").await;
    host.reconcile_until("b", "the publication of the name", names, |names| names.is_published)
        .await;
    assert_eq!(condition(&host.cluster("b").await, "Accepted"), "True/Valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_reported_although_maintenance_fails() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let key = rcgen::KeyPair::generate().unwrap();
    let not_a_ca = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
    host.context.host.replace_root_certificate(not_a_ca).await;
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 0}}}))
        .await;
    let conditions = async || {
        let cluster = host.cluster("a").await;
        ["Accepted", "Degraded"].map(|type_| condition(&cluster, type_))
    };
    let expected = ["False/QuotaExceeded", "True/ReconcileFailed"];
    host.reconcile_until_equal("a", "the conditions Accepted and Degraded", conditions, expected)
        .await;
    let reasons = host.events().await;
    assert!(reasons.contains(&"QuotaExceeded".to_owned()), "{reasons:?}");
}
