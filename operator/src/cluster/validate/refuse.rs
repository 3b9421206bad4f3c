//! Builds refusals.

use yoke_api::Reason;

use crate::model::refusal::Refusal;

/// Refuses a spec.
pub(super) fn refuse<T>(reason: Reason, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        reason,
        message: message.into(),
    })
}
