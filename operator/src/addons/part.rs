//! One object of an add-on, with the label and the digest that identify its owner. Pure.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use kube::api::{ApiResource, DynamicObject};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use yoke_api::labels;

use crate::addons::addon::Addon;
use crate::model::dynamic::to_dynamic;

/// Label with the app's name, as usual in kube-system.
const APP: &str = "k8s-app";

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

/// Owner of an existing object with the name of a [`Part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The add-on.
    Own,
    /// Another client.
    Foreign,
}

/// Collects the objects of one add-on.
#[derive(Debug)]
pub(super) struct Parts {
    addon: Addon,
    pub(super) parts: Vec<Part>,
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

impl Parts {
    pub(super) fn new(addon: Addon) -> Self {
        Self {
            addon,
            parts: Vec::new(),
        }
    }

    /// Adds an object, with the add-on's labels and digest.
    pub(super) fn add<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K) {
        let mut object = to_dynamic(object);
        let marks = [
            (labels::ADDON.to_owned(), self.addon.as_str().to_owned()),
            (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_OPERATOR.to_owned()),
        ];
        object.labels_mut().extend(marks);
        let digest = digest(&object);
        object.annotations_mut().insert(labels::APPLIED_DIGEST.into(), digest);
        self.parts.push(Part {
            addon: self.addon,
            resource: ApiResource::erase::<K>(&()),
            object,
        });
    }
}

/// Digest of a value, as annotated on each object.
pub(super) fn digest<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_vec(value).expect("typed Kubernetes objects have string keys only");
    HEXLOWER.encode(&Sha256::digest(text)[..16])
}
