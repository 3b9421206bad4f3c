//! Add-ons: what tenants' clusters have beside their API. Pure.
//!
//! ```text
//!  Facts: spec, version, name, host's configuration ─▶ plan ─┬─ wanted: every object, as it should be
//!                                                            └─ unwanted: those of add-ons that are turned off
//! ```
//!
//! Every object bears its add-on's name as a label, and a digest of what was applied of it: what bears no such label is somebody
//! else's, and what bears another digest is applied again, so that fields go which are not wanted any more.

mod core_dns;
mod images;
pub(crate) mod konnectivity;
mod kube_proxy;
mod kube_system;
mod metrics_server;

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use kube::api::{ApiResource, DynamicObject};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use yoke_api::names::PublicName;
use yoke_api::{ClusterSpec, KubernetesVersion, labels};

pub(crate) use self::kube_system::NAMESPACE;
use crate::config::{Config, VersionEntry};
use crate::tenant_api::to_dynamic;

/// Which address of a Service range is that of cluster DNS, as everywhere.
pub const DNS_NUMBER: u32 = 10;
/// The label that says what an object of kube-system belongs to.
const APP: &str = "k8s-app";

/// An add-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addon {
    /// DNS of the cluster.
    CoreDns,
    /// Addresses of Services.
    KubeProxy,
    /// What workers and Pods use.
    MetricsServer,
    /// The way from the control plane to the workers.
    Konnectivity,
}

/// What the objects follow from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The Cluster's spec.
    pub spec: &'a ClusterSpec,
    /// The name by which its API is reached.
    pub public_name: &'a PublicName,
    /// The version that its API has.
    pub version: KubernetesVersion,
    /// What the host offers of that.
    pub catalogue: &'a VersionEntry,
    /// Who signs the serving certificates of its kubelets, PEM.
    pub kubelet_ca: &'a str,
    /// The host's configuration.
    pub config: &'a Config,
}

/// One object of an add-on.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Whose it is.
    pub addon: Addon,
    /// Its kind.
    pub resource: ApiResource,
    /// The fields that the operator owns, all of them.
    pub object: DynamicObject,
}

/// What a cluster should have, and what not.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Objects of the add-ons that are turned on.
    pub wanted: Vec<Part>,
    /// Objects of the others.
    pub unwanted: Vec<Part>,
}

/// What is found of a [`Part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It is the add-on's.
    Own,
    /// It is somebody else's.
    Foreign,
}

impl Addon {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::CoreDns, Self::KubeProxy, Self::MetricsServer, Self::Konnectivity];

    /// The value of its label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CoreDns => "coredns",
            Self::KubeProxy => "kube-proxy",
            Self::MetricsServer => "metrics-server",
            Self::Konnectivity => "konnectivity-agent",
        }
    }

    /// Whether a spec asks for it.
    pub fn is_enabled(self, spec: &ClusterSpec) -> bool {
        match self {
            Self::CoreDns => spec.addons.core_dns.enabled,
            Self::KubeProxy => spec.addons.kube_proxy.enabled,
            Self::MetricsServer => spec.addons.metrics_server.enabled,
            Self::Konnectivity => spec.konnectivity.is_enabled(),
        }
    }

    fn build(self, facts: &Facts<'_>) -> Vec<Part> {
        let mut parts = Parts::new(self);
        match self {
            Self::CoreDns => core_dns::build(facts, &mut parts),
            Self::KubeProxy => kube_proxy::build(facts, &mut parts),
            Self::MetricsServer => metrics_server::build(facts, &mut parts),
            Self::Konnectivity => konnectivity::build(facts, &mut parts),
        }
        parts.parts
    }
}

/// Plans the objects of every add-on.
pub fn plan(facts: &Facts<'_>) -> Plan {
    let build = |enabled: bool| {
        let addons = Addon::ALL.into_iter();
        let addons = addons.filter(|addon| addon.is_enabled(facts.spec) == enabled);
        addons.flat_map(|addon| addon.build(facts)).collect()
    };
    Plan {
        wanted: build(true),
        unwanted: build(false),
    }
}

impl Part {
    /// Its kind, namespace and name, for people.
    pub fn name(&self) -> String {
        let namespace = self.object.namespace().map_or_else(String::new, |name| name + "/");
        format!("{} {namespace}{}", self.resource.kind, self.object.name_any())
    }

    /// Whose an object of its name is.
    pub fn owner(&self, found: &impl Resource) -> Owner {
        let is_own = match found.labels().get(labels::ADDON) {
            Some(addon) => addon == self.addon.as_str(),
            None => self.is_older(found),
        };
        if is_own { Owner::Own } else { Owner::Foreign }
    }

    /// Whether it is an agent's as operators made it that had no add-ons. Who takes one over leaves the digest there.
    fn is_older(&self, found: &impl Resource) -> bool {
        let app = |labels: &BTreeMap<String, String>| labels.get(APP).cloned();
        self.addon == Addon::Konnectivity
            && !found.annotations().contains_key(labels::APPLIED_DIGEST)
            // The binding has none, and a name of Yoke's.
            && app(self.object.labels()).is_none_or(|own| app(found.labels()) == Some(own))
    }
}

/// Collects the objects of one add-on.
#[derive(Debug)]
struct Parts {
    addon: Addon,
    parts: Vec<Part>,
}

impl Parts {
    fn new(addon: Addon) -> Self {
        Self {
            addon,
            parts: Vec::new(),
        }
    }

    /// Adds an object, with the marks of the add-on.
    fn add<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K) {
        let mut object = to_dynamic(object);
        let marks = [
            (labels::ADDON.to_owned(), self.addon.as_str().to_owned()),
            (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_OPERATOR.to_owned()),
        ];
        object.labels_mut().extend(marks);
        let digest = digest(&object);
        object.annotations_mut().insert(labels::APPLIED_DIGEST.into(), digest);
        self.parts.push(Part {
            addon: self.addon,
            resource: ApiResource::erase::<K>(&()),
            object,
        });
    }
}

fn digest<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_vec(value).expect("typed Kubernetes objects have string keys only");
    HEXLOWER.encode(&Sha256::digest(text)[..16])
}

#[cfg(test)]
mod tests;
