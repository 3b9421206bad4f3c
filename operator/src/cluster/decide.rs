//! The fourth step of a reconcile: decides what it does with a Cluster. Pure.
//!
//! ```text
//!                     spec accepted   spec refused    spec.paused
//!  no control plane   Apply           Idle            Idle
//!  control plane      Apply           Maintain        CopyOnly
//! ```

use std::sync::Arc;

use crate::cluster::observe::View;
use crate::cluster::requests::Request;
use crate::cluster::validate::Accepted;
use crate::cluster::verdict::Verdict;
use crate::error::ReconcileError;
use crate::model::refusal::Refusal;

/// The action of a reconcile on a Cluster. A Cluster that is being deleted takes another path
/// (`lifecycle::delete`).
#[derive(Debug)]
pub(crate) enum Action<'c> {
    /// Delete the Cluster: its lifetime is over.
    Expire,
    /// Apply nothing, and report the error: whether the spec can be applied is not known.
    Fail(Arc<ReconcileError>),
    /// Apply the spec. A Cluster that sleeps keeps everything but its pods.
    Apply(Box<Accepted<'c>>),
    /// Keep the control plane of an earlier spec going, as the spec is refused.
    Maintain(Refusal),
    /// Only copy issued certificates to the control plane, as the Cluster is paused.
    CopyOnly(Result<(), Refusal>),
    /// Apply nothing: no control plane exists, and the spec is refused or paused. Host names that the
    /// Cluster may no longer have are still revoked.
    Idle(Result<(), Refusal>),
}

/// Decides what to do with a Cluster.
pub(crate) fn decide<'c>(view: &View<'_>, verdict: Verdict<'c>, requests: &[Request]) -> Action<'c> {
    let is_expired = requests.contains(&Request::Expire);
    plan_action(
        verdict,
        is_expired,
        view.cluster.spec.paused,
        view.observed.has_control_plane(),
    )
}

/// `has_control_plane`: whether the Cluster has a control plane.
fn plan_action(verdict: Verdict<'_>, is_expired: bool, is_paused: bool, has_control_plane: bool) -> Action<'_> {
    match verdict {
        _ if is_expired => Action::Expire,
        Verdict::Unknown(error) => Action::Fail(error),
        Verdict::Refused(refusal) if is_paused && has_control_plane => Action::CopyOnly(Err(refusal)),
        Verdict::Accepted(_) if is_paused && has_control_plane => Action::CopyOnly(Ok(())),
        Verdict::Refused(refusal) if has_control_plane => Action::Maintain(refusal),
        Verdict::Refused(refusal) => Action::Idle(Err(refusal)),
        Verdict::Accepted(_) if is_paused => Action::Idle(Ok(())),
        Verdict::Accepted(accepted) => Action::Apply(accepted),
    }
}

impl Action<'_> {
    /// Why the spec is refused, if it is.
    pub(crate) const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Maintain(refusal) | Self::CopyOnly(Err(refusal)) | Self::Idle(Err(refusal)) => Some(refusal),
            Self::Expire | Self::Fail(_) | Self::Apply(_) | Self::CopyOnly(Ok(())) | Self::Idle(Ok(())) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use yoke_api::Reason;

    use super::*;
    use crate::cluster::validate::validate;
    use crate::fixtures::{around, cluster, config, identity, tenant};

    #[test]
    fn one_action_follows_from_verdict_pause_and_control_plane() {
        let (config, tenant, cluster) = (config(), tenant(), cluster("a"));
        let accepted = validate(&cluster, &identity(&cluster), &around(&config, &tenant, &[])).unwrap();
        let refusal = Refusal {
            reason: Reason::QuotaExceeded,
            message: "x".into(),
        };
        let verdicts = [
            Verdict::Accepted(Box::new(accepted)),
            Verdict::Refused(refusal),
            Verdict::Unknown(Arc::new(ReconcileError::Foreign("x".into()))),
        ];
        for (is_expired, is_paused, has_control_plane, expected) in [
            (false, false, false, ["Apply", "Idle(Err", "Fail"]),
            (false, false, true, ["Apply", "Maintain", "Fail"]),
            (false, true, false, ["Idle(Ok", "Idle(Err", "Fail"]),
            (false, true, true, ["CopyOnly(Ok", "CopyOnly(Err", "Fail"]),
            (true, false, true, ["Expire", "Expire", "Expire"]),
        ] {
            for (verdict, expected) in verdicts.iter().zip(expected) {
                let verdict = match verdict {
                    Verdict::Accepted(accepted) => Verdict::Accepted(accepted.clone()),
                    Verdict::Refused(refusal) => Verdict::Refused(refusal.clone()),
                    Verdict::Unknown(error) => Verdict::Unknown(Arc::clone(error)),
                };
                let action = format!("{:?}", plan_action(verdict, is_expired, is_paused, has_control_plane));
                assert!(
                    action.starts_with(expected),
                    "{action}: {is_expired} {is_paused} {has_control_plane}"
                );
            }
        }
    }
}
