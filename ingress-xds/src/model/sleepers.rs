//! Where clients of clusters that sleep are led, by which names. Pure; a part of [`super::Table`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::SLEEPER_LEAF;

use super::{ObjectKey, Route, Watched};

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
    own: Option<SocketAddr>,
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
    /// With this process's own, if it has one.
    pub(super) fn new(own: Option<SocketAddr>) -> Self {
        Self {
            own,
            names: BTreeMap::new(),
            names_listed: false,
        }
    }

    /// Whether what there is was seen once.
    pub(super) fn is_listed(&self) -> bool {
        self.own.is_none() || self.names_listed
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
        let own = self.own?;
        let can_answer = match route.public_name == name {
            true => self.names.contains_key(PKI_NAMESPACE),
            false => {
                let names = self.names.get(&route.namespace);
                names.is_some_and(|names| names.contains(name)) && !route.is_konnectivity(name)
            }
        };
        can_answer.then(|| ([own.ip()].into(), own.port()))
    }
}

/// The Secret with a sleeper's certificate in a namespace.
pub(crate) fn sleeper_key(namespace: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: SLEEPER_LEAF.to_owned(),
    }
}
