//! Objects of add-ons in a tenant's API: made and mended where they are the add-on's, removed where they are not wanted any more.

use kube::api::{DeleteParams, DynamicObject, PatchParams, Preconditions};
use kube::{Api, Resource as _, ResourceExt as _};
use yoke_api::{Lenient, labels};

use super::base::is_so;
use super::{TenantApi, TenantApiError, limited, write};
use crate::addons::{Owner, Part, Plan};

type Objects = Api<Lenient<DynamicObject>>;

/// What an error calls the objects.
const WHAT: &str = "an object of an add-on";

impl TenantApi {
    /// Brings about what is planned, as far as it goes: what cannot be had of one object keeps back no other. Says which objects
    /// are not touched, because they are somebody else's.
    pub async fn apply_addons(&self, plan: &Plan, params: &PatchParams) -> Result<Vec<String>, TenantApiError> {
        let wanted = plan.wanted.iter().map(|part| async move {
            let owner = self.ensure_part(part, params).await?;
            Ok((owner == Owner::Foreign).then(|| part.name()))
        });
        let unwanted = plan.unwanted.iter().map(|part| self.remove_part(part));
        let (wanted, unwanted) = tokio::join!(futures::future::join_all(wanted), futures::future::join_all(unwanted));
        unwanted.into_iter().collect::<Result<(), _>>()?;
        let foreign = wanted.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(foreign.into_iter().flatten().collect())
    }

    fn objects(&self, part: &Part) -> Objects {
        match part.object.namespace() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &part.resource),
            None => Api::all_with(self.client.clone(), &part.resource),
        }
    }

    async fn ensure_part(&self, part: &Part, params: &PatchParams) -> Result<Owner, TenantApiError> {
        let api = self.objects(part);
        let found = limited(WHAT, api.get_opt(&part.object.name_any())).await?;
        if let Some(found) = &found {
            if part.owner(found) == Owner::Foreign {
                return Ok(Owner::Foreign);
            }
            let is_applied = found.annotations().get(labels::APPLIED_DIGEST)
                == part.object.annotations().get(labels::APPLIED_DIGEST);
            if is_applied && found.0.as_ref().is_ok_and(|found| is_so(&part.object, found)) {
                return Ok(Owner::Own);
            }
        }
        write(WHAT, &api, &part.object, found.as_ref(), params).await?;
        Ok(Owner::Own)
    }

    async fn remove_part(&self, part: &Part) -> Result<(), TenantApiError> {
        let (api, name) = (self.objects(part), part.object.name_any());
        let Some(found) = limited(WHAT, api.get_opt(&name)).await? else {
            return Ok(());
        };
        if part.owner(&found) == Owner::Foreign || found.meta().deletion_timestamp.is_some() {
            return Ok(());
        }
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: found.uid(),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        match limited(WHAT, api.delete(&name, &params)).await {
            Err(error) if !error.is_of_another() => Err(error),
            _ => Ok(()),
        }
    }
}
