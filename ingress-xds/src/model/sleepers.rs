//! Where clients of clusters that sleep are led, by which names. Pure; a part of [`super::Table`].
//!
//! To the sleepers of all replicas, so that one of them that is lost takes no wakes along, and so that all replicas tell Envoy the
//! same. A process names its own, too, while it is not seen to be ready: Envoys that ask it find it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::SLEEPER_LEAF;

use super::{ObjectKey, Route, Watched};
use crate::validate::{Rules, find_ready};

/// Sleepers that Envoy is told.
const MAX_SLEEPERS: usize = 16;

/// By which names a sleeper can answer with one of its certificates.
#[derive(Clone, Debug)]
pub struct SleeperNames {
    /// The Secret: in the authorities' namespace for the public names of all, in a hosted one for further names of its cluster.
    pub key: ObjectKey,
    /// Names of the certificate.
    pub names: BTreeSet<String>,
}

/// The sleepers, as far as they are known.
#[derive(Debug)]
pub(super) struct Sleepers {
    rules: Rules,
    /// Ready addresses of replicas, by their EndpointSlice.
    replicas: BTreeMap<ObjectKey, BTreeSet<IpAddr>>,
    replicas_listed: bool,
    /// All of them, with this process's own.
    addresses: BTreeSet<IpAddr>,
    /// Names by the namespace of their certificate.
    names: BTreeMap<String, BTreeSet<String>>,
    names_listed: bool,
}

/// Whose names may lead elsewhere now, if they sleep.
#[derive(Debug)]
pub(super) enum Concerned {
    All,
    /// Those of these hosted namespaces.
    Some(Vec<String>),
}

impl Sleepers {
    /// This process's own alone, if it has one.
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            addresses: rules.sleeper.iter().map(SocketAddr::ip).collect(),
            rules,
            replicas: BTreeMap::new(),
            replicas_listed: false,
            names: BTreeMap::new(),
            names_listed: false,
        }
    }

    /// Whether what there is was seen once.
    pub(super) fn is_listed(&self) -> bool {
        self.rules.sleeper.is_none() || self.names_listed && (self.replicas_listed || !self.rules.replicas)
    }

    /// Replicas come and go.
    pub(super) fn apply_replicas(&mut self, seen: Watched<EndpointSlice>) -> Concerned {
        match seen {
            Watched::Applied(slice) => {
                let ready = find_ready(&self.rules, &slice);
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
        let own = self.rules.sleeper.iter().map(SocketAddr::ip);
        let is_same_family = |other: &&IpAddr| own.clone().any(|own| own.is_ipv4() == other.is_ipv4());
        let others = self.replicas.values().flatten().filter(is_same_family);
        let all = own.clone().chain(others.copied());
        let before = std::mem::replace(&mut self.addresses, all.take(MAX_SLEEPERS).collect());
        match before == self.addresses {
            true => Concerned::Some(vec![]),
            false => Concerned::All,
        }
    }

    /// A certificate can be shown, or no more.
    pub(super) fn apply(&mut self, seen: Watched<SleeperNames>) -> Concerned {
        let changed = match seen {
            Watched::Applied(shown) => {
                let namespace = shown.key.namespace;
                let before = self.names.insert(namespace.clone(), shown.names);
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
                    .extract_if(.., |namespace, _| !keys.contains(&sleeper_key(namespace)));
                gone.map(|(namespace, _)| namespace).collect()
            }
        };
        match changed.iter().any(|namespace| namespace == PKI_NAMESPACE) {
            true => Concerned::All,
            false => Concerned::Some(changed),
        }
    }

    /// Where a name of a cluster that sleeps leads: addresses and port, if somebody can answer by it. Agents wake nobody.
    pub(super) fn find(&self, name: &str, route: &Route) -> Option<(BTreeSet<IpAddr>, u16)> {
        let port = self.rules.sleeper?.port();
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

/// The Secret with a sleeper's certificate in a namespace.
pub(crate) fn sleeper_key(namespace: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: SLEEPER_LEAF.to_owned(),
    }
}
