//! Builds the configuration files of containerd, CNI and the kubelet. Pure: the same worker gets
//! the same bytes.

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

/// Pause image of a Pod sandbox, as of Kubernetes 1.34 and later.
pub(crate) const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10";

/// Limit of process ids for a Pod, so that a fork bomb does not exhaust those of the machine.
const POD_PIDS_MAX: u32 = 4096;
const IMAGE_PULLS_MAX: u32 = 4;

/// Facts about the machine that the files depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineFacts {
    /// Control group of all Pods, relative to the root of each hierarchy.
    pub(crate) pods_cgroup: String,
    pub(crate) cgroup_v1: bool,
    /// Whether this process may lower OOM scores (`CAP_SYS_RESOURCE`).
    pub(crate) may_raise_oom_score: bool,
    /// Capacity of the machine, for a worker with limits.
    pub(crate) capacity: Option<Capacity>,
    /// Resolver configuration without a stub on loopback, which Pods could not reach.
    pub(crate) resolv_conf: PathBuf,
    /// The worker's Pod range, once known.
    pub(crate) pods: Option<Cidr>,
}

/// Builds containerd's configuration, in the format that versions 1.6, 1.7 and 2 read.
pub(crate) fn build_containerd(layout: &Layout, worker: &Worker, machine: &MachineFacts) -> String {
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

/// Builds the CNI configuration, which needs the Node's Pod range.
pub(crate) fn build_cni(layout: &Layout, id: &Id, pods: Cidr, mtu: u32) -> String {
    let config = json!({
        "cniVersion": "1.0.0",
        "name": id.network(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": id.bridge(),
                "isGateway": true,
                // A Node that is registered again has another Pod range.
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
            // With `snat` the plugin sets `route_localnet`, so that a host port also answers on
            // 127.0.0.1. Pods could then reach services of the machine that listen on loopback
            // only.
            {"type": "portmap", "snat": false, "capabilities": {"portMappings": true}},
        ],
    });
    format!("{config:#}\n")
}

/// Builds the `KubeletConfiguration`. Fields that are not set here have the default of Kubernetes.
pub(crate) fn build_kubelet(layout: &Layout, worker: &Worker, machine: &MachineFacts) -> String {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": layout.client_ca()},
        },
        "authorization": {"mode": "Webhook"},
        // The kubelet requests and renews both certificates through the API.
        "rotateCertificates": true,
        // The serving certificate is for the Node's address, so that must be final.
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
        // kube-proxy has chains of its own, and the kubelet's would stay behind:
        // <https://kep.k8s.io/3178>, as of 1.28.
        // of 1.28.
        "makeIPTablesUtilChains": false,
        "failSwapOn": false,
        "seccompDefault": true,
        "podPidsLimit": POD_PIDS_MAX,
        // A signal that is missing here is not monitored. Kubernetes' defaults for disks are
        // percentages: a seventh of a large disk is room for many Pods.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "2Gi",
            "nodefs.inodesFree": "5%",
            "imagefs.available": "3Gi",
            "imagefs.inodesFree": "5%",
        },
        // Kubernetes' default here is a percentage, too. Images are deleted when the limits above
        // are reached.
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": false,
        "maxParallelImagePulls": IMAGE_PULLS_MAX,
    });
    add_machine_settings(&mut config, worker, machine);
    format!("{config:#}\n")
}

/// Adds the fields that depend on taints, limits and the version of control groups.
fn add_machine_settings(config: &mut Value, worker: &Worker, machine: &MachineFacts) {
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
        // With version 1 the kubelet cannot set all limits on the group of all Pods: some may be
        // missing in a group that the worker created.
        config["enforceNodeAllocatable"] = Value::Array(Vec::new());
    }
}

/// Builds the kubeconfig that the kubelet uses until it has a certificate.
pub(crate) fn build_bootstrap(layout: &Layout, line: &JoinLine) -> Result<String, KubeconfigError> {
    let config = Kubeconfig {
        context: "cluster".into(),
        user: "bootstrap".into(),
        namespace: None,
        server: format!("https://{}", line.server),
        tls_server_name: None,
        // The kubelet copies this path into its kubeconfig, so a new CA only needs a new file.
        authority: Authority::File(layout.ca().display().to_string()),
        credential: Credential::Token(line.token.clone()),
    };
    config.to_yaml()
}

/// Builds the arguments of the kubelet.
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

/// Returns the Node's address, or `None` if the kubelet detects it. An ephemeral worker has a
/// network of its own, where the machine's address does not exist and no other node knows the
/// addresses of the link:
/// - With the built-in Pod network, the address is that of the Pod range's gateway, which all Pods
///   of the cluster reach. It is known only after the Node exists.
/// - With a CNI plugin, no other worker reaches the node, and any address of the Pod range may
///   belong to a Pod. The address is the worker's end of the link.
pub(crate) fn choose_address(worker: &Worker, pods: Option<Cidr>) -> Option<IpAddr> {
    match (&worker.uplink, pods) {
        (None, _) => worker.node_ip,
        (Some(uplink), None) => Some(uplink.address.into()),
        (Some(uplink), Some(pods)) => Some(pods.nth(1).unwrap_or(uplink.address.into())),
    }
}

#[cfg(test)]
mod tests;
