//! Checks the name of a Cluster, its Tenant, and that no older Cluster has its identity or its public name.
//! Pure.

use std::sync::Arc;

use yoke_api::cluster::Cluster;
use yoke_api::names::{self, CLUSTER_NAME_MAX};
use yoke_api::{Reason, Tenant};

use crate::cluster::validate::context::ValidationContext;
use crate::cluster::validate::refuse::refuse;
use crate::model::cluster_summary::ClusterSummary;
use crate::model::identity::Identity;
use crate::model::refusal::Refusal;

pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.len() > CLUSTER_NAME_MAX {
        return refuse(
            Reason::NameInvalid,
            format!(
                "The name has {} characters; a Cluster name may have at most {CLUSTER_NAME_MAX}. Delete this Cluster \
         and create one with a shorter name.",
                name.len()
            ),
        );
    }
    let good = names::is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
    if good {
        Ok(())
    } else {
        refuse(
            Reason::NameInvalid,
            "The name is not a DNS label that starts with a letter (RFC 1035). Delete this Cluster and create \
         one with another name.",
        )
    }
}

pub(super) fn check_tenant<'o>(identity: &Identity, around: &ValidationContext<'_, 'o>) -> Result<&'o Tenant, Refusal> {
    match around.tenant {
        Some(tenant) if tenant.metadata.deletion_timestamp.is_none() && around.namespace_is_tenants => Ok(tenant),
        Some(tenant) if tenant.metadata.deletion_timestamp.is_none() => refuse(
            Reason::TenantMissing,
            format!(
                "Namespace {0} exists but does not belong to Tenant {0}. Ask the host's admin.",
                identity.tenant
            ),
        ),
        Some(_) => refuse(
            Reason::TenantMissing,
            format!("Tenant {} is being deleted.", identity.tenant),
        ),
        None => refuse(
            Reason::TenantMissing,
            format!(
                "Namespace {0} belongs to no Tenant, as no Tenant is named {0}. Create the Cluster in the namespace \
         of a Tenant.",
                identity.tenant
            ),
        ),
    }
}

/// Whether no older Cluster has the identity of this one.
pub(crate) fn holds_identity(cluster: &Cluster, clusters: &[Arc<ClusterSummary>]) -> bool {
    let own = ClusterSummary::of(cluster);
    let mut same = clusters.iter().filter(|other| other.id == own.id);
    !same.any(|other| other.precedes(&own))
}

pub(super) fn check_uniqueness(
    cluster: &Cluster,
    identity: &Identity,
    around: &ValidationContext<'_, '_>,
) -> Result<(), Refusal> {
    let own = ClusterSummary::of(cluster);
    // `clusters` also has the Tenant's other Clusters, which have nothing in common with this one.
    let near = around
        .clusters
        .iter()
        .filter(|other| other.id == own.id || other.name == own.name);
    for other in near.filter(|other| other.precedes(&own)) {
        let Some(id) = other.identity() else {
            continue;
        };
        if id == identity.id {
            return refuse(
                Reason::IdentityConflict,
                format!(
                    "Identity {} belongs to an older Cluster. Delete this Cluster and create it again without spec.id.",
                    identity.id
                ),
            );
        }
        if id.public_name(&other.name, &around.config.base_domain) == identity.public_name {
            return refuse(
                Reason::HostnameConflict,
                format!(
                    "Host name {} belongs to an older Cluster. Create this Cluster with another name.",
                    identity.public_name
                ),
            );
        }
    }
    Ok(())
}
