//! Whether a Cluster may have the host names that it asks for beside its public one. Pure.

use kube::ResourceExt as _;
use yoke_api::cluster::Cluster;
use yoke_api::{Reason, Tenant, names};

use super::{Refusal, Surroundings, precedes, refuse};

pub(super) fn check(cluster: &Cluster, tenant: &Tenant, around: &Surroundings<'_, '_>) -> Result<(), Refusal> {
    for name in &cluster.spec.endpoint.extra_sans {
        check_extra_name(name, tenant, &around.config.base_domain)?;
        let taken = around
            .clusters
            .iter()
            .filter(|other| precedes(other, cluster))
            .any(|other| claims(other, name, around));
        if taken {
            return refuse(
                Reason::HostnameConflict,
                format!("Host name {name} is that of an older Cluster."),
            );
        }
    }
    Ok(())
}

/// Whether a Cluster asks for a host name and its own Tenant lets it: what it may not have it does not keep from others.
fn claims(other: &Cluster, name: &String, around: &Surroundings<'_, '_>) -> bool {
    let namespace = other.namespace().unwrap_or_default();
    let mut tenants = around.tenants.iter().map(AsRef::as_ref).chain(around.tenant);
    other.spec.endpoint.extra_sans.contains(name)
        && tenants
            .find(|tenant| tenant.name_any() == namespace)
            .is_some_and(|tenant| check_extra_name(name, tenant, &around.config.base_domain).is_ok())
}

/// Those of some host names that a Tenant may have now; none without a Tenant.
pub(in crate::cluster) fn pick_allowed(
    mut names: Vec<String>,
    tenant: Option<&Tenant>,
    base_domain: &str,
) -> Vec<String> {
    names.retain(|name| tenant.is_some_and(|tenant| check_extra_name(name, tenant, base_domain).is_ok()));
    names
}

fn check_extra_name(name: &str, tenant: &Tenant, base_domain: &str) -> Result<(), Refusal> {
    let not_allowed = |why: &str| refuse(Reason::HostnameNotAllowed, format!("Host name {name} {why}."));
    if !names::is_domain(name) {
        return not_allowed("is not a DNS name in lower case");
    }
    if name.starts_with("kubernetes") || ["svc", "local"].iter().any(|end| names::is_within(name, end)) {
        return not_allowed("is one that clusters use inside");
    }
    if names::is_within(name, base_domain) {
        return not_allowed("lies under the host's own domain");
    }
    if !tenant
        .spec
        .allowed_domains
        .iter()
        .any(|domain| names::is_within(name, domain))
    {
        return not_allowed("is not under one of the Tenant's domains");
    }
    Ok(())
}
