//! Checks whether a Cluster may have its extra host names. Pure.

use kube::ResourceExt as _;
use yoke_api::cluster::Cluster;
use yoke_api::{Reason, Tenant, names};

use crate::cluster::validate::context::ValidationContext;
use crate::cluster::validate::refuse::refuse;
use crate::model::cluster_summary::ClusterSummary;
use crate::model::refusal::Refusal;

pub(super) fn check(cluster: &Cluster, tenant: &Tenant, around: &ValidationContext<'_, '_>) -> Result<(), Refusal> {
    let own = ClusterSummary::of(cluster);
    for name in &own.extra_sans {
        check_extra_name(name, tenant, around)?;
        check_taken(name, &own, around)?;
    }
    Ok(())
}

/// Whether a Cluster, accepted or not, may have a host name: its spec requests it, its Tenant
/// allows it, and no older Cluster claims it.
pub(crate) fn may_have(cluster: &Cluster, name: &String, around: &ValidationContext<'_, '_>) -> bool {
    let own = ClusterSummary::of(cluster);
    claims(&own, name, around) && check_taken(name, &own, around).is_ok()
}

fn check_taken(name: &String, own: &ClusterSummary, around: &ValidationContext<'_, '_>) -> Result<(), Refusal> {
    let mut older = around.clusters.iter().filter(|other| other.precedes(own));
    if older.any(|other| claims(other, name, around)) {
        return refuse(
            Reason::HostnameConflict,
            format!("Host name {name} belongs to an older Cluster. Remove it from spec.endpoint.extraSANs."),
        );
    }
    Ok(())
}

/// Whether a Cluster requests a host name that its own Tenant allows. A name that it may not have
/// is free for others.
fn claims(cluster: &ClusterSummary, name: &String, around: &ValidationContext<'_, '_>) -> bool {
    let mut tenants = around.tenants.iter().map(AsRef::as_ref).chain(around.tenant);
    cluster.extra_sans.contains(name)
        && tenants
            .find(|tenant| tenant.name_any() == *cluster.namespace)
            .is_some_and(|tenant| check_extra_name(name, tenant, around).is_ok())
}

fn check_extra_name(name: &str, tenant: &Tenant, around: &ValidationContext<'_, '_>) -> Result<(), Refusal> {
    let not_allowed = |why: &str| refuse(Reason::HostnameNotAllowed, format!("Host name {name} {why}."));
    if !names::is_domain(name) {
        return not_allowed("is not a DNS name in lower case");
    }
    if name.starts_with("kubernetes") || ["svc", "local"].iter().any(|end| names::is_within(name, end)) {
        return not_allowed("is reserved for use inside clusters");
    }
    if names::is_within(name, &around.config.base_domain) {
        return not_allowed("is under the host's own domain");
    }
    let Some(own) = find_domain(name, tenant) else {
        return not_allowed("is not under one of the Tenant's domains");
    };
    // A Tenant with a more specific domain has that part alone. Two Tenants with the same domain
    // share it.
    let mut others = around
        .tenants
        .iter()
        .filter(|other| other.name_any() != tenant.name_any());
    if others.any(|other| find_domain(name, other).is_some_and(|domain| domain.len() > own.len())) {
        return not_allowed("is under a domain of another Tenant");
    }
    Ok(())
}

/// The most specific of a Tenant's domains that contains a name.
fn find_domain<'t>(name: &str, tenant: &'t Tenant) -> Option<&'t String> {
    let domains = tenant.spec.allowed_domains.iter();
    domains
        .filter(|domain| names::is_within(name, domain))
        .max_by_key(|domain| domain.len())
}
