//! Add-ons: what the operator or the workers set up in a cluster beside its API. Each can be
//! disabled.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Add-ons of a cluster: objects that the operator maintains in it, and the Pod network of the
/// workers. konnectivity agents are configured by `spec.konnectivity`.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddonsSpec {
    /// Cluster DNS: the DaemonSet `coredns`, and the Service `kube-dns` at the tenth address of
    /// `spec.network.serviceCIDR`. Each worker runs a Pod and the Service routes to the Pod on the
    /// same worker, because two workers behind NAT may not reach each other. To customize it,
    /// create the ConfigMap `coredns-custom`: keys `*.override` extend the configuration for all
    /// names, and keys `*.server` add server blocks. Enabled by default.
    #[serde(default, rename = "coreDNS")]
    pub core_dns: AddonSpec,
    /// Service addresses on workers: the DaemonSet `kube-proxy`. From Kubernetes 1.33 on, it needs
    /// Linux 5.13 or later on the worker. If you disable it, its packet-filter rules stay on a
    /// worker until that worker restarts. Enabled by default.
    #[serde(default)]
    pub kube_proxy: AddonSpec,
    /// Resource usage of workers and Pods, for `kubectl top` and horizontal autoscaling: the
    /// Deployment `metrics-server`. Requires `spec.konnectivity` to be other than `Disabled`.
    /// Disabled by default: without a worker to run it, the API `metrics.k8s.io` does not answer,
    /// and then no namespace can be deleted.
    #[serde(default)]
    pub metrics_server: OptionalAddonSpec,
    /// Pod network that `yoke-worker` sets up: a bridge on each worker, and WireGuard between
    /// workers. Enabled by default. Disable it to use a CNI plugin of your own, such as Cilium,
    /// Calico or flannel.
    ///
    /// If disabled, workers create no Pod interfaces, CNI configuration, tunnels or packet-filter
    /// rules for Pods. A Node is not ready until the plugin is installed: its programs in
    /// `/var/lib/yoke-worker/bin` and its configuration in `/var/lib/yoke-worker/config/cni`. A
    /// DaemonSet mounts these two directories with `hostPath` as `/opt/cni/bin` and
    /// `/etc/cni/net.d`. kube-proxy treats addresses in `spec.network.podCIDR` as Pod addresses.
    ///
    /// A change applies to workers that join with a JoinToken created after it. Existing workers
    /// keep their network until they leave and join again.
    #[serde(default)]
    pub pod_network: AddonSpec,
}

/// An add-on that is enabled by default.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddonSpec {
    /// Whether the add-on is enabled. Default: true.
    #[serde(default = "default_enabled")]
    pub enabled: bool,
}

/// An add-on that is disabled by default.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionalAddonSpec {
    /// Whether the add-on is enabled. Default: false.
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
