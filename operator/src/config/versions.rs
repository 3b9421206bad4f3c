//! The catalog of Kubernetes versions.

use serde::Deserialize;

/// One Kubernetes version that the host offers.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionEntry {
    /// The version, with or without `v`.
    pub version: String,
    /// Whether Clusters that do not set a version use this one.
    #[serde(default)]
    pub default: bool,
    /// Images of the version.
    pub images: VersionImages,
}

/// Images of one version, full references.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionImages {
    /// kube-apiserver.
    #[serde(alias = "kubeAPIServer")]
    pub api_server: String,
    /// kube-controller-manager.
    #[serde(alias = "kubeControllerManager")]
    pub controller_manager: String,
    /// kube-scheduler.
    #[serde(alias = "kubeScheduler")]
    pub scheduler: String,
    /// kube-proxy, which workers pull. Defaults to the image of the version.
    #[serde(default)]
    pub kube_proxy: Option<String>,
    /// CoreDNS, which workers pull. Defaults to the image that belongs to the minor version.
    #[serde(default, rename = "coreDNS")]
    pub core_dns: Option<String>,
    /// metrics-server, which workers pull.
    #[serde(default)]
    pub metrics_server: Option<String>,
}
