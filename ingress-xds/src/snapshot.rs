//! What is served at one moment: for each SNI name its Envoy resources and whether it can be reached now.
//!
//! In come changed names from [`crate::routing`]; readers are the streams ([`crate::ads`]) and the gate
//! ([`crate::gate`]). A snapshot is immutable and shares all that did not change with the one before it, so that
//! publishing one change among 10,000 names copies one shard, and finding what changed compares pointers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use crate::model::Route;

/// Begins the name of every Envoy cluster that an SNI name can choose. Envoy makes the same name from the SNI that it was
/// sent, so no SNI can name a cluster of Envoy's own configuration.
pub const PREFIX: &str = "l4/";

const SHARDS: usize = 256;

/// One resource as it is sent: its bytes and a version that is derived from nothing but them.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The version: equal bytes have equal versions, in every replica and after every restart. That of endpoints changes
    /// with the Cluster's bytes, too.
    pub version: Arc<str>,
    /// The encoded protobuf message.
    pub body: Arc<[u8]>,
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
}

type Shard = BTreeMap<Arc<str>, Arc<Entry>>;

/// All names and what is served for each. Keys are resource names, see [`resource_name`].
#[derive(Clone, Debug)]
pub struct Snapshot {
    shards: Vec<Arc<Shard>>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            shards: vec![Arc::default(); SHARDS],
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
        let shard = Arc::make_mut(&mut self.shards[shard_of(name)]);
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

    /// Every name.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shards.iter().flat_map(|shard| shard.keys())
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
    format!("{PREFIX}{sni}")
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
                service: owner.to_owned(),
            }),
            reachable: true,
            cluster: resource(cluster_version),
            endpoints: resource(endpoints_version),
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
        for name in ["l4/a", "l4/b", "l4/c"] {
            old.set(name, Some(entry("n", &["a"], "1", "1")));
        }
        let mut new = old.clone();
        assert_eq!(old.changed_names(&new).count(), 0);
        new.set("l4/a", None);
        new.set("l4/b", Some(entry("n", &["a"], "1", "2")));
        new.set("l4/d", Some(entry("n", &["a"], "1", "1")));
        let mut changed: Vec<_> = old.changed_names(&new).map(AsRef::as_ref).collect();
        changed.sort_unstable();
        assert_eq!(changed, ["l4/a", "l4/b", "l4/d"]);
        assert!(old.get("l4/a").is_some(), "the old snapshot is as it was");
        assert_eq!((old.len(), new.len()), (3, 3));
        assert!(!new.is_empty() && Snapshot::default().is_empty());
        assert_eq!(new.names().count(), 3);
    }
}
