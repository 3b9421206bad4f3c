//! Add-ons in tenants' clusters. Pure.
//!
//! ```text
//!  Facts: spec, version, name, host's configuration ─▶ plan ─┬─ wanted: all desired objects
//!                                                            └─ unwanted: objects of disabled add-ons
//! ```
//!
//! Every object has the add-on's name as a label, and an annotation with a digest of what was
//! applied. An object without this label is owned by another. An object with another digest is
//! applied again, so that fields that are no longer wanted are removed.

mod core_dns;
mod images;
pub(crate) mod konnectivity;
mod kube_proxy;
mod kube_system;
mod metrics_server;

pub(crate) use crate::addons::kube_system::NAMESPACE;

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use kube::api::{ApiResource, DynamicObject};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use yoke_api::names::PublicName;
use yoke_api::{ClusterSpec, KubernetesVersion, labels};

use crate::config::{Config, VersionEntry};
use crate::tenant_client::to_dynamic;

/// Label with the app's name, as usual in kube-system.
const APP: &str = "k8s-app";

/// An add-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addon {
    /// DNS of the cluster.
    CoreDns,
    /// Virtual IPs of Services.
    KubeProxy,
    /// Resource metrics of workers and Pods.
    MetricsServer,
    /// Tunnel from the control plane to the workers.
    Konnectivity,
}

/// Inputs of the objects.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The Cluster's spec.
    pub spec: &'a ClusterSpec,
    /// Public name of the API.
    pub public_name: &'a PublicName,
    /// Version of the API server.
    pub version: KubernetesVersion,
    /// The catalog entry of that version.
    pub catalogue: &'a VersionEntry,
    /// CA of the kubelets' serving certificates, PEM.
    pub kubelet_ca: &'a str,
    /// The host's configuration.
    pub config: &'a Config,
}

/// One object of an add-on.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Add-on that the object belongs to.
    pub addon: Addon,
    /// Kind of the object.
    pub resource: ApiResource,
    /// All fields that the operator owns.
    pub object: DynamicObject,
}

/// Desired and undesired objects of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Objects of enabled add-ons.
    pub wanted: Vec<Part>,
    /// Objects of disabled add-ons.
    pub unwanted: Vec<Part>,
}

/// Owner of an existing object with the name of a [`Part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The add-on.
    Own,
    /// Another client.
    Foreign,
}

impl Addon {
    /// All add-ons.
    pub const ALL: [Self; 4] = [Self::CoreDns, Self::KubeProxy, Self::MetricsServer, Self::Konnectivity];

    /// Value of the add-on's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CoreDns => "coredns",
            Self::KubeProxy => "kube-proxy",
            Self::MetricsServer => "metrics-server",
            Self::Konnectivity => "konnectivity-agent",
        }
    }

    /// Returns whether a spec enables the add-on.
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
    /// Returns kind, namespace and name for messages.
    pub fn name(&self) -> String {
        let namespace = self.object.namespace().map_or_else(String::new, |name| name + "/");
        format!("{} {namespace}{}", self.resource.kind, self.object.name_any())
    }

    /// Returns the owner of an existing object with this name.
    pub fn owner(&self, found: &impl Resource) -> Owner {
        let is_own = match found.labels().get(labels::ADDON) {
            Some(addon) => addon == self.addon.as_str(),
            None => self.is_older(found),
        };
        if is_own { Owner::Own } else { Owner::Foreign }
    }

    /// Returns whether the object is an agent's from an operator version without add-ons. A user
    /// who takes over an object leaves the digest there.
    fn is_older(&self, found: &impl Resource) -> bool {
        let app = |labels: &BTreeMap<String, String>| labels.get(APP).cloned();
        self.addon == Addon::Konnectivity
            && !found.annotations().contains_key(labels::APPLIED_DIGEST)
            // The binding has no such label; its name starts with `yoke:`.
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

    /// Adds an object, with the add-on's labels and digest.
    fn add<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K) {
        let mut object = to_dynamic(object);
        let own_labels = [
            (labels::ADDON.to_owned(), self.addon.as_str().to_owned()),
            (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_OPERATOR.to_owned()),
        ];
        object.labels_mut().extend(own_labels);
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
