//! The resources of a base configuration, by type and name. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::snapshot::resource::{Resource, ResourceKind};

/// The resources of a base configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    resources: BTreeMap<ResourceKind, BTreeMap<Arc<str>, Resource>>,
}

impl Base {
    /// The resource of a type and name.
    pub fn get(&self, kind: ResourceKind, name: &str) -> Option<&Resource> {
        self.resources.get(&kind)?.get(name)
    }

    /// All names of a type.
    pub fn names(&self, kind: ResourceKind) -> impl Iterator<Item = &Arc<str>> {
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
    pub(crate) fn add(&mut self, kind: ResourceKind, name: &str, resource: Resource) -> bool {
        let resources = self.resources.entry(kind).or_default();
        resources.insert(Arc::from(name), resource).is_none()
    }
}
