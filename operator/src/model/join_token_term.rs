//! Whether a JoinToken is still valid, and what it waits for. Pure.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use yoke_api::{ConditionType, JoinToken, Reason};

use crate::model::conditions;

/// Time after the last use in which that worker still needs the bootstrap token, to fetch its
/// certificate.
pub(crate) const AFTERGLOW: SignedDuration = SignedDuration::from_mins(5);

/// Delay between the end of a JoinToken and its deletion.
pub(crate) const DELETED_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// Validity of a JoinToken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// Valid.
    Holds,
    /// Expired or revoked.
    Over,
    /// Expired long enough ago to be deleted.
    Forgotten,
}

/// Returns the end of its validity.
pub(crate) fn end(token: &JoinToken) -> Option<Timestamp> {
    let created = token.creation_timestamp()?.0;
    let lifetime = SignedDuration::try_from(token.spec.lifetime()).ok()?;
    created.checked_add(lifetime).ok()
}

/// Returns its validity.
pub(crate) fn term(token: &JoinToken, now: Timestamp) -> Term {
    match end(token) {
        Some(end) if now < end && token.metadata.deletion_timestamp.is_none() => Term::Holds,
        Some(end) if now < end.saturating_add(DELETED_AFTER).unwrap_or(end) => Term::Over,
        _ => Term::Forgotten,
    }
}

/// Returns whether it waits until its Tenant may read the Secret.
pub(crate) fn awaits_role(token: &JoinToken) -> bool {
    has_reason(token, Reason::RolePending)
}

/// Returns whether it waits until its Cluster's API answers.
pub(crate) fn awaits_api(token: &JoinToken) -> bool {
    has_reason(token, Reason::ClusterNotReady)
}

pub(crate) fn has_reason(token: &JoinToken, reason: Reason) -> bool {
    let status = token.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, ConditionType::Ready));
    ready.is_some_and(|ready| ready.reason == reason.as_str())
}

/// Returns whether no more workers may join.
pub(crate) fn is_used_up(token: &JoinToken) -> bool {
    let uses = token.status.as_ref().map_or(0, |status| status.uses.len());
    uses >= usize::try_from(token.spec.max_uses).unwrap_or(0)
}

/// Returns whether a worker joined with it a moment ago.
pub(crate) fn is_just_used(token: &JoinToken, now: Timestamp) -> bool {
    let last = token.status.as_ref().and_then(|status| status.uses.last());
    last.is_some_and(|last| now.duration_since(last.time.0) <= AFTERGLOW)
}
