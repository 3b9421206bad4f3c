//! Plans the certificates of a Cluster. Pure.

use yoke_api::cluster::{Cluster, PkiSpec};
use yoke_api::{Reason, Tenant};
use yoke_pki::plan::{ClusterFacts, Generations, Leaf, LeafRole, Lifetimes, Plan, PlanError};

use crate::model::identity::Identity;
use crate::model::refusal::Refusal;

/// Collects the facts that the certificate plan is made from.
pub(super) fn build_facts(cluster: &Cluster, identity: &Identity, tenant: &Tenant) -> Result<ClusterFacts, Refusal> {
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
pub(crate) fn plan_names(identity: &Identity, konnectivity: bool) -> Plan {
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

/// Explains why the certificates cannot be planned.
pub(super) fn refuse_plan(error: &PlanError) -> Refusal {
    let reason = match error {
        PlanError::Domain(_) | PlanError::ExtraName(_) => Reason::HostnameNotAllowed,
        PlanError::Duration(_) | PlanError::Lifetimes | PlanError::Generation => Reason::LifetimeInvalid,
    };
    Refusal {
        reason,
        message: format!("Certificates: {error}."),
    }
}
