//! What is served at one moment: for each SNI name the Envoy resources and whether the control plane can be reached now.
//!
//! In come changed names from [`crate::routing`]; readers are the streams ([`crate::ads`]) and the gate
//! ([`crate::gate`]). A snapshot is immutable and shares all that did not change with the one before it, so that
//! publishing one change among 10,000 names copies one shard, and finding what changed compares pointers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use crate::base::Base;
use crate::model::Route;
use crate::traffic::Series;

/// Begins the name of every Envoy cluster that an SNI name or a token can choose. Envoy makes the same name from the SNI that
/// it was sent, so no SNI can name another cluster.
const NAMES: &str = "name/";

/// Name of Envoy's Secret with the ingress's certificate.
pub const CERTIFICATE_NAME: &str = "ingress";

const SHARDS: usize = 256;

/// The types of resources that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Envoy's Cluster.
    Cluster,
    /// Envoy's ClusterLoadAssignment.
    Endpoints,
    /// Envoy's Listener: of the host's owner.
    Listener,
    /// Envoy's RouteConfiguration: of the host's owner.
    Routes,
    /// Envoy's Secret: the ingress's certificate.
    Secret,
}

impl Kind {
    /// Whether a name is one that the host's owner can give, and no cluster's.
    pub fn is_owners(self, name: &str) -> bool {
        match self {
            Self::Listener | Self::Routes => true,
            Self::Cluster | Self::Endpoints => !is_tenants(name),
            Self::Secret => false,
        }
    }
}

/// One resource as it is sent: its bytes and a version that is derived from nothing but what they say.
#[derive(Clone)]
pub struct Resource {
    /// The version: equal contents have equal versions, in every replica and after every restart. That of endpoints changes
    /// with the Cluster's, too.
    pub version: Arc<str>,
    /// The encoded protobuf message.
    pub body: Arc<[u8]>,
}

// A map in the bytes may have another order.
impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

impl Eq for Resource {}

// The bytes may be a secret.
impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// What is served for one name.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The cluster behind the name.
    pub route: Arc<Route>,
    /// Whether the control plane has a ready address.
    pub reachable: bool,
    /// Envoy's Cluster.
    pub cluster: Resource,
    /// Envoy's ClusterLoadAssignment.
    pub endpoints: Resource,
    /// What the cluster's clients are counted by; all its names have the same.
    pub traffic: Arc<Series>,
}

type Shard = BTreeMap<Arc<str>, Arc<Entry>>;

/// All names and what is served for each. Keys are resource names, see [`resource_name`].
#[derive(Clone, Debug)]
pub struct Snapshot {
    shards: Vec<Arc<Shard>>,
    certificate: Option<(Arc<str>, Resource)>,
    base: Option<Arc<Base>>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            shards: vec![Arc::default(); SHARDS],
            certificate: None,
            base: Some(Arc::default()),
        }
    }
}

