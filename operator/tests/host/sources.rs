//! Allowed client addresses of a Cluster: which ones the API server accepts, and what is published
//! to the ingress.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Patch;
use serde_json::json;
use yoke_api::ingress::{CONFIG_KEY, IngressConfig};

use crate::harness::{Host, condition};

/// Returns the published addresses; `None` if all are allowed.
async fn told(host: &Host, name: &str) -> Option<Vec<String>> {
    let hosted = host.hosted(name).await;
    let map = host.api::<ConfigMap>(&hosted).get("yoke-ingress").await.unwrap();
    let config: IngressConfig = serde_json::from_str(&map.data.unwrap()[CONFIG_KEY]).unwrap();
    let ranges = config.allowed_sources?;
    Some(ranges.iter().map(ToString::to_string).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_reach_the_ingress_and_outlive_a_refusal() {
    let host = Host::start().await;
    host.bring_up("a").await;
    assert_eq!(told(&host, "a").await, None);
    let claim = |ranges: &[&str]| json!({"spec": {"endpoint": {"allowedCIDRs": ranges}}});
    for (rule, range) in [
        ("no prefix", "192.0.2.1"),
        ("bits behind the prefix", "192.0.2.1/24"),
        ("a prefix past its end", "192.0.2.0/33"),
        ("a name", "office/24"),
        ("an address that is none", "999.0.2.0/24"),
        ("bits of IPv6 behind the prefix", "2001:db8::1/64"),
    ] {
        let patch = Patch::Merge(claim(&["198.51.100.0/24", range]));
        let refused = host.clusters().patch("a", &Default::default(), &patch).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("allowedCIDRs"), "{rule}: {refused}");
    }
    let ranges = ["192.0.2.0/24", "2001:db8::/32"];
    host.patch_cluster("a", claim(&ranges)).await;
    host.bring("a", "the ingress is told", async || {
        told(&host, "a").await.is_some_and(|told| told == ranges)
    })
    .await;

    // A refused spec opens no address, but those that it closes are closed.
    host.patch_tenant(json!({"spec": {"quota": {"clusters": 0}}})).await;
    host.patch_cluster("a", claim(&[])).await;
    host.bring("a", "it is refused", async || {
        condition(&host.cluster("a").await, "Accepted") == "False/QuotaExceeded"
    })
    .await;
    assert_eq!(told(&host, "a").await.unwrap(), ranges);
    for (rule, asked, expected) in [
        (
            "a part, and another",
            &["192.0.2.128/25", "203.0.113.0/24"][..],
            &["192.0.2.128/25"][..],
        ),
        ("more again", &["192.0.2.0/24"], &["192.0.2.128/25"]),
        ("others", &["203.0.113.0/24"], &[]),
    ] {
        host.patch_cluster("a", claim(asked)).await;
        host.bring("a", rule, async || told(&host, "a").await.unwrap() == expected)
            .await;
        for _ in 0..3 {
            host.reconcile("a").await.unwrap();
        }
        assert_eq!(told(&host, "a").await.unwrap(), expected, "{rule}: it stays so");
        assert_eq!(condition(&host.cluster("a").await, "Accepted"), "False/QuotaExceeded");
    }
    host.patch_cluster("a", claim(&[])).await;
    host.patch_tenant(json!({"spec": {"quota": {"clusters": 5}}})).await;
    host.bring("a", "everybody may again", async || told(&host, "a").await.is_none())
        .await;
}
