//! What the host's owner decided: read once at start from one YAML file (a ConfigMap of the chart) and checked as a whole.
//!
//! In comes the file's text, out goes a [`Config`] in which every reference resolves. Nothing else in the process reads
//! configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use serde::Deserialize;
use yoke_api::KubernetesVersion;

use crate::network::Cidr;

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
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
        /// What is wrong, and what is expected.
        problem: String,
    },
}

/// The whole configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Domain under which every cluster's public name is one label.
    pub base_domain: String,
    /// Namespace of the operator itself; Tenants' NATS account keys are kept there.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// The one way in.
    pub ingress: IngressConfig,
    /// The store's server.
    pub nats: NatsConfig,
    /// Catalogue of Kubernetes versions.
    pub versions: Vec<VersionEntry>,
    /// Version for Clusters that name none; may be left out if the catalogue has one entry or marks one as `default`.
    #[serde(default)]
    pub default_version: Option<String>,
    /// Image of kine-nats.
    pub kine_nats_image: String,
    /// Pull policy of every image in a control plane.
    #[serde(default = "default_pull_policy")]
    pub image_pull_policy: String,
    /// Service ranges that Clusters may choose; the ingress certificate names the first address of each.
    #[serde(default = "default_service_cidrs", rename = "serviceCIDRs")]
    pub service_cidrs: Vec<String>,
    /// Cluster domains that Clusters may choose.
    #[serde(default = "default_cluster_domains")]
    pub cluster_domains: Vec<String>,
    /// Classes of control planes.
    pub classes: Vec<ClassEntry>,
    /// Class for Clusters that name none; may be left out if there is one class.
    #[serde(default)]
    pub default_class: Option<String>,
    /// User id that control planes run as.
    #[serde(default = "default_user")]
    pub run_as_user: i64,
}

/// The one way in.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressConfig {
    /// Address that kubeconfigs dial.
    pub address: String,
    /// Port that kubeconfigs dial.
    #[serde(default = "default_ingress_port")]
    pub port: u16,
    /// Whether a Cluster becomes Ready only when its API answers through this address too.
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

/// The store's server.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NatsConfig {
    /// URLs for the operator and for kine-nats, `tls://host:port`.
    pub urls: Vec<String>,
    /// Hosts entries for pods without DNS: needed if `urls` carry names.
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

/// One Kubernetes version that the host offers.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionEntry {
    /// The version, with or without `v`.
    pub version: String,
    /// Whether it is for Clusters that name none.
    #[serde(default)]
    pub default: bool,
    /// Its images.
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
}

/// One class of control planes.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassEntry {
    /// Name that `spec.class` gives.
    pub name: String,
    /// Resources by container.
    #[serde(default)]
    pub resources: ClassResources,
    /// Labels of the machines that may run it.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that it tolerates.
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    /// Priority class of the pod.
    #[serde(default)]
    pub priority_class_name: Option<String>,
    /// Replicas of the streams: 1 or 3.
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
fn default_ingress_port() -> u16 {
    443
}
fn default_true() -> bool {
    true
}
fn default_nats_port() -> u16 {
    4222
}
fn default_store_replicas() -> usize {
    1
}

