//! The base configuration: a ConfigMap of the host's owner with listeners, clusters, endpoints and
//! routes for Envoy. Pure; [`crate::routing`] owns it, [`crate::announce`] reports whether it is
//! served.
//!
//! ```text
//!  ConfigMap ─▶ read (guard) ─▶ Tracker ─▶ Base ─▶ Snapshot ─▶ Envoy
//!                                  ▲                             │
//!                                  └──────── Rejection ◀─────────┘
//! ```
//!
//! A configuration is served as a whole or not at all. The previous configuration continues to be served if the
//! new one cannot be parsed, uses a reserved name or port, or is refused by an Envoy.
//!
//! The previous configuration is stored in memory only. A process that starts with an invalid
//! configuration therefore serves none, and each Envoy continues with the resources that it has.

mod guard;
mod read;
mod track;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::snapshot::{Kind, Resource};

pub use guard::GuardError;
pub use read::{BaseError, read};
pub use track::{Input, Notice, Rejection, Tracker};

/// The resources of a base configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    resources: BTreeMap<Kind, BTreeMap<Arc<str>, Resource>>,
}

impl Base {
    /// The resource of a type and name.
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Resource> {
        self.resources.get(&kind)?.get(name)
    }

    /// All names of a type.
    pub fn names(&self, kind: Kind) -> impl Iterator<Item = &Arc<str>> {
        self.resources.get(&kind).into_iter().flat_map(BTreeMap::keys)
    }

    /// Number of resources.
    pub fn len(&self) -> usize {
        self.resources.values().map(BTreeMap::len).sum()
    }

    /// Whether there is no resource.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a resource; returns whether its name was free.
    pub(crate) fn add(&mut self, kind: Kind, name: &str, resource: Resource) -> bool {
        let resources = self.resources.entry(kind).or_default();
        resources.insert(Arc::from(name), resource).is_none()
    }
}

#[cfg(test)]
mod tests;
