//! Objects of add-ons in a tenant's API: made and mended where they are the add-on's, removed where they are not wanted any more.

use kube::ResourceExt as _;
use kube::api::PatchParams;
use yoke_api::labels;

use super::object::{Objects, is_so};
use super::{TenantApi, TenantApiError};
use crate::addons::{Owner, Part, Plan};

/// An object of an add-on is not as it should be.
#[derive(Debug, thiserror::Error)]
#[error("keeping {part}")]
pub struct AddonError {
    /// Kind, namespace and name.
    part: String,
    /// Why not.
    source: TenantApiError,
}

/// Names of objects that are not touched, because they are somebody else's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Those that are in an add-on's way.
    pub in_the_way: Vec<String>,
    /// Those for which the rest of an add-on stays that is turned off.
    pub keeping: Vec<String>,
}

impl TenantApi {
    /// Brings about what is planned, as far as it goes: what cannot be had of one object keeps back no other. One after another:
    /// a tenant says how large they are.
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
            let digest = |of: &kube::api::DynamicObject| of.annotations().get(labels::APPLIED_DIGEST).cloned();
            if digest(found) == digest(&part.object) && is_so(&part.object, found) {
                return Ok(Owner::Own);
            }
        }
        let written = objects.write(&part.object, found.as_ref(), params).await;
        written.map(|()| Owner::Own).map_err(about(part))
    }

    /// Removes an add-on; or nothing of it while one of its objects is somebody else's, who may use the others. Says which.
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
        // What was made last goes first: an API, before what answers for it.
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
