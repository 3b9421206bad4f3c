//! The files of containerd, CNI and the kubelet. Pure: the same worker has the same bytes.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};
use yoke_api::Cidr;
use yoke_api::join_token::JoinLine;
use yoke_pki::kubeconfig::{Authority, Credential, Kubeconfig, KubeconfigError};

use crate::id::Id;
use crate::layout::Layout;
use crate::limits::Capacity;
use crate::state::Worker;

/// The image that holds a Pod's namespaces: as of Kubernetes 1.34 and later.
pub(crate) const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10";

/// One Pod that forks without end must not take all process ids of the machine.
const POD_PIDS_MAX: u32 = 4096;
const IMAGE_PULLS_MAX: u32 = 4;

/// What a machine allows, as far as files say something of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// The control group of Pods, from the root of each hierarchy.
    pub(crate) pods_cgroup: String,
    pub(crate) cgroup_v1: bool,
    /// Whether processes may be set to be killed later than others (`CAP_SYS_RESOURCE`).
    pub(crate) may_raise_oom_score: bool,
    /// What there is for everybody, for a worker with limits.
    pub(crate) capacity: Option<Capacity>,
    /// The machine's own resolver configuration, of which none leads to a stub on loopback.
    pub(crate) resolv_conf: PathBuf,
    /// The addresses of the worker's Pods, once they are known.
    pub(crate) pods: Option<Cidr>,
}

/// containerd's configuration, in the version that 1.6, 1.7 and 2 read.
pub(crate) fn build_containerd(layout: &Layout, worker: &Worker, machine: &Machine) -> String {
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
  restrict_oom_score_adj = {restrict}
  netns_mounts_under_state_dir = true
  enable_cdi = {gpus}
  sandbox_image = "{PAUSE_IMAGE}"
  stream_server_address = "127.0.0.1"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{bin}"
    conf_dir = "{cni}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{dir}/runc"
        SystemdCgroup = false
"#,
        dir = layout.containerd().display(),
        socket = layout.containerd_socket().display(),
        restrict = !machine.may_raise_oom_score,
        gpus = worker.has_gpus(),
        bin = layout.bin().display(),
        cni = layout.cni_config().display(),
        runc = layout.binary("runc").display(),
    )
}

/// The network of Pods, once it is known which addresses the node may give.
pub(crate) fn build_cni(layout: &Layout, id: &Id, pods: Cidr, mtu: u32) -> String {
    let config = json!({
        "cniVersion": "1.0.0",
        "name": id.network(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": id.bridge(),
                "isGateway": true,
                // A Node that is made anew has other addresses for its Pods.
                "forceAddress": true,
                "mtu": mtu,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": layout.addresses(),
                    "ranges": [[{"subnet": pods.to_string()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            // With `snat` the plugin lets what comes over the bridge reach 127.0.0.1 of the machine (`route_localnet`), so that a
            // host port answers there, too: then Pods reach what listens on loopback alone.
            {"type": "portmap", "snat": false, "capabilities": {"portMappings": true}},
        ],
    });
    format!("{config:#}\n")
}

/// `KubeletConfiguration`. What is not said here is as Kubernetes has it.
pub(crate) fn build_kubelet(layout: &Layout, worker: &Worker, machine: &Machine) -> String {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": layout.client_authority()},
        },
        "authorization": {"mode": "Webhook"},
        // Both certificates are asked for, and renewed, through the API.
        "rotateCertificates": true,
        // Of a certificate that is for the Node's address.
        "serverTLSBootstrap": worker.uplink.is_none() || !worker.pod_network || machine.pods.is_some(),
        "tlsMinVersion": "VersionTLS12",
        "containerRuntimeEndpoint": format!("unix://{}", layout.containerd_socket().display()),
        "podLogsDir": layout.pod_logs(),
        "volumePluginDir": layout.kubelet().join("volume-plugins"),
        "resolvConf": machine.resolv_conf,
        "clusterDNS": [worker.cluster_dns],
        "clusterDomain": worker.cluster_domain,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": machine.pods_cgroup,
        // They would stay behind, and kube-proxy has its own: <https://kep.k8s.io/3178>, as of 1.28.
        "makeIPTablesUtilChains": false,
        "failSwapOn": false,
        "seccompDefault": true,
        "podPidsLimit": POD_PIDS_MAX,
        // All that is not named here would not be looked at. Kubernetes' own limits for disks are parts of them: a seventh of a
        // large one is room for many Pods.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "2Gi",
            "nodefs.inodesFree": "5%",
            "imagefs.available": "3Gi",
            "imagefs.inodesFree": "5%",
        },
        // So are those for images, which go when the limits above are reached.
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": false,
        "maxParallelImagePulls": IMAGE_PULLS_MAX,
    });
    if !worker.taints.is_empty() {
        config["registerWithTaints"] = json!(worker.taints);
    }
    let (others, own) = machine
        .capacity
        .map(|has| worker.limits.to_reserved(has))
        .unwrap_or_default();
    for (field, reserved) in [("systemReserved", others), ("kubeReserved", own)] {
        if !reserved.is_empty() {
            config[field] = json!(reserved);
        }
    }
    if machine.cgroup_v1 {
        config["failCgroupV1"] = false.into();
        // Its limits on all Pods together are not what version 2 has: the group of a machine's own making may be without.
        config["enforceNodeAllocatable"] = Value::Array(Vec::new());
    }
    format!("{config:#}\n")
}

