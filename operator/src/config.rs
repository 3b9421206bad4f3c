//! Configuration by the administrator of the host. It is read once at the start from one YAML file
//! (a ConfigMap of the chart), and validated as a whole.
//!
//! The input is the file's text; the output is a [`Config`] in which every reference resolves. No
//! other part of the process reads configuration.

mod check;
mod classes;
mod error;
mod host_nodes;
mod ingress;
mod nats;
mod oidc;
mod tenant_cluster;
mod versions;

pub use crate::config::classes::ClassEntry;
pub use crate::config::error::ConfigError;
pub use crate::config::host_nodes::{MachineLossConfig, PlannedTakeoverConfig};
pub use crate::config::ingress::{IngressConfig, PodSelector};
pub use crate::config::nats::NatsConfig;
pub use crate::config::oidc::OidcConfig;
pub use crate::config::tenant_cluster::{AddonsConfig, DNS_NUMBER, WorkerConfig};
pub use crate::config::versions::VersionEntry;

use std::path::Path;

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use serde::Deserialize;
use yoke_api::KubernetesVersion;

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

fn default_namespace() -> String {
    "yoke-system".into()
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

/// URL of the ingress, with its address.
pub fn ingress_url(config: &Config) -> String {
    let address = &config.ingress.address;
    match address.parse::<std::net::Ipv6Addr>() {
        Ok(v6) => format!("https://[{v6}]:{}", config.ingress.port),
        Err(_) => format!("https://{address}:{}", config.ingress.port),
    }
}

#[cfg(test)]
#[path = "config/tests.rs"]
mod tests;
