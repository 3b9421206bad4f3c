//! Pure: builds the configuration files of a node's processes.

use std::path::Path;

use serde_json::json;

use crate::host_cluster::node::Node;
use crate::layout::Layout;
use crate::names::NAMESPACE;
use crate::network::Network;
use crate::versions::PAUSE_IMAGE;

pub(super) const CONTAINERD: &str = "containerd.toml";
pub(super) const CNI: &str = "cni/10-yoke.conflist";
pub(super) const KUBELET: &str = "kubelet.json";
pub(super) const KUBE_PROXY: &str = "kube-proxy.json";
pub(super) const RESOLV_CONF: &str = "resolv.conf";
pub(super) const AUDIT_POLICY: &str = "audit-policy.json";

/// A development host runs many small control planes.
const MAX_PODS: u32 = 500;

/// Without `CAP_SYS_RESOURCE`, no sandbox starts unless `restrict_oom_score_adj` is set.
pub(super) fn build_containerd(layout: &Layout, runc: &Path) -> String {
    let dir = layout.containerd();
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
temp = "{dir}/tmp"

[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "{PAUSE_IMAGE}"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{bin}"
    conf_dir = "{config}/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{dir}/runc"
"#,
        dir = dir.display(),
        socket = layout.containerd_socket().display(),
        bin = layout.bin().display(),
        config = layout.config().display(),
        runc = runc.display(),
    )
}

/// Pod addresses are not masqueraded: network policies on other nodes match pods by address, and
/// every node has a route back to each pod.
pub(super) fn build_cni(node: &Node, network: &Network) -> String {
    let layout = &node.layout;
    let config = json!({
        "cniVersion": "1.0.0",
        "name": layout.stack_name(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": "yoke0",
                "mtu": network.plan.mtu,
                "isGateway": true,
                // A stack from before multiple nodes has the whole pod subnet on its bridge.
                "forceAddress": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": layout.run().join("cni"),
                    "ranges": [[{"subnet": node.plan.pods.to_string()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{config:#}\n")
}

pub(super) fn build_kubelet(node: &Node, network: &Network, cgroup_root: &str) -> String {
    let (layout, pki) = (&node.layout, node.layout.pki());
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.plan.ip,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.join("kubelet.crt"),
        "tlsPrivateKeyFile": pki.join("kubelet.key"),
        "containerRuntimeEndpoint": format!("unix://{}", layout.containerd_socket().display()),
        "podLogsDir": layout.log().join("pods"),
        "volumePluginDir": layout.kubelet().join("volume-plugins"),
        "resolvConf": layout.config().join(RESOLV_CONF),
        "clusterDNS": [network.plan.dns_service_ip()],
        "clusterDomain": "cluster.local",
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "maxPods": MAX_PODS,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "serializeImagePulls": false,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "0%"},
        // Restart a killed control plane quickly. The default backoff grows to five minutes.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "featureGates": {"KubeletCrashLoopBackOffMax": true},
    });
    format!("{config:#}\n")
}

/// The audit policy of the host API: log only the operator's writes, except renewals of its Lease.
pub(super) fn build_audit_policy() -> String {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
            {
                "level": "Metadata",
                "users": [format!("system:serviceaccount:{NAMESPACE}:yoke-operator")],
                "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            },
            {"level": "None"},
        ],
    });
    format!("{policy:#}\n")
}

/// Leaves the conntrack sysctls alone, because they belong to the root network namespace.
pub(super) fn build_kube_proxy(layout: &Layout, network: &Network) -> String {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": layout.kubeconfig("kube-proxy")},
        "clusterCIDR": network.plan.pods.to_string(),
        "bindAddress": "127.0.0.1",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    });
    format!("{config:#}\n")
}
