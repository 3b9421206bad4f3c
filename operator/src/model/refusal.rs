//! Why a spec is refused. Pure.

use yoke_api::Reason;

/// Why a spec is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason of the condition.
    pub reason: Reason,
    /// A sentence for the tenant.
    pub message: String,
}
