//! Errors of the signer.

use crate::csr_signer::issue::IssueError;
use crate::error::ReconcileError;
use crate::tenant_client::TenantApiError;

/// A request could not be answered now.
#[derive(Debug, thiserror::Error)]
pub(super) enum SignError {
    /// The watch ended.
    #[error("the watch of certificate requests ended")]
    Ended,
    /// A request to the tenant's API failed.
    #[error(transparent)]
    Tenant(#[from] TenantApiError),
    /// A request to the host API failed.
    #[error(transparent)]
    Host(#[from] ReconcileError),
    /// No certificate was issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The Cluster was deleted or replaced.
    #[error("the Cluster was deleted or replaced")]
    Gone,
}
