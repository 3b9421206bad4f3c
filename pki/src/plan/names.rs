//! Checks the names that a tenant may have besides its public name. They become name constraints of
//! its CA, so a domain that is too wide would let one cluster impersonate another.

use yoke_api::names::{is_domain, is_within};

use super::{ClusterFacts, PlanError};

/// Domains that clusters use internally.
const RESERVED: [&str; 2] = ["svc", "local"];

/// Checks the tenant's domains and the extra names.
pub(super) fn check(facts: &ClusterFacts) -> Result<(), PlanError> {
    for domain in &facts.allowed_domains {
        if !is_tenant_domain(domain, facts.public_name.as_str()) {
            return Err(PlanError::Domain(domain.clone()));
        }
    }
    for name in &facts.extra_sans {
        let covered = facts.allowed_domains.iter().any(|domain| is_within(name, domain));
        if !covered || !is_domain(name) || name.starts_with("kubernetes") {
            return Err(PlanError::ExtraName(name.clone()));
        }
    }
    Ok(())
}

fn is_tenant_domain(domain: &str, public_name: &str) -> bool {
    let Some((_, base)) = public_name.split_once('.') else {
        return false;
    };
    is_domain(domain)
        && !domain.starts_with("kubernetes")
        && !RESERVED.iter().any(|reserved| is_within(domain, reserved))
        && !is_within(domain, base)
        && !is_within(base, domain)
}
