//! Configuration by the administrator of the host. It is read once at the start from one YAML file
//! (a ConfigMap of the chart), and validated as a whole.
//!
//! The input is the file's text; the output is a [`Config`] in which every reference resolves. No
//! other part of the process reads configuration.

mod check;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use serde::Deserialize;
use yoke_api::KubernetesVersion;

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is not YAML of the expected shape.
    #[error("parsing the configuration")]
    Parse(#[source] Box<serde_saphyr::Error>),
    /// A value is wrong.
    #[error("{field}: {problem}")]
    Value {
        /// Path of the field.
        field: String,
        /// Problem and expected value.
        problem: String,
    },
}

/// The complete configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Domain of the public names: each cluster's public name is one label under it.
    pub base_domain: String,
    /// Namespace of the operator itself. No Tenant may have this name.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// The operator's own pods.
    pub operator_pods: PodSelector,
    /// The ingress, through which all clients connect.
    pub ingress: IngressConfig,
    /// The NATS servers of the stores.
    pub nats: NatsConfig,
    /// Catalog of Kubernetes versions.
    pub versions: Vec<VersionEntry>,
    /// Version for Clusters that do not set one. Optional if the catalog has one entry or marks one
    /// as `default`.
    #[serde(default)]
    pub default_version: Option<String>,
    /// Egress of control planes whose Clusters have an OIDC provider.
    #[serde(default)]
    pub oidc: OidcConfig,
    /// Peers that may read the metrics of the stores. Without an entry, no peer may.
    #[serde(default)]
    pub metrics_from: Vec<NetworkPolicyPeer>,
    /// Image of kine-nats.
    pub kine_nats_image: String,
    /// Image of konnectivity-server.
    pub konnectivity_server_image: String,
    /// Image of konnectivity-agent, which workers pull.
    pub konnectivity_agent_image: String,
    /// Add-ons in tenants' clusters.
    #[serde(default)]
    pub addons: AddonsConfig,
    /// The `yoke-worker` program, as join commands describe it.
    #[serde(default)]
    pub worker: WorkerConfig,
    /// Handling of lost nodes of the host.
    #[serde(default)]
    pub machine_loss: MachineLossConfig,
    /// Handling of nodes of the host that are about to shut down.
    #[serde(default)]
    pub planned_takeover: PlannedTakeoverConfig,
    /// Pull policy of every image in a control plane.
    #[serde(default = "default_pull_policy")]
    pub image_pull_policy: String,
    /// Service ranges that Clusters may choose. The ingress certificate contains the first address
    /// of each.
    #[serde(default = "default_service_cidrs", rename = "serviceCIDRs")]
    pub service_cidrs: Vec<String>,
    /// Cluster domains that Clusters may choose.
    #[serde(default = "default_cluster_domains")]
    pub cluster_domains: Vec<String>,
    /// Classes of control planes.
    pub classes: Vec<ClassEntry>,
    /// Class for Clusters that do not set one. Optional if there is only one class.
    #[serde(default)]
    pub default_class: Option<String>,
    /// Price of a Cluster per hour awake, such as `0.02 EUR`. Without it, Tenants see no costs.
    #[serde(default)]
    pub price_per_hour: Option<String>,
    /// User ID that control planes run as.
    #[serde(default = "default_user")]
    pub run_as_user: i64,
}

/// The ingress, through which all clients connect.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressConfig {
    /// Address in kubeconfigs.
    pub address: String,
    /// Port in kubeconfigs.
    #[serde(default = "default_ingress_port")]
    pub port: u16,
    /// Whether a Cluster becomes Ready only when its API also answers through this address.
    #[serde(default = "default_true")]
    pub probe: bool,
    /// Pods that may connect to a control plane: Envoy, ingress-xds, the operator.
    pub pods: Vec<PodSelector>,
}

