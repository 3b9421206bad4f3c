//! Reasons why facts do not make a valid plan.

/// The facts do not make a valid plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A duration is not a number of hours.
    #[error("lifetime {0:?} is not a number of hours such as 720h")]
    Duration(String),
    /// The lifetimes do not fit together, or one is too long.
    #[error(
        "lifetimes do not fit together: caOverlap and leafDuration must be at least 1h, caOverlap less than caDuration, \
         and caDuration at most 87600h"
    )]
    Lifetimes,
    /// The Tenant may not have this domain.
    #[error("a tenant may not have the domain {0:?}: use a domain outside the base domain and outside svc and local")]
    Domain(String),
    /// The name is not a hostname, or is not under any of the Tenant's domains.
    #[error("name {0:?} is not a host name under one of the tenant's domains")]
    ExtraName(String),
    /// Generations are numbered from 1.
    #[error("generation 0 is invalid: generations are numbered from 1")]
    Generation,
}
