//! Selects the images of add-ons for a Kubernetes version.

use yoke_api::KubernetesVersion;

use crate::addons::facts::Facts;

/// CoreDNS releases by the first minor version of Kubernetes that uses them, as in kubeadm.
const CORE_DNS: [(u16, &str); 3] = [(33, "v1.12.0"), (34, "v1.12.1"), (35, "v1.13.1")];

/// metrics-server release, for all versions from 1.31 on.
const METRICS_SERVER: &str = "v0.9.0";

pub(super) fn to_kube_proxy(facts: &Facts<'_>) -> String {
    let named = facts.catalogue.images.kube_proxy.clone();
    named.unwrap_or_else(|| format!("{}/kube-proxy:{}", facts.config.addons.registry, facts.version))
}

pub(super) fn to_core_dns(facts: &Facts<'_>) -> String {
    let named = facts.catalogue.images.core_dns.clone();
    named.unwrap_or_else(|| {
        let release = find_core_dns(facts.version);
        format!("{}/coredns/coredns:{release}", facts.config.addons.registry)
    })
}

pub(super) fn to_metrics_server(facts: &Facts<'_>) -> String {
    let named = facts.catalogue.images.metrics_server.clone();
    named.unwrap_or_else(|| {
        let registry = &facts.config.addons.registry;
        format!("{registry}/metrics-server/metrics-server:{METRICS_SERVER}")
    })
}

fn find_core_dns(version: KubernetesVersion) -> &'static str {
    let mut known = CORE_DNS.iter().rev();
    let found = known.find(|(minor, _)| *minor <= version.minor);
    found.unwrap_or(&CORE_DNS[0]).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_dns_follows_the_minor_version() {
        for (version, expected) in [
            ("v1.32.1", "v1.12.0"),
            ("v1.33.0", "v1.12.0"),
            ("v1.34.9", "v1.12.1"),
            ("v1.35.4", "v1.13.1"),
            ("v1.99.0", "v1.13.1"),
        ] {
            assert_eq!(find_core_dns(version.parse().unwrap()), expected, "{version}");
        }
    }
}
