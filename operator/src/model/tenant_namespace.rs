//! A Tenant's namespace: which namespace belongs to which Tenant, and its Role. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::Role;
use kube::ResourceExt as _;
use yoke_api::{Tenant, labels};

/// Name of the Role, the RoleBinding and the ResourceQuota in the Tenant's namespace.
pub(crate) const ROLE: &str = "yoke-tenant";

pub(crate) fn labels_of(tenant: &str) -> BTreeMap<String, String> {
    [
        (labels::TENANT.to_owned(), tenant.to_owned()),
        (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_OPERATOR.to_owned()),
    ]
    .into()
}

/// Returns whether a namespace is annotated with this Tenant's UID.
pub fn is_owned(namespace: &Namespace, tenant: &Tenant) -> bool {
    let owner = namespace.annotations().get(labels::OWNER_UID);
    owner.is_some() && owner == tenant.metadata.uid.as_ref()
}

/// Returns whether a namespace was left by a deleted Tenant with the same name. This one was then
/// restored from a backup, with another UID. The labels must name the Tenant, and no annotation may
/// name another one, or the UID of an existing Tenant.
pub fn is_left(namespace: &Namespace, tenant: &Tenant, tenants: &[Arc<Tenant>]) -> bool {
    let name = tenant.name_any();
    let labelled = labels_of(&name);
    let mut labels = labelled.iter();
    let annotation = |key| namespace.annotations().get(key);
    let lives = |uid: &String| tenants.iter().any(|other| other.metadata.uid.as_ref() == Some(uid));
    namespace.name_any() == name
        && labels.all(|(key, value)| namespace.labels().get(key) == Some(value))
        && annotation(labels::OWNER).is_none_or(|owner| *owner == name)
        && annotation(labels::OWNER_UID).is_none_or(|uid| !lives(uid))
}

/// Returns whether a Role allows its subjects to read a Secret.
pub(crate) fn names_secret(role: &Role, secret: &str) -> bool {
    let of = |texts: &Option<Vec<String>>, text: &str| texts.iter().flatten().any(|each| each == text);
    let mut rules = role.rules.iter().flatten();
    rules.any(|rule| of(&rule.resources, "secrets") && of(&rule.resource_names, secret))
}

/// Maximum number of valid JoinTokens of a Tenant.
pub(crate) const TENANT_MAX: usize = 64;
