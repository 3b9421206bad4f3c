//! Pure: builds the manifests of the objects that every cluster needs.

use crate::network::Network;
use crate::versions::{CERT_MANAGER_IMAGE, COREDNS_IMAGE};

/// Cluster DNS.
pub fn build_coredns(network: &Network) -> String {
    fill(
        include_str!("../../manifests/coredns.yaml"),
        &[
            ("COREDNS_IMAGE", COREDNS_IMAGE),
            ("DNS_IP", &network.plan.dns_service_ip().to_string()),
        ],
    )
}

/// RBAC of kube-router, the NetworkPolicy firewall.
pub fn build_kube_router() -> String {
    fill(include_str!("../../manifests/kube-router.yaml"), &[])
}

/// cert-manager without its CRDs.
pub fn build_cert_manager() -> String {
    fill(
        include_str!("../../manifests/cert-manager.yaml"),
        &[("CERT_MANAGER_IMAGE", CERT_MANAGER_IMAGE)],
    )
}

fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| {
        text.replace(&format!("${{{name}}}"), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::plan::NetworkPlan;

    #[test]
    fn nothing_is_left_to_fill_in() {
        let plan = NetworkPlan::derive("0badcafe", 0, 1500);
        let network: Network =
            serde_json::from_value(serde_json::json!({"plan": plan, "namespace": "yoke-0badcafe"})).unwrap();
        for manifest in [build_coredns(&network), build_kube_router(), build_cert_manager()] {
            assert!(!manifest.contains("${"), "{manifest}");
        }
        assert!(build_coredns(&network).contains(&format!("clusterIP: {}", plan.dns_service_ip())));
    }
}
