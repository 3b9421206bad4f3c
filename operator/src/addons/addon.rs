//! The kinds of add-ons, and whether a spec enables them. Pure.

use yoke_api::ClusterSpec;

/// An add-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addon {
    /// DNS of the cluster.
    CoreDns,
    /// Virtual IPs of Services.
    KubeProxy,
    /// Resource metrics of workers and Pods.
    MetricsServer,
    /// Tunnel from the control plane to the workers.
    Konnectivity,
}

impl Addon {
    /// All add-ons.
    pub const ALL: [Self; 4] = [Self::CoreDns, Self::KubeProxy, Self::MetricsServer, Self::Konnectivity];

    /// Value of the add-on's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CoreDns => "coredns",
            Self::KubeProxy => "kube-proxy",
            Self::MetricsServer => "metrics-server",
            Self::Konnectivity => "konnectivity-agent",
        }
    }

    /// Returns whether a spec enables the add-on.
    pub fn is_enabled(self, spec: &ClusterSpec) -> bool {
        match self {
            Self::CoreDns => spec.addons.core_dns.enabled,
            Self::KubeProxy => spec.addons.kube_proxy.enabled,
            Self::MetricsServer => spec.addons.metrics_server.enabled,
            Self::Konnectivity => spec.konnectivity.is_enabled(),
        }
    }
}