/// Pods of one namespace, by labels.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodSelector {
    /// Namespace, by name.
    pub namespace: String,
    /// Labels that a pod must have, all of them.
    pub labels: BTreeMap<String, String>,
}

/// The NATS servers of the stores.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NatsConfig {
    /// URLs for the operator and for kine-nats, `tls://host:port`.
    pub urls: Vec<String>,
    /// Hosts entries for pods without DNS. Required if `urls` contain names.
    #[serde(default)]
    pub host_aliases: BTreeMap<String, IpAddr>,
    /// Address ranges of the servers, the only ones that a control plane may connect to.
    pub cidrs: Vec<String>,
    /// Port of the servers.
    #[serde(default = "default_nats_port")]
    pub port: u16,
    /// Folder with `operator-signing.nk`, `system.creds` and `ca.crt`.
    pub secret_dir: PathBuf,
}

/// Egress of control planes to the OIDC providers of their Clusters: port 443 of these ranges, and
/// DNS.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OidcConfig {
    /// Address ranges. Private ranges inside them are excluded, since the host's own networks are
    /// there. A private range that is listed itself is not excluded.
    #[serde(default = "default_oidc_cidrs")]
    pub cidrs: Vec<String>,
    /// Further ranges to exclude: networks of the host's nodes, Pods and Services that are not
    /// private.
    #[serde(default)]
    pub except: Vec<String>,
    /// DNS servers. Without an entry, control planes use the host's cluster DNS: the pods `k8s-app:
    /// kube-dns` of `kube-system`.
    #[serde(default)]
    pub nameservers: Vec<IpAddr>,
}

impl Default for OidcConfig {
    fn default() -> Self {
        Self {
            cidrs: default_oidc_cidrs(),
            except: Vec::new(),
            nameservers: Vec::new(),
        }
    }
}

/// Add-ons in tenants' clusters.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddonsConfig {
    /// Registry and path of the images that the catalog entry of a version does not set. Workers
    /// pull them.
    #[serde(default = "default_registry")]
    pub registry: String,
}

impl Default for AddonsConfig {
    fn default() -> Self {
        Self {
            registry: default_registry(),
        }
    }
}

/// The `yoke-worker` program, as join commands describe it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkerConfig {
    /// SHA-256 of the program in hexadecimal digits, by architecture (`amd64`, `arm64`).
    #[serde(default)]
    pub digests: BTreeMap<String, String>,
    /// Public address of the SSH server that serves the program: a name or an IP address, and the
    /// port if it is not 22. Empty if there is none.
    #[serde(default)]
    pub ssh: String,
}

/// Handling of lost nodes of the host.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineLossConfig {
    /// Maximum number of nodes per minute that the operator gives up as lost. 0 leaves all to
    /// Kubernetes.
    #[serde(default = "default_losses_per_minute")]
    pub per_minute: usize,
}

impl Default for MachineLossConfig {
    fn default() -> Self {
        Self {
            per_minute: default_losses_per_minute(),
        }
    }
}

/// Handling of nodes of the host that are about to shut down.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedTakeoverConfig {
    /// Maximum number of takeovers of control planes that start per minute. 0 leaves all to
    /// evictions.
    #[serde(default = "default_takeovers")]
    pub per_minute: usize,
    /// Keys of taints which say that a Node is about to shut down.
    #[serde(default)]
    pub taints: Vec<String>,
}

impl Default for PlannedTakeoverConfig {
    fn default() -> Self {
        Self {
            per_minute: default_takeovers(),
            taints: Vec::new(),
        }
    }
}

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

/// One class of control planes.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassEntry {
    /// Name for `spec.class`.
    pub name: String,
    /// Resources by container.
    #[serde(default)]
    pub resources: ClassResources,
    /// Labels of the nodes that may run it.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that it tolerates.
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    /// Priority class of the pod.
    #[serde(default)]
    pub priority_class_name: Option<String>,
    /// Replicas of the streams: 1, 3 or 5.
    #[serde(default = "default_store_replicas")]
    pub store_replicas: usize,
}

