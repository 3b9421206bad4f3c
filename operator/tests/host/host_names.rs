//! Host names of a Cluster in addition to its public name.

use yoke_pki::cert_manager::Certificate;

use crate::harness::{Host, PKI, condition};

const COPY: &str = "yoke-sleeper";

/// The ingress uses the certificate while the Cluster sleeps.
#[tokio::test(flavor = "multi_thread")]
async fn extra_host_names_have_a_certificate_for_the_activator() {
    let host = Host::start().await;
    host.bring_up_named("a", "api.example.org").await;
    let id = host.cluster("a").await.id().unwrap();
    let (own, hosted) = (format!("{id}-sleeper"), host.hosted("a").await);
    let is_copied = async || {
        let copy = host.text(&hosted, COPY, "tls.crt").await;
        !copy.is_empty() && copy == host.text(PKI, &own, "tls.crt").await
    };
    host.reconcile_until_equal("a", "the copy of the certificate", is_copied, true)
        .await;
    let requested = host.api::<Certificate>(PKI).get(&own).await.unwrap().spec;
    assert_eq!(requested.dns_names, ["api.example.org"]);
    assert_eq!(requested.issuer_ref.name, format!("{id}-ca-g1"));

    // A renewed certificate is copied again, even if the spec is refused by then.
    let before = host.text(&hosted, COPY, "tls.crt").await;
    host.patch_cluster("a", serde_json::json!({"spec": {"class": "none"}}))
        .await;
    host.lose_secret(PKI, &own).await;
    let is_renewed = async || host.text(&hosted, COPY, "tls.crt").await != before && is_copied().await;
    host.reconcile_until_equal("a", "the copy of the renewed certificate", is_renewed, true)
        .await;
    assert_eq!(condition(&host.cluster("a").await, "Accepted"), "False/UnknownClass");

    let nothing = serde_json::json!({"spec": {"class": null, "endpoint": {"extraSANs": []}}});
    host.patch_cluster("a", nothing).await;
    let observe = async || {
        let certificate = host.api::<Certificate>(PKI).get_opt(&own).await.unwrap();
        [
            ("Certificate", certificate.is_some()),
            ("Secret", host.secret(PKI, &own).await.is_some()),
            ("copy", host.secret(&hosted, COPY).await.is_some()),
        ]
    };
    let expected = [("Certificate", false), ("Secret", false), ("copy", false)];
    host.reconcile_until_equal("a", "the existing objects", observe, expected)
        .await;
}
