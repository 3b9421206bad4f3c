//! kube-proxy, in the form that kubeadm uses.
//!
//! kube-proxy reaches the API through the ingress's address and the cluster's public name. It
//! cannot use the Service `default/kubernetes`, whose rules it creates itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, HostPathVolumeSource, PodSpec, ResourceRequirements, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;
use yoke_api::KubernetesVersion;
use yoke_pki::kubeconfig::{Authority, Credential, Kubeconfig};

use crate::addons::facts::Facts;
use crate::addons::images;
use crate::addons::kube_system::{
    DaemonPods, build_account, build_account_binding, build_daemon_set, build_files, build_mount, build_toleration,
    build_variable, build_volume, to_map,
};
use crate::addons::part::{Parts, digest};
use crate::config::ingress_url;
use crate::model::pod_security::build_security;

const NAME: &str = "kube-proxy";
const FILES: &str = "/var/lib/kube-proxy";
const CONFIG: &str = "config.conf";
const KUBECONFIG: &str = "kubeconfig.conf";
/// Path of the ServiceAccount's token and the CA in every Pod.
const TOKEN_FILES: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The first minor version in which the nftables mode is stable.
const NFTABLES_MINOR: u16 = 33;

/// Backend of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Nftables,
    Iptables,
}

/// Fields of `KubeProxyConfiguration` that differ from the defaults.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyConfiguration<'a> {
    api_version: &'static str,
    kind: &'static str,
    mode: Mode,
    client_connection: ClientConnection,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: &'a str,
    conntrack: Conntrack,
}

#[derive(Serialize)]
struct ClientConnection {
    kubeconfig: String,
}

/// Leaves the connection-tracking limits of the machine unchanged. Inside a network namespace they
/// are read-only, and kube-proxy would not start.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Conntrack {
    max_per_core: i32,
    min: i32,
    tcp_established_timeout: &'static str,
    tcp_close_wait_timeout: &'static str,
}

pub(super) fn build(facts: &Facts<'_>, parts: &mut Parts) {
    let mode = to_mode(facts.version);
    let files = BTreeMap::from([
        (CONFIG.to_owned(), to_configuration(facts, mode)),
        (KUBECONFIG.to_owned(), to_kubeconfig(facts)),
    ]);
    let files_digest = digest(&files);
    parts.add(&build_account(NAME));
    parts.add(&build_account_binding("yoke:node-proxier", "system:node-proxier", NAME));
    parts.add(&build_files(NAME, files));
    parts.add(&build_daemon_set(DaemonPods {
        name: NAME,
        app: NAME,
        files_digest: Some(files_digest),
        pod: build_pod(facts, mode),
        update: DaemonPods::tenth(),
    }));
}

fn to_mode(version: KubernetesVersion) -> Mode {
    if version.minor >= NFTABLES_MINOR {
        Mode::Nftables
    } else {
        Mode::Iptables
    }
}

/// Encodes as JSON, which is valid YAML.
fn to_configuration(facts: &Facts<'_>, mode: Mode) -> String {
    let configuration = ProxyConfiguration {
        api_version: "kubeproxy.config.k8s.io/v1alpha1",
        kind: "KubeProxyConfiguration",
        mode,
        client_connection: ClientConnection {
            kubeconfig: format!("{FILES}/{KUBECONFIG}"),
        },
        cluster_cidr: &facts.spec.network.pod_cidr,
        conntrack: Conntrack {
            max_per_core: 0,
            min: 0,
            tcp_established_timeout: "0s",
            tcp_close_wait_timeout: "0s",
        },
    };
    serde_json::to_string_pretty(&configuration).expect("fields are strings and numbers")
}

fn to_kubeconfig(facts: &Facts<'_>) -> String {
    let kubeconfig = Kubeconfig {
        context: "cluster".into(),
        user: NAME.into(),
        namespace: None,
        server: ingress_url(facts.config),
        tls_server_name: Some(facts.public_name.to_string()),
        authority: Authority::File(format!("{TOKEN_FILES}/ca.crt")),
        credential: Credential::TokenFile(format!("{TOKEN_FILES}/token")),
    };
    kubeconfig.to_yaml().expect("fields are strings")
}

fn build_pod(facts: &Facts<'_>, mode: Mode) -> PodSpec {
    let path = |name: &str, path: &str, type_: Option<&str>| Volume {
        name: name.into(),
        host_path: Some(HostPathVolumeSource {
            path: path.into(),
            type_: type_.map(str::to_owned),
        }),
        ..Volume::default()
    };
    let mut volumes = vec![build_volume(NAME, None)];
    if mode == Mode::Iptables {
        volumes.push(path("xtables-lock", "/run/xtables.lock", Some("FileOrCreate")));
        volumes.push(path("modules", "/lib/modules", None));
    }
    PodSpec {
        service_account_name: Some(NAME.into()),
        enable_service_links: Some(false),
        host_network: Some(true),
        dns_policy: Some("Default".into()),
        priority_class_name: Some("system-node-critical".into()),
        node_selector: Some(to_map(&[("kubernetes.io/os", "linux")])),
        tolerations: Some(vec![build_toleration(None)]),
        containers: vec![build_container(facts, mode)],
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

fn build_container(facts: &Facts<'_>, mode: Mode) -> Container {
    let mut mounts = vec![build_mount(NAME, FILES)];
    if mode == Mode::Iptables {
        mounts.push(VolumeMount {
            read_only: None,
            ..build_mount("xtables-lock", "/run/xtables.lock")
        });
        mounts.push(build_mount("modules", "/lib/modules"));
    }
    let requests = to_map(&[("cpu", "20m"), ("memory", "32Mi")]).into_iter();
    Container {
        name: NAME.into(),
        image: Some(images::to_kube_proxy(facts)),
        image_pull_policy: Some(facts.config.image_pull_policy.clone()),
        command: Some(vec![
            "/usr/local/bin/kube-proxy".into(),
            format!("--config={FILES}/{CONFIG}"),
            "--hostname-override=$(NODE_NAME)".into(),
        ]),
        env: Some(vec![build_variable("NODE_NAME", "spec.nodeName")]),
        resources: Some(ResourceRequirements {
            requests: Some(requests.map(|(name, value)| (name, Quantity(value))).collect()),
            ..ResourceRequirements::default()
        }),
        security_context: Some(to_security(mode)),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// The iptables mode loads modules and writes kernel settings; nftables needs neither.
fn to_security(mode: Mode) -> SecurityContext {
    match mode {
        Mode::Nftables => SecurityContext {
            capabilities: Some(Capabilities {
                add: Some(vec!["NET_ADMIN".into()]),
                drop: Some(vec!["ALL".into()]),
            }),
            ..build_security()
        },
        Mode::Iptables => SecurityContext {
            privileged: Some(true),
            ..SecurityContext::default()
        },
    }
}
