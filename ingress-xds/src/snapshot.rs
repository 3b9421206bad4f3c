//! Everything that is served at one moment: for each SNI name the Envoy resources and whether the
//! control plane is reachable.
//!
//! [`crate::routing`] applies changed names. The readers are the streams ([`crate::ads`]) and the
//! gate ([`crate::authz`]). A snapshot is immutable and shares everything unchanged with its
//! predecessor. So publishing one change among 10,000 names copies one shard, and finding the
//! changes compares pointers.

pub mod resource;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use tokio::sync::watch;

use crate::base::resources::Base;
use crate::model::route::Route;
use crate::traffic::series::Series;
use resource::{CERTIFICATE_NAME, Resource, is_of_name, resource_name};

const SHARDS: usize = 256;

/// Everything that is served for one name.
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
    /// Traffic counters of the cluster, shared by all its names.
    pub traffic: Arc<Series>,
}

/// The newest snapshot; `None` until the host's objects were listed.
pub type Snapshots = watch::Receiver<Option<Arc<Snapshot>>>;

type Shard = BTreeMap<Arc<str>, Arc<Entry>>;

/// All names and their entries. Keys are resource names, see [`resource_name`].
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
    /// The entry of a resource name.
    pub fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.shards[shard_of(name)].get(name)
    }

    /// Replaces the entry of `name`, or removes it.
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

    /// The ingress certificate, with the name of its Envoy Secret.
    pub fn certificate(&self) -> Option<&(Arc<str>, Resource)> {
        self.certificate.as_ref()
    }

    /// Replaces the ingress certificate. Returns whether it changed.
    pub fn set_certificate(&mut self, certificate: Option<Resource>) -> bool {
        let version = |resource: &Resource| Arc::clone(&resource.version);
        let before = self.certificate.as_ref().map(|(_, resource)| version(resource));
        let changed = before != certificate.as_ref().map(version);
        self.certificate = certificate.map(|resource| (Arc::from(CERTIFICATE_NAME), resource));
        changed
    }

    /// The base configuration. While it is unknown (`None`), clients keep the base resources that
    /// they have.
    pub fn base(&self) -> Option<&Arc<Base>> {
        self.base.as_ref()
    }

    /// Sets the base configuration; returns whether it changed.
    pub fn set_base(&mut self, base: Option<Arc<Base>>) -> bool {
        let changed = self.base != base;
        self.base = base;
        changed
    }

    /// All resource names of tenant clusters.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shards.iter().flat_map(|shard| shard.keys())
    }

    /// The entry of each cluster's public name.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let entries = self.shards.iter().flat_map(|shard| shard.iter());
        let is_public = |name: &str, entry: &Entry| is_of_name(name, &entry.route.public_name);
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

    /// Names that were added, removed or replaced in `newer`.
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

/// Names of all Envoy resources of a tenant cluster.
pub fn resource_names(route: &Route) -> impl Iterator<Item = String> {
    route.names().map(resource_name)
}

fn shard_of(name: &str) -> usize {
    let mut hasher = std::hash::DefaultHasher::new();
    name.hash(&mut hasher);
    usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or_default()
}

/// Entries for tests that need versions and no real contents.
#[cfg(test)]
pub(crate) mod entries {
    use super::*;
    use crate::authz::token::TokenTrust;
    use crate::model::route::UpstreamTrust;
    use crate::test_util::fixtures::cluster;

    /// An entry for names of the cluster `owner` with these versions.
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
