//! Addresses and names of the activators that serve clients of sleeping clusters. Pure; a part of
//! [`super::Table`].
//!
//! Envoy gets the activators of all replicas. So the loss of one replica loses no wakes, and all
//! replicas send Envoy the same endpoints. A process includes its own address also while it is not
//! yet ready, so that an Envoy that connects to it finds an activator.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::SLEEPER_LEAF;

use super::observation::{ActivatorNames, ObjectKey, Watched};
use super::route::Route;
use crate::validate::{Rules, ready_addresses};

/// Maximum number of activator addresses that are sent to Envoy.
const MAX_ACTIVATORS: usize = 16;

/// The known activators.
#[derive(Debug)]
pub(super) struct Activators {
    rules: Rules,
    /// Ready addresses of replicas, by EndpointSlice.
    replicas: BTreeMap<ObjectKey, BTreeSet<IpAddr>>,
    replicas_listed: bool,
    /// Addresses of all activators, including this process's own.
    addresses: BTreeSet<IpAddr>,
    /// Certificate names by the namespace of their Secret.
    names: BTreeMap<String, BTreeSet<String>>,
    names_listed: bool,
}

/// The sleeping clusters whose targets may have changed.
#[derive(Debug)]
pub(super) enum AffectedNames {
    All,
    /// The clusters of these control-plane namespaces.
    Namespaces(Vec<String>),
}

impl Activators {
    /// Starts with this process's own activator, if it has one.
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            addresses: rules.activator.iter().map(SocketAddr::ip).collect(),
            rules,
            replicas: BTreeMap::new(),
            replicas_listed: false,
            names: BTreeMap::new(),
            names_listed: false,
        }
    }

    /// Whether every watched kind was listed once.
    pub(super) fn is_listed(&self) -> bool {
        self.rules.activator.is_none() || self.names_listed && (self.replicas_listed || !self.rules.replicas)
    }

    /// Applies a change of the replicas' addresses.
    pub(super) fn apply_replicas(&mut self, seen: Watched<EndpointSlice>) -> AffectedNames {
        match seen {
            Watched::Applied(slice) => {
                let ready = ready_addresses(&self.rules, &slice);
                self.replicas.insert(ObjectKey::of(&slice.metadata), ready);
            }
            Watched::Deleted(key) => {
                self.replicas.remove(&key);
            }
            Watched::Listed(keys) => {
                self.replicas.retain(|key, _| keys.contains(key));
                self.replicas_listed = true;
            }
        }
        let own = self.rules.activator.iter().map(SocketAddr::ip);
        let is_same_family = |other: &&IpAddr| own.clone().any(|own| own.is_ipv4() == other.is_ipv4());
        let others = self.replicas.values().flatten().filter(is_same_family);
        let all = own.clone().chain(others.copied());
        let before = std::mem::replace(&mut self.addresses, all.take(MAX_ACTIVATORS).collect());
        match before == self.addresses {
            true => AffectedNames::Namespaces(vec![]),
            false => AffectedNames::All,
        }
    }

    /// Applies an added, changed or removed certificate.
    pub(super) fn apply(&mut self, seen: Watched<ActivatorNames>) -> AffectedNames {
        let changed = match seen {
            Watched::Applied(certificate) => {
                let namespace = certificate.key.namespace;
                let before = self.names.insert(namespace.clone(), certificate.names);
                let is_same = before.as_ref() == self.names.get(&namespace);
                if is_same { vec![] } else { vec![namespace] }
            }
            Watched::Deleted(key) => self
                .names
                .remove_entry(&key.namespace)
                .into_iter()
                .map(|(namespace, _)| namespace)
                .collect(),
            Watched::Listed(keys) => {
                self.names_listed = true;
                let gone = self
                    .names
                    .extract_if(.., |namespace, _| !keys.contains(&activator_secret_key(namespace)));
                gone.map(|(namespace, _)| namespace).collect()
            }
        };
        match changed.iter().any(|namespace| namespace == PKI_NAMESPACE) {
            true => AffectedNames::All,
            false => AffectedNames::Namespaces(changed),
        }
    }

    /// The addresses and the port for a name of a sleeping cluster, if an activator has a
    /// certificate for the name. Konnectivity agents are excluded: they wake no cluster.
    pub(super) fn endpoints_of(&self, name: &str, route: &Route) -> Option<(BTreeSet<IpAddr>, u16)> {
        let port = self.rules.activator?.port();
        let can_answer = match route.public_name == name {
            true => self.names.contains_key(PKI_NAMESPACE),
            false => {
                let names = self.names.get(&route.namespace);
                names.is_some_and(|names| names.contains(name)) && !route.is_konnectivity(name)
            }
        };
        can_answer.then(|| (self.addresses.clone(), port))
    }
}

/// Key of the Secret with the activator certificate in a namespace.
pub(crate) fn activator_secret_key(namespace: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: SLEEPER_LEAF.to_owned(),
    }
}
