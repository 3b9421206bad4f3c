//! Validates the spec of a Cluster against its Tenant, the other Clusters and the host. Everything
//! that it is checked against comes in as [`ValidationContext`]. The result is an [`Accepted`] spec or a
//! [`Refusal`]. Pure.

mod arguments;
mod host_names;

pub(super) use crate::cluster::validate::host_names::may_have;

use std::collections::HashSet;
use std::sync::Arc;

use yoke_api::cluster::{Cluster, PkiSpec};
use yoke_api::names::{self, CLUSTER_NAME_MAX};
use yoke_api::version::KUBELET_MINORS_BEHIND;
use yoke_api::{Cidr, KubernetesVersion, Reason, Tenant};
use yoke_pki::plan::{ClusterFacts, Generations, Leaf, LeafRole, Lifetimes, Plan, PlanError};

use crate::cluster::sleep::schedule;
use crate::config::{ClassEntry, Config, VersionEntry};
use crate::host_api::cache::ByIdentity;
use crate::model::cluster_summary::ClusterSummary;
use crate::model::identity::Identity;
use crate::model::quantity;
use crate::model::refusal::Refusal;

/// Everything that a spec is validated against.
#[derive(Debug)]
pub struct ValidationContext<'c, 'o> {
    /// The host's configuration.
    pub config: &'c Config,
    /// The Tenant of the Cluster's namespace, if it exists.
    pub tenant: Option<&'o Tenant>,
    /// Whether the operator created the Cluster's namespace for the Tenant.
    pub namespace_is_tenants: bool,
    /// All Tenants of the host.
    pub tenants: &'o [Arc<Tenant>],
    /// Clusters of its namespace, itself included, and Clusters elsewhere that may claim the same
    /// names.
    pub clusters: &'o [Arc<ClusterSummary>],
    /// Bytes that the stores of the Tenant have reserved at NATS, by identity; stores of deleted
    /// Clusters count too.
    pub reserved: ByIdentity,
    /// The running version, if any.
    pub running: Option<KubernetesVersion>,
    /// The version whose API answered last.
    pub answered: Option<KubernetesVersion>,
}

/// A spec that can be applied, with its names resolved.
#[derive(Clone, Debug)]
pub struct Accepted<'a> {
    /// The version to run.
    pub version: KubernetesVersion,
    /// The requested version, if another version comes before it.
    pub heads_for: Option<KubernetesVersion>,
    /// Entry of the version in the catalogue.
    pub catalogue: &'a VersionEntry,
    /// Entry of the class in the configuration.
    pub class: &'a ClassEntry,
    /// The store's quota in bytes.
    pub quota: i64,
    /// Plan of the certificates to issue.
    pub plan: Plan,
    /// The facts that the certificate plan is made from.
    pub facts: ClusterFacts,
}

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

fn refuse<T>(reason: Reason, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        reason,
        message: message.into(),
    })
}