/// What the kubelet asks with until it has a certificate.
pub(crate) fn build_bootstrap(layout: &Layout, line: &JoinLine) -> Result<String, KubeconfigError> {
    let config = Kubeconfig {
        context: "cluster".into(),
        user: "bootstrap".into(),
        namespace: None,
        server: format!("https://{}", line.server),
        tls_server_name: None,
        // By its path, which the kubelet keeps for good: a CA that is replaced is replaced there.
        authority: Authority::File(layout.authority().display().to_string()),
        credential: Credential::Token(line.token.clone()),
    };
    config.to_yaml()
}

/// Arguments of the kubelet.
pub(crate) fn build_kubelet_arguments(layout: &Layout, worker: &Worker, pods: Option<Cidr>) -> Vec<String> {
    let mut arguments = vec![
        format!("--config={}", layout.kubelet_config().display()),
        format!("--kubeconfig={}", layout.kubeconfig().display()),
        format!("--bootstrap-kubeconfig={}", layout.bootstrap_kubeconfig().display()),
        format!("--cert-dir={}", layout.pki().display()),
        format!("--root-dir={}", layout.kubelet().display()),
        format!("--hostname-override={}", worker.name),
    ];
    let address = choose_address(worker, pods);
    arguments.extend(address.map(|address| format!("--node-ip={address}")));
    if !worker.node_labels.is_empty() {
        let labels: Vec<_> = worker
            .node_labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        arguments.push(format!("--node-labels={}", labels.join(",")));
    }
    arguments
}

/// The Node's address, if the kubelet is not to find it. In a network of its own the machine's is not there, and nobody else knows
/// those of the uplink: it is that of the gateway of its Pods, by which all Pods of the cluster reach it. Nobody knows that before
/// there is a Node. Where the network of Pods is a plugin's, no other worker reaches it, and an address of their range may be a Pod's:
/// it is the uplink's.
pub(crate) fn choose_address(worker: &Worker, pods: Option<Cidr>) -> Option<IpAddr> {
    match (&worker.uplink, pods) {
        (None, _) => worker.node_ip,
        (Some(uplink), None) => Some(uplink.address.into()),
        (Some(uplink), Some(pods)) => Some(pods.nth(1).unwrap_or(uplink.address.into())),
    }
}

#[cfg(test)]
mod tests;
