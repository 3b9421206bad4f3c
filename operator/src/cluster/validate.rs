//! Validates the spec of a Cluster against its Tenant, the other Clusters and the host. Everything
//! that it is checked against comes in as [`ValidationContext`]. The result is an [`Accepted`] spec or a
//! [`Refusal`]. Pure.

mod arguments;
mod certificates;
mod context;
mod host_names;
mod network;
mod ownership;
mod quota;
mod refuse;
mod versions;

pub use crate::cluster::accepted::Accepted;
pub(crate) use crate::cluster::validate::certificates::plan_names;
pub use crate::cluster::validate::context::ValidationContext;
pub(crate) use crate::cluster::validate::host_names::may_have;
pub(crate) use crate::cluster::validate::ownership::holds_identity;

use yoke_api::cluster::Cluster;
use yoke_api::{Reason, Tenant};
use yoke_pki::plan::Plan;

use crate::cluster::sleep::schedule;
use crate::cluster::validate::certificates::{build_facts, refuse_plan};
use crate::cluster::validate::network::{check_network, check_sources};
use crate::cluster::validate::ownership::{check_name, check_tenant, check_uniqueness};
use crate::cluster::validate::quota::check_quota;
use crate::cluster::validate::refuse::refuse;
use crate::cluster::validate::versions::{Versions, check_version};
use crate::config::{ClassEntry, Config};
use crate::model::identity::Identity;
use crate::model::refusal::Refusal;

/// Validates the spec of a Cluster.
pub fn validate<'c>(
    cluster: &Cluster,
    identity: &Identity,
    around: &ValidationContext<'c, '_>,
) -> Result<Accepted<'c>, Refusal> {
    check_name(&identity.cluster)?;
    let tenant = check_tenant(identity, around)?;
    check_uniqueness(cluster, identity, around)?;
    let Versions {
        now: (version, catalogue),
        heads_for,
    } = check_version(cluster, around)?;
    let class = check_class(cluster, tenant, around.config)?;
    check_network(cluster, around.config)?;
    check_sources(cluster)?;
    check_schedules(cluster)?;
    arguments::check(cluster)?;
    let quota = check_quota(cluster, tenant, around)?;
    host_names::check(cluster, tenant, around)?;
    let facts = build_facts(cluster, identity, tenant)?;
    let plan = Plan::new(&facts).map_err(|error| refuse_plan(&error))?;
    Ok(Accepted {
        version,
        heads_for,
        catalogue,
        class,
        quota,
        plan,
        facts,
    })
}

fn check_schedules(cluster: &Cluster) -> Result<(), Refusal> {
    schedule::check(&cluster.spec.sleep.schedules)
        .or_else(|error| refuse(Reason::ScheduleInvalid, format!("spec.sleep.schedules: {error}.")))
}

fn check_class<'a>(cluster: &Cluster, tenant: &Tenant, config: &'a Config) -> Result<&'a ClassEntry, Refusal> {
    let asked = cluster.spec.class.as_deref();
    let default = config.class(None).map(|class| class.name.as_str());
    let allowed = &tenant.spec.allowed_classes;
    let may = match asked {
        None => true,
        Some(name) if allowed.is_empty() => Some(name) == default,
        Some(name) => allowed.iter().any(|class| class == name),
    };
    match config.class(asked).filter(|_| may) {
        Some(class) => Ok(class),
        None => refuse(
            Reason::UnknownClass,
            format!(
                "This Tenant may not use class {}. Choose one of the Tenant's allowedClasses, or omit spec.class.",
                asked.unwrap_or_default()
            ),
        ),
    }
}

#[cfg(test)]
#[path = "validate/tests.rs"]
mod tests;