/// Resources of the containers of a control plane.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassResources {
    /// kube-apiserver.
    #[serde(default)]
    pub api_server: Option<ResourceRequirements>,
    /// kube-controller-manager.
    #[serde(default)]
    pub controller_manager: Option<ResourceRequirements>,
    /// kube-scheduler.
    #[serde(default)]
    pub scheduler: Option<ResourceRequirements>,
    /// kine-nats.
    #[serde(default)]
    pub store: Option<ResourceRequirements>,
    /// konnectivity-server.
    #[serde(default)]
    pub konnectivity: Option<ResourceRequirements>,
}

fn default_namespace() -> String {
    "yoke-system".into()
}
fn default_registry() -> String {
    "registry.k8s.io".into()
}
fn default_pull_policy() -> String {
    "IfNotPresent".into()
}
fn default_service_cidrs() -> Vec<String> {
    vec!["10.96.0.0/16".into()]
}
fn default_cluster_domains() -> Vec<String> {
    vec!["cluster.local".into()]
}
fn default_user() -> i64 {
    65532
}
fn default_ingress_port() -> u16 {
    443
}
fn default_true() -> bool {
    true
}
/// Without IPv6: IPv6 Pods often have public addresses.
fn default_oidc_cidrs() -> Vec<String> {
    vec!["0.0.0.0/0".into()]
}
fn default_losses_per_minute() -> usize {
    3
}
fn default_takeovers() -> usize {
    60
}
fn default_nats_port() -> u16 {
    4222
}
fn default_store_replicas() -> usize {
    1
}

impl Config {
    /// Reads and validates the file at `path`.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text)
    }

    /// Parses and validates the text of a configuration file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_saphyr::from_str(text).map_err(|error| ConfigError::Parse(Box::new(error)))?;
        config.check()?;
        Ok(config)
    }

    /// The catalog entry of a version.
    pub fn version(&self, version: KubernetesVersion) -> Option<&VersionEntry> {
        self.versions
            .iter()
            .find(|entry| entry.version.parse::<KubernetesVersion>().is_ok_and(|v| v == version))
    }

    /// The version for Clusters that do not set one.
    pub fn default_version(&self) -> KubernetesVersion {
        self.find_default_version()
            .expect("checked when the configuration was parsed")
    }

    /// The class with this name; the default class without a name.
    pub fn class(&self, name: Option<&str>) -> Option<&ClassEntry> {
        let name = name.or(self.default_class.as_deref());
        match name {
            Some(name) => self.classes.iter().find(|class| class.name == name),
            None => self.classes.first(),
        }
    }

    /// The highest number of stream replicas of any class.
    pub fn max_store_replicas(&self) -> usize {
        self.classes.iter().map(|class| class.store_replicas).max().unwrap_or(1)
    }

    fn find_default_version(&self) -> Option<KubernetesVersion> {
        let text = self.default_version.as_deref().or_else(|| {
            let marked = self.versions.iter().find(|entry| entry.default);
            let only = (self.versions.len() == 1).then(|| self.versions.first()).flatten();
            marked.or(only).map(|entry| entry.version.as_str())
        })?;
        let version = text.parse().ok()?;
        self.version(version).map(|_| version)
    }
}

#[cfg(test)]
#[path = "config/tests.rs"]
mod tests;

/// Number of cluster DNS's address in the Service range, as usual in Kubernetes.
pub const DNS_NUMBER: u32 = 10;

/// URL of the ingress, with its address.
pub fn ingress_url(config: &Config) -> String {
    let address = &config.ingress.address;
    match address.parse::<std::net::Ipv6Addr>() {
        Ok(v6) => format!("https://[{v6}]:{}", config.ingress.port),
        Err(_) => format!("https://{address}:{}", config.ingress.port),
    }
}
