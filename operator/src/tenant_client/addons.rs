//! Objects of add-ons in a tenant's API: created and repaired if the add-on owns them, deleted when
//! they are no longer wanted.

use kube::ResourceExt as _;
use kube::api::PatchParams;
use yoke_api::labels;

use crate::addons::{Owner, Part, Plan};
use crate::tenant_client::api::TenantApi;
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::object::{Objects, matches_desired};

/// An object of an add-on could not be reconciled.
#[derive(Debug, thiserror::Error)]
#[error("applying {part}")]
pub struct AddonError {
    /// Kind, namespace and name.
    part: String,
    /// Cause.
    source: TenantApiError,
}

/// Names of objects that are not touched, because they are owned by others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Objects that conflict with one of an add-on.
    pub in_the_way: Vec<String>,
    /// Objects that prevent the deletion of a disabled add-on.
    pub keeping: Vec<String>,
}

impl TenantApi {
    /// Applies a plan as far as possible: a failure with one object does not stop the others. Works
    /// sequentially, since the tenant controls the size of the answers.
    pub async fn apply_addons(&self, plan: &Plan, params: &PatchParams) -> Result<Foreign, AddonError> {
        let mut foreign = Foreign::default();
        let mut failed = None;
        for part in &plan.wanted {
            match self.ensure_part(part, params).await {
                Ok(Owner::Own) => {}
                Ok(Owner::Foreign) => foreign.in_the_way.push(part.name()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        for parts in plan.unwanted.chunk_by(|one, next| one.addon == next.addon) {
            match self.remove_addon(parts).await {
                Ok(keeping) => foreign.keeping.extend(keeping),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(foreign), Err)
    }

    fn objects(&self, part: &Part) -> Objects<'_> {
        Objects::of(&self.client, "an object of an add-on", &part.resource, &part.object)
    }

    async fn ensure_part(&self, part: &Part, params: &PatchParams) -> Result<Owner, AddonError> {
        let objects = self.objects(part);
        let found = objects.find(&part.object).await.map_err(about(part))?;
        if let Some(found) = &found {
            if part.owner(found) == Owner::Foreign {
                return Ok(Owner::Foreign);
            }
            let digest = |object: &kube::api::DynamicObject| object.annotations().get(labels::APPLIED_DIGEST).cloned();
            if digest(found) == digest(&part.object) && matches_desired(&part.object, found) {
                return Ok(Owner::Own);
            }
        }
        let written = objects.write(&part.object, found.as_ref(), params).await;
        written.map(|()| Owner::Own).map_err(about(part))
    }

    /// Deletes an add-on. If one of its objects is owned by another, who may use the rest, deletes
    /// nothing. Returns the names of such objects.
    async fn remove_addon(&self, parts: &[Part]) -> Result<Vec<String>, AddonError> {
        let (mut own, mut foreign) = (Vec::new(), Vec::new());
        for part in parts {
            match self.objects(part).find(&part.object).await.map_err(about(part))? {
                Some(found) if part.owner(&found) == Owner::Foreign => foreign.push(part.name()),
                Some(found) => own.push((part, found)),
                None => {}
            }
        }
        if own.is_empty() || !foreign.is_empty() {
            return Ok(if own.is_empty() { Vec::new() } else { foreign });
        }
        // In reverse order of creation: an API before the server behind it.
        for (part, found) in own.into_iter().rev() {
            if found.metadata.deletion_timestamp.is_some() {
                continue;
            }
            match self.objects(part).delete(&found).await {
                Err(error) if !error.is_of_another() => return Err(about(part)(error)),
                _ => {}
            }
        }
        Ok(Vec::new())
    }
}

fn about(part: &Part) -> impl FnOnce(TenantApiError) -> AddonError {
    let part = part.name();
    |source| AddonError { part, source }
}