fn check_name(name: &str) -> Result<(), Refusal> {
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

fn check_schedules(cluster: &Cluster) -> Result<(), Refusal> {
    schedule::check(&cluster.spec.sleep.schedules)
        .or_else(|error| refuse(Reason::ScheduleInvalid, format!("spec.sleep.schedules: {error}.")))
}

fn check_tenant<'o>(identity: &Identity, around: &ValidationContext<'_, 'o>) -> Result<&'o Tenant, Refusal> {
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
pub(super) fn holds_identity(cluster: &Cluster, clusters: &[Arc<ClusterSummary>]) -> bool {
    let own = ClusterSummary::of(cluster);
    let mut same = clusters.iter().filter(|other| other.id == own.id);
    !same.any(|other| other.precedes(&own))
}

fn check_uniqueness(cluster: &Cluster, identity: &Identity, around: &ValidationContext<'_, '_>) -> Result<(), Refusal> {
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

struct Versions<'c> {
    now: (KubernetesVersion, &'c VersionEntry),
    heads_for: Option<KubernetesVersion>,
}

fn check_version<'c>(cluster: &Cluster, around: &ValidationContext<'c, '_>) -> Result<Versions<'c>, Refusal> {
    let config = around.config;
    let wanted = match cluster.spec.version.as_deref() {
        Some(text) => text
            .parse::<KubernetesVersion>()
            .or_else(|error| refuse(Reason::UnknownVersion, format!("spec.version: {error}.")))?,
        None => around.running.unwrap_or_else(|| config.default_version()),
    };
    let version = plan_step(wanted, around)?;
    if let Some(running) = around.running
        && !running.may_change_to(version)
    {
        return refuse(
            Reason::VersionChangeRefused,
            format!(
                "Kubernetes {running} is running and cannot change to {version}: upgrades go one minor version at a \
         time, and minor downgrades are not possible."
            ),
        );
    }
    // The condition `WorkersUpdated` reports old workers while the control plane does not change.
    let oldest = cluster
        .status
        .as_ref()
        .and_then(|status| status.workers.as_ref()?.oldest_version.as_deref());
    let oldest = oldest.and_then(|oldest| oldest.parse::<KubernetesVersion>().ok());
    if let (Some(running), Some(oldest)) = (around.running, oldest)
        && running.minor < version.minor
        && version.minor.saturating_sub(oldest.minor) > KUBELET_MINORS_BEHIND
    {
        return refuse(
            Reason::VersionChangeRefused,
            format!(
                "A Node has kubelet {oldest}, which is too old for an API server of {version}. Upgrade that kubelet \
         to {running}, or delete the Node."
            ),
        );
    }
    Ok(Versions {
        now: (version, check_offered(version, config)?),
        heads_for: (version != wanted).then_some(wanted),
    })
}

/// The next version to run on the way to the wanted one.
///
/// Each minor version migrates the stored objects; a later one may not read objects that skipped a
/// version. A version that was requested while the Cluster slept or was paused, or that never
/// became available, has migrated nothing. The owner cannot revert such a version: the CRD allows
/// no downgrade.
fn plan_step(wanted: KubernetesVersion, around: &ValidationContext<'_, '_>) -> Result<KubernetesVersion, Refusal> {
    let Some(running) = around.running else {
        return Ok(wanted);
    };
    // The rollout that started last has answered, or it is the first one.
    let is_reached = around.answered.is_none_or(|answered| answered.minor >= running.minor);
    let next = running.minor.saturating_add(u16::from(is_reached));
    if wanted.major != running.major || wanted.minor <= next {
        return Ok(wanted);
    }
    check_offered(wanted, around.config)?;
    let offered = around.config.versions.iter();
    let offered = offered.filter_map(|entry| entry.version.parse::<KubernetesVersion>().ok());
    // The newest patch release, as an earlier one may have failed through a bug of its own.
    let between = offered.filter(|offered| offered.major == running.major && offered.minor == next);
    between.max().ok_or_else(|| Refusal {
        reason: Reason::VersionChangeRefused,
        message: format!(
            "An upgrade from {running} to {wanted} needs v{}.{next} in between, which this host does not offer. \
         Offered versions: {}.",
            running.major,
            list_offered(around.config)
        ),
    })
}

fn check_offered(version: KubernetesVersion, config: &Config) -> Result<&VersionEntry, Refusal> {
    config.version(version).ok_or_else(|| Refusal {
        reason: Reason::UnknownVersion,
        message: format!(
            "This host does not offer Kubernetes {version}. Offered versions: {}.",
            list_offered(config)
        ),
    })
}

fn list_offered(config: &Config) -> String {
    let offered: Vec<_> = config.versions.iter().map(|entry| entry.version.as_str()).collect();
    offered.join(", ")
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

fn check_network(cluster: &Cluster, config: &Config) -> Result<(), Refusal> {
    let network = &cluster.spec.network;
    if !config.service_cidrs.contains(&network.service_cidr) {
        return refuse(
            Reason::NetworkNotOffered,
            format!(
                "This host does not offer service range {}. Offered ranges: {}.",
                network.service_cidr,
                config.service_cidrs.join(", ")
            ),
        );
    }
    if !config.cluster_domains.contains(&network.cluster_domain) {
        return refuse(
            Reason::NetworkNotOffered,
            format!(
                "This host does not offer cluster domain {}. Offered domains: {}.",
                network.cluster_domain,
                config.cluster_domains.join(", ")
            ),
        );
    }
    let pods = network
        .pod_cidr
        .parse::<Cidr>()
        .or_else(|error| refuse(Reason::NetworkNotOffered, format!("spec.network.podCIDR: {error}.")))?;
    let overlaps = network
        .service_cidr
        .parse::<Cidr>()
        .is_ok_and(|services| services.overlaps(pods));
    if overlaps {
        return refuse(
            Reason::NetworkNotOffered,
            "spec.network.podCIDR and spec.network.serviceCIDR overlap. Choose ranges without common addresses.",
        );
    }
    Ok(())
}

// The CRD's validation rule has the same check.
fn check_sources(cluster: &Cluster) -> Result<(), Refusal> {
    for range in &cluster.spec.endpoint.allowed_cidrs {
        if let Err(error) = range.parse::<Cidr>() {
            return refuse(
                Reason::SourceRangeInvalid,
                format!("spec.endpoint.allowedCIDRs: {error}."),
            );
        }
    }
    Ok(())
}

fn check_quota(cluster: &Cluster, tenant: &Tenant, around: &ValidationContext<'_, '_>) -> Result<i64, Refusal> {
    let own = quantity::to_bytes(&cluster.spec.storage.quota)
        .or_else(|error| refuse(Reason::QuotaExceeded, format!("spec.storage.quota: {error}.")))?;
    let itself = ClusterSummary::of(cluster);
    let quota = &tenant.spec.quota;
    let allowed = usize::try_from(quota.clusters).unwrap_or(0);
    let storage = quantity::to_bytes(&quota.storage).unwrap_or(0);
    let noted = |other: &ClusterSummary| {
        let bytes = other.id.as_deref().and_then(|id| around.reserved.get(id));
        bytes.copied().unwrap_or(0)
    };
    let of_tenant = |other: &&Arc<ClusterSummary>| other.namespace == itself.namespace;
    let siblings: Vec<_> = around.clusters.iter().filter(of_tenant).collect();
    let had: HashSet<&str> = siblings.iter().filter_map(|other| other.id.as_deref()).collect();
    let gone = around.reserved.iter().filter(|(id, _)| !had.contains(id.as_str()));
    let retained = sum(gone.map(|(_, bytes)| *bytes));
    let mut older: Vec<_> = siblings.iter().filter(|other| other.precedes(&itself)).collect();
    older.sort_by(|one, other| one.rank().cmp(&other.rank()));
    // An older Cluster that does not fit counts only with the bytes that its store has reserved. A
    // Cluster refused for its size takes no quota from others; a maintained one keeps what it has.
    let (mut count, mut used) = (0, retained);
    for other in older {
        let wanted = other.quota.unwrap_or(0).max(noted(other));
        if count < allowed && used.saturating_add(wanted) <= storage {
            count += 1;
            used += wanted;
        } else {
            used = used.saturating_add(noted(other));
        }
    }
    // A Cluster that requests more than it has must also leave room for what younger Clusters have.
    if own > noted(&itself) {
        let others = siblings.iter().filter(|other| other.uid != itself.uid);
        used = used.max(retained.saturating_add(sum(others.map(|other| noted(other)))));
    }
    if count >= allowed {
        return refuse(
            Reason::QuotaExceeded,
            format!(
                "The Tenant's quota allows {allowed} Clusters, and it has {count} older ones. Delete a Cluster, or \
         have the quota raised."
            ),
        );
    }
    if used.saturating_add(own) > storage {
        return refuse(
            Reason::QuotaExceeded,
            format!(
                "The Tenant's storage quota is {} in total. Other Clusters and retained data leave {} bytes, and \
         this Cluster requests {own}.",
                quota.storage.0,
                storage.saturating_sub(used).max(0)
            ),
        );
    }
    Ok(own)
}

fn sum(bytes: impl Iterator<Item = i64>) -> i64 {
    bytes.fold(0, i64::saturating_add)
}

fn build_facts(cluster: &Cluster, identity: &Identity, tenant: &Tenant) -> Result<ClusterFacts, Refusal> {
    Ok(ClusterFacts {
        id: identity.id.clone(),
        tenant: identity.tenant.clone(),
        cluster: identity.cluster.clone(),
        public_name: identity.public_name.clone(),
        extra_sans: cluster.spec.endpoint.extra_sans.clone(),
        allowed_domains: tenant.spec.allowed_domains.clone(),
        konnectivity: cluster.spec.konnectivity.is_enabled(),
        lifetimes: Lifetimes::from_spec(&cluster.spec.pki).map_err(|error| refuse_plan(&error))?,
        generations: Generations::first(),
    })
}

/// A certificate plan for a Cluster whose spec must not be read, with a konnectivity-server or
/// without. Only its object names are valid.
pub(super) fn plan_names(identity: &Identity, konnectivity: bool) -> Plan {
    let facts = ClusterFacts {
        id: identity.id.clone(),
        tenant: identity.tenant.clone(),
        cluster: identity.cluster.clone(),
        public_name: identity.public_name.clone(),
        extra_sans: Vec::new(),
        allowed_domains: Vec::new(),
        konnectivity,
        lifetimes: Lifetimes::from_spec(&PkiSpec::default()).expect("the defaults are numbers of hours"),
        generations: Generations::first(),
    };
    let mut plan = Plan::new(&facts).expect("the default lifetimes fit, and there are no domains");
    // The extra names are not known here; a certificate that was issued for them is copied if it
    // exists.
    plan.leaves.push(Leaf::new(LeafRole::Sleeper, &identity.id));
    plan
}

fn refuse_plan(error: &PlanError) -> Refusal {
    let reason = match error {
        PlanError::Domain(_) | PlanError::ExtraName(_) => Reason::HostnameNotAllowed,
        PlanError::Duration(_) | PlanError::Lifetimes | PlanError::Generation => Reason::LifetimeInvalid,
    };
    Refusal {
        reason,
        message: format!("Certificates: {error}."),
    }
}

#[cfg(test)]
#[path = "validate/tests.rs"]
mod tests;
