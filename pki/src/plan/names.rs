//! Which names a tenant may have beside its public name. The name constraints of its CA are made of them, so a domain that is
//! too wide would let one cluster speak for another.

use super::{ClusterFacts, PlanError};

/// Domains that belong to clusters themselves.
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
        if !covered || !is_host_name(name) || name.starts_with("kubernetes") {
            return Err(PlanError::ExtraName(name.clone()));
        }
    }
    Ok(())
}

/// Whether `name` is `domain` or lies under it.
pub(crate) fn is_within(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn is_tenant_domain(domain: &str, public_name: &str) -> bool {
    let Some((_, base)) = public_name.split_once('.') else {
        return false;
    };
    is_host_name(domain)
        && !domain.starts_with("kubernetes")
        && !RESERVED.iter().any(|reserved| is_within(domain, reserved))
        && !is_within(domain, base)
        && !is_within(base, domain)
}

/// Two labels or more of lower-case letters, digits and `-`, the last of them not a number: so neither a wildcard nor an IP
/// address.
fn is_host_name(name: &str) -> bool {
    let labels: Vec<_> = name.split('.').collect();
    let is_label = |label: &&str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253
        && labels.len() >= 2
        && labels.iter().all(is_label)
        && labels
            .last()
            .is_some_and(|label| label.starts_with(|c: char| c.is_ascii_lowercase()))
}