impl Config {
    /// Reads and checks the file at `path`.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text)
    }

    /// Parses and checks the text of a configuration file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_saphyr::from_str(text).map_err(|error| ConfigError::Parse(Box::new(error)))?;
        config.check()?;
        Ok(config)
    }

    /// The catalogue's entry for a version.
    pub fn version(&self, version: KubernetesVersion) -> Option<&VersionEntry> {
        self.versions
            .iter()
            .find(|entry| entry.version.parse::<KubernetesVersion>().is_ok_and(|v| v == version))
    }

    /// The version for Clusters that name none.
    pub fn default_version(&self) -> KubernetesVersion {
        self.find_default_version()
            .expect("checked when the configuration was parsed")
    }

    /// The class of that name; the default one if none is named.
    pub fn class(&self, name: Option<&str>) -> Option<&ClassEntry> {
        let name = name.or(self.default_class.as_deref());
        match name {
            Some(name) => self.classes.iter().find(|class| class.name == name),
            None => self.classes.first(),
        }
    }

    /// The most replicas that any class keeps of a stream.
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

    fn check(&self) -> Result<(), ConfigError> {
        check_domain("baseDomain", &self.base_domain)?;
        self.check_ingress()?;
        self.check_nats()?;
        self.check_versions()?;
        self.check_classes()?;
        check_filled("kineNatsImage", &self.kine_nats_image)?;
        check(
            ["Always", "IfNotPresent", "Never"].contains(&self.image_pull_policy.as_str()),
            "imagePullPolicy",
            || "is one of Always, IfNotPresent, Never".into(),
        )?;
        check(!self.service_cidrs.is_empty(), "serviceCIDRs", || {
            "at least one is needed".into()
        })?;
        for (index, cidr) in self.service_cidrs.iter().enumerate() {
            check_cidr(&format!("serviceCIDRs[{index}]"), cidr)?;
        }
        check(!self.cluster_domains.is_empty(), "clusterDomains", || {
            "at least one is needed".into()
        })?;
        for (index, domain) in self.cluster_domains.iter().enumerate() {
            check_domain(&format!("clusterDomains[{index}]"), domain)?;
        }
        check(self.run_as_user > 0, "runAsUser", || "must not be root".into())
    }

    fn check_ingress(&self) -> Result<(), ConfigError> {
        check_filled("ingress.address", &self.ingress.address)?;
        if self.ingress.address.parse::<IpAddr>().is_err() {
            check_domain("ingress.address", &self.ingress.address)?;
        }
        check(self.ingress.port != 0, "ingress.port", || "must not be 0".into())?;
        check(!self.ingress.pods.is_empty(), "ingress.pods", || {
            "without one, nobody may connect to a control plane".into()
        })?;
        for (index, pods) in self.ingress.pods.iter().enumerate() {
            check_filled(&format!("ingress.pods[{index}].namespace"), &pods.namespace)?;
            check(
                !pods.labels.is_empty(),
                &format!("ingress.pods[{index}].labels"),
                || "an empty selector would admit every pod of the namespace".into(),
            )?;
        }
        Ok(())
    }

    fn check_nats(&self) -> Result<(), ConfigError> {
        let nats = &self.nats;
        check(!nats.urls.is_empty(), "nats.urls", || "at least one is needed".into())?;
        for (index, url) in nats.urls.iter().enumerate() {
            let field = format!("nats.urls[{index}]");
            let host = url.strip_prefix("tls://").and_then(|rest| rest.rsplit_once(':'));
            let Some((host, port)) = host else {
                return Err(wrong(&field, format!("{url:?} is not tls://host:port")));
            };
            check(port.parse() == Ok(nats.port), &field, || {
                format!("its port is not nats.port ({})", nats.port)
            })?;
            let literal = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
            check(literal || nats.host_aliases.contains_key(host), &field, || {
                format!("control planes have no DNS: give {host:?} an address in nats.hostAliases")
            })?;
        }
        check(!nats.cidrs.is_empty(), "nats.cidrs", || "at least one is needed".into())?;
        for (index, cidr) in nats.cidrs.iter().enumerate() {
            check_cidr(&format!("nats.cidrs[{index}]"), cidr)?;
        }
        Ok(())
    }

    fn check_versions(&self) -> Result<(), ConfigError> {
        let mut seen = BTreeSet::new();
        for (index, entry) in self.versions.iter().enumerate() {
            let field = format!("versions[{index}].version");
            let version: KubernetesVersion = entry
                .version
                .parse()
                .map_err(|error| wrong(&field, format!("{error}")))?;
            check(seen.insert(version), &field, || format!("{version} is there twice"))?;
            check_filled(&format!("versions[{index}].images.apiServer"), &entry.images.api_server)?;
            check_filled(
                &format!("versions[{index}].images.controllerManager"),
                &entry.images.controller_manager,
            )?;
            check_filled(&format!("versions[{index}].images.scheduler"), &entry.images.scheduler)?;
        }
        check(self.find_default_version().is_some(), "defaultVersion", || {
            "name one version of the catalogue".into()
        })
    }

    fn check_classes(&self) -> Result<(), ConfigError> {
        let mut seen = BTreeSet::new();
        for (index, class) in self.classes.iter().enumerate() {
            let field = format!("classes[{index}]");
            check_filled(&format!("{field}.name"), &class.name)?;
            check(seen.insert(&class.name), &format!("{field}.name"), || {
                format!("{:?} is there twice", class.name)
            })?;
            // Two replicas survive no failure, and a third only costs.
            check(
                matches!(class.store_replicas, 1 | 3 | 5),
                &format!("{field}.storeReplicas"),
                || format!("is 1, 3 or 5, not {}", class.store_replicas),
            )?;
        }
        check(
            self.classes.len() == 1 || self.default_class.is_some(),
            "defaultClass",
            || "name one of classes".into(),
        )?;
        check(self.class(None).is_some(), "defaultClass", || {
            "is not one of classes".into()
        })
    }
}

fn wrong(field: &str, problem: String) -> ConfigError {
    ConfigError::Value {
        field: field.to_owned(),
        problem,
    }
}

fn check(good: bool, field: &str, problem: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if good { Ok(()) } else { Err(wrong(field, problem())) }
}

fn check_filled(field: &str, text: &str) -> Result<(), ConfigError> {
    check(!text.trim().is_empty(), field, || "must not be empty".into())
}

fn check_domain(field: &str, text: &str) -> Result<(), ConfigError> {
    check(yoke_api::names::is_domain(text), field, || {
        format!("{text:?} is not a DNS name in lower case")
    })
}

fn check_cidr(field: &str, text: &str) -> Result<(), ConfigError> {
    text.parse::<Cidr>()
        .map(|_| ())
        .map_err(|error| wrong(field, error.to_string()))
}

#[cfg(test)]
#[path = "config/tests.rs"]
mod tests;
