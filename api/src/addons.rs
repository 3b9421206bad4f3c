//! Add-ons: what a cluster has beside its API without anybody installing it, each of which can be turned off.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a cluster has beside its API: objects that the operator keeps in it, and the workers' network of Pods. konnectivity's agents
/// are turned on by `spec.konnectivity`.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddonsSpec {
    /// DNS of the cluster: DaemonSet `coredns`, one on each worker, because two workers behind NATs do not reach each other; and
    /// Service `kube-dns` at the tenth address of `spec.network.serviceCIDR`, which leads to the one on the same worker. Of the
    /// ConfigMap `coredns-custom`, if there is one, `*.override` become part of its configuration for all names, and `*.server`
    /// servers of their own.
    #[serde(default, rename = "coreDNS")]
    pub core_dns: AddonSpec,
    /// Addresses of Services on the workers: DaemonSet `kube-proxy`. From Kubernetes 1.33 on a worker needs Linux 5.13 for it.
    /// Rules that it has made stay on a worker until that starts again.
    #[serde(default)]
    pub kube_proxy: AddonSpec,
    /// What workers and Pods use, for `kubectl top` and horizontal autoscaling: Deployment `metrics-server`. Off unless it is
    /// turned on, for the API `metrics.k8s.io` answers only where a worker runs it, and while an API does not answer, no namespace
    /// can be deleted. Needs `spec.konnectivity`.
    #[serde(default)]
    pub metrics_server: OptionalAddonSpec,
    /// The network of Pods, which workers make themselves (`yoke-worker`): a bridge on each, and WireGuard between them. Without it
    /// it is that of a CNI plugin of your own, such as Cilium, Calico or flannel: a worker connects no Pod then, writes no CNI
    /// configuration, and makes neither tunnels nor rules of the packet filter for Pods. Its Node is not ready until the plugin is
    /// there: programs in `/var/lib/yoke-worker/bin` and a configuration in `/var/lib/yoke-worker/config/cni` of each worker, which
    /// plugins call `/opt/cni/bin` and `/etc/cni/net.d`, and which a DaemonSet mounts by `hostPath`. kube-proxy takes addresses of
    /// `spec.network.podCIDR` for those of Pods. A change holds for workers that join by a JoinToken which is made after it; those
    /// that are there stay as they are until they leave and join again.
    #[serde(default)]
    pub pod_network: AddonSpec,
}

/// One add-on.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddonSpec {
    /// Whether the cluster has it.
    #[serde(default = "default_enabled")]
    pub enabled: bool,
}

/// One add-on that a cluster has not, unless it is asked for.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionalAddonSpec {
    /// Whether the cluster has it.
    #[serde(default)]
    pub enabled: bool,
}

fn default_enabled() -> bool {
    true
}

impl Default for AddonSpec {
    fn default() -> Self {
        Self {
            enabled: default_enabled(),
        }
    }
}
