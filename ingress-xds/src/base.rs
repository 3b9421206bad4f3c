//! What the host's owner adds to Envoy's configuration: listeners, clusters, endpoints and routes in a ConfigMap of theirs.
//! Pure; [`crate::routing`] owns it, [`crate::announce`] says what became of it.
//!
//! ```text
//!  ConfigMap ─▶ read (guard) ─▶ Tracker ─▶ Base ─▶ Snapshot ─▶ Envoy
//!                                  ▲                             │
//!                                  └──────── Rejection ◀─────────┘
//! ```
//!
//! It is taken as a whole or not at all. One that cannot be read, that takes what is the ingress's own, or that an Envoy
//! refuses, is not served, and what was served before it stays. That is kept in memory: a process that starts with a bad one
//! does not know it, and says nothing of it, so that each Envoy keeps what it has.

mod guard;
mod read;
mod track;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::snapshot::{Kind, Resource};

pub use guard::GuardError;
pub use read::{BaseError, read};
pub use track::{Input, Notice, Rejection, Tracker};

/// Resources that are served beside the clusters'.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    resources: BTreeMap<Kind, BTreeMap<Arc<str>, Resource>>,
}

impl Base {
    /// One of them.
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Resource> {
        self.resources.get(&kind)?.get(name)
    }

    /// The names of all of a kind.
    pub fn names(&self, kind: Kind) -> impl Iterator<Item = &Arc<str>> {
        self.resources.get(&kind).into_iter().flat_map(BTreeMap::keys)
    }

    /// Number of resources.
    pub fn len(&self) -> usize {
        self.resources.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds one; whether its name was free.
    pub(crate) fn add(&mut self, kind: Kind, name: &str, resource: Resource) -> bool {
        let resources = self.resources.entry(kind).or_default();
        resources.insert(Arc::from(name), resource).is_none()
    }
}

#[cfg(test)]
mod tests;
