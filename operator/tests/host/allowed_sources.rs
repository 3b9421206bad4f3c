//! Allowed client addresses of a Cluster: which ones the API server accepts, and what is published
//! to the ingress.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Patch;
use serde_json::json;
use yoke_api::ingress::{CONFIG_KEY, IngressConfig};

use crate::harness::{Host, condition};

/// Returns the published addresses; `None` if all are allowed.
async fn published(host: &Host, name: &str) -> Option<Vec<String>> {
    let hosted = host.hosted(name).await;
    let map = host.api::<ConfigMap>(&hosted).get("yoke-ingress").await.unwrap();
    let config: IngressConfig = serde_json::from_str(&map.data.unwrap()[CONFIG_KEY]).unwrap();
    let ranges = config.allowed_sources?;
    Some(ranges.iter().map(ToString::to_string).collect())
}

fn owned(ranges: &[&str]) -> Vec<String> {
    ranges.iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_cidrs_are_published_and_a_refused_spec_adds_none() {
    let host = Host::start().await;
    host.bring_up("a").await;
    assert_eq!(published(&host, "a").await, None);
    let claim = |ranges: &[&str]| json!({"spec": {"endpoint": {"allowedCIDRs": ranges}}});
    for (rule, range) in [
        ("no prefix", "192.0.2.1"),
        ("host bits are set", "192.0.2.1/24"),
        ("a prefix that is too long", "192.0.2.0/33"),
        ("a name", "office/24"),
        ("an invalid address", "999.0.2.0/24"),
        ("host bits of IPv6 are set", "2001:db8::1/64"),
    ] {
        let patch = Patch::Merge(claim(&["198.51.100.0/24", range]));
        let refused = host.clusters().patch("a", &Default::default(), &patch).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("allowedCIDRs"), "{rule}: {refused}");
    }
    let ranges = ["192.0.2.0/24", "2001:db8::/32"];
    host.patch_cluster("a", claim(&ranges)).await;
    let published_ranges = async || published(&host, "a").await;
    host.reconcile_until_equal("a", "the published ranges", published_ranges, Some(owned(&ranges)))
        .await;

    // A refused spec opens no address, but those that it closes are closed.
    host.patch_tenant(json!({"spec": {"quota": {"clusters": 0}}})).await;
    host.patch_cluster("a", claim(&[])).await;
    host.reconcile_until_condition("a", "Accepted", "False/QuotaExceeded")
        .await;
    assert_eq!(published(&host, "a").await.unwrap(), ranges);
    for (rule, requested, expected) in [
        (
            "a part of a range, and another range",
            &["192.0.2.128/25", "203.0.113.0/24"][..],
            &["192.0.2.128/25"][..],
        ),
        ("the complete range again", &["192.0.2.0/24"], &["192.0.2.128/25"]),
        ("only other ranges", &["203.0.113.0/24"], &[]),
    ] {
        host.patch_cluster("a", claim(requested)).await;
        host.reconcile_until_equal("a", rule, published_ranges, Some(owned(expected)))
            .await;
        for _ in 0..3 {
            host.reconcile("a").await.unwrap();
        }
        assert_eq!(published(&host, "a").await.unwrap(), expected, "{rule}: changed later");
        assert_eq!(condition(&host.cluster("a").await, "Accepted"), "False/QuotaExceeded");
    }
    host.patch_cluster("a", claim(&[])).await;
    host.patch_tenant(json!({"spec": {"quota": {"clusters": 5}}})).await;
    host.reconcile_until_equal("a", "the published ranges", published_ranges, None::<Vec<String>>)
        .await;
}