impl Snapshot {
    /// What is served under a resource name.
    pub fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.shards[shard_of(name)].get(name)
    }

    /// Serves `entry` under `name`, or nothing.
    pub fn set(&mut self, name: &str, entry: Option<Entry>) {
        let shard = &mut self.shards[shard_of(name)];
        if entry.is_none() && !shard.contains_key(name) {
            return;
        }
        let shard = Arc::make_mut(shard);
        match entry {
            None => {
                shard.remove(name);
            }
            Some(entry) => match shard.entry(Arc::from(name)) {
                MapEntry::Vacant(vacant) => {
                    vacant.insert(Arc::new(entry));
                }
                MapEntry::Occupied(mut occupied) => {
                    occupied.insert(Arc::new(entry));
                }
            },
        }
    }

    /// The ingress's certificate, with the name of Envoy's Secret.
    pub fn certificate(&self) -> Option<&(Arc<str>, Resource)> {
        self.certificate.as_ref()
    }

    /// Serves this certificate, or none; whether that is another one than before.
    pub fn set_certificate(&mut self, certificate: Option<Resource>) -> bool {
        let version = |resource: &Resource| Arc::clone(&resource.version);
        let before = self.certificate.as_ref().map(|(_, resource)| version(resource));
        let changed = before != certificate.as_ref().map(version);
        self.certificate = certificate.map(|resource| (Arc::from(CERTIFICATE_NAME), resource));
        changed
    }

    /// What the host's owner adds. While it is not known (`None`), what clients hold of it is theirs to keep.
    pub fn base(&self) -> Option<&Arc<Base>> {
        self.base.as_ref()
    }

    /// Serves this beside the clusters; whether that is something else than before.
    pub fn set_base(&mut self, base: Option<Arc<Base>>) -> bool {
        let changed = self.base != base;
        self.base = base;
        changed
    }

    /// Every name of a cluster's resources.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shards.iter().flat_map(|shard| shard.keys())
    }

    /// What is served for each cluster's public name.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let entries = self.shards.iter().flat_map(|shard| shard.iter());
        let is_public = |name: &str, entry: &Entry| name.strip_prefix(NAMES) == Some(entry.route.public_name.as_str());
        entries.filter_map(move |(name, entry)| is_public(name, entry).then_some(entry))
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.is_empty())
    }

    /// Names for which `newer` may serve something else than this snapshot: added, removed or replaced.
    pub fn changed_names<'a>(&'a self, newer: &'a Self) -> impl Iterator<Item = &'a Arc<str>> {
        let shards = self.shards.iter().zip(&newer.shards);
        shards
            .filter(|(old, new)| !Arc::ptr_eq(old, new))
            .flat_map(|(old, new)| {
                let gone = old.keys().filter(|name| !new.contains_key(*name));
                let other = new.iter().filter_map(|(name, entry)| match old.get(name) {
                    Some(before) if Arc::ptr_eq(before, entry) => None,
                    _ => Some(name),
                });
                gone.chain(other)
            })
    }
}

/// The name of the Envoy resources for an SNI name.
pub fn resource_name(sni: &str) -> String {
    format!("{NAMES}{sni}")
}

/// Whether the name of an Envoy cluster is a tenant cluster's.
pub fn is_tenants(name: &str) -> bool {
    name.starts_with(NAMES)
}

/// The names of all Envoy resources of a cluster.
pub fn resource_names(route: &Route) -> impl Iterator<Item = String> {
    route.names().map(resource_name)
}

fn shard_of(name: &str) -> usize {
    let mut hasher = std::hash::DefaultHasher::new();
    name.hash(&mut hasher);
    usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or_default()
}

/// Entries for tests that care for versions and not for contents.
#[cfg(test)]
pub(crate) mod entries {
    use super::*;
    use crate::fixtures::cluster;
    use crate::model::UpstreamTrust;
    use crate::token::TokenTrust;

    /// What is served for names of the cluster `owner` in these versions.
    pub(crate) fn entry(owner: &str, names: &[&str], cluster_version: &str, endpoints_version: &str) -> Entry {
        let resource = |version: &str| Resource {
            version: version.into(),
            body: version.as_bytes().into(),
        };
        let mut names = names.iter().map(ToString::to_string);
        let config = cluster("a", "bcdfghjk24").config;
        Entry {
            route: Arc::new(Route {
                namespace: owner.to_owned(),
                id: config.id,
                tenant: config.tenant,
                cluster: owner.to_owned(),
                public_name: names.next().unwrap_or_default(),
                extra_names: names.collect(),
                konnectivity_name: None,
                sources: None,
                service: owner.to_owned(),
                upstream: UpstreamTrust::default(),
                tokens: TokenTrust::default(),
                asleep: None,
            }),
            reachable: true,
            cluster: resource(cluster_version),
            endpoints: resource(endpoints_version),
            traffic: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::entries::entry;
    use super::*;

    #[test]
    fn changes_are_found() {
        let mut old = Snapshot::default();
        for name in ["name/a", "name/b", "name/c"] {
            old.set(name, Some(entry("n", &["a"], "1", "1")));
        }
        let mut new = old.clone();
        assert_eq!(old.changed_names(&new).count(), 0);
        new.set("name/a", None);
        new.set("name/b", Some(entry("n", &["a"], "1", "2")));
        new.set("name/d", Some(entry("n", &["a"], "1", "1")));
        let mut changed: Vec<_> = old.changed_names(&new).map(AsRef::as_ref).collect();
        changed.sort_unstable();
        assert_eq!(changed, ["name/a", "name/b", "name/d"]);
        assert!(old.get("name/a").is_some(), "the old snapshot is as it was");
        assert_eq!((old.len(), new.len()), (3, 3));
        assert!(!new.is_empty() && Snapshot::default().is_empty());
        assert_eq!(new.names().count(), 3);
    }
}
