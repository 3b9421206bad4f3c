//! Plans a Tenant's status. Pure.

use k8s_openapi::jiff::Timestamp;
use yoke_api::tenant::TenantStatus;
use yoke_api::{ConditionType, Reason, Tenant};

use crate::model::conditions::{self, State};
use crate::tenant::validate::Refusal;

/// Result of one reconciliation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether the spec was accepted.
    pub accepted: Result<(), Refusal>,
    /// Whether the namespace and the binding of the subjects exist.
    pub is_bound: bool,
    /// Quota of deleted Clusters with retained data, in bytes.
    pub retained: i64,
    /// Number of Clusters.
    pub clusters: usize,
    /// Failure of the reconciliation, if any.
    pub failure: Option<(Reason, String)>,
}

impl Outcome {
    /// Initial state, for a Tenant with this many Clusters.
    pub fn new(clusters: usize) -> Self {
        Self {
            accepted: Ok(()),
            is_bound: false,
            retained: 0,
            clusters,
            failure: None,
        }
    }
}

/// Returns the status to write, and the states of its conditions.
pub fn plan_status(tenant: &Tenant, outcome: &Outcome, now: Timestamp) -> (TenantStatus, Vec<(ConditionType, State)>) {
    let before = tenant.status.clone().unwrap_or_default();
    let accepted = match &outcome.accepted {
        Ok(()) => State::yes(Reason::Valid, "The spec is valid."),
        Err(refusal) => State::no(refusal.reason, refusal.message.clone()),
    };
    let states = vec![
        (ConditionType::Accepted, accepted),
        (ConditionType::Ready, plan_ready(outcome)),
    ];
    let generation = tenant.metadata.generation;
    let status = TenantStatus {
        observed_generation: generation,
        retained_storage: (outcome.retained > 0).then_some(outcome.retained),
        clusters: i32::try_from(outcome.clusters).ok(),
        conditions: conditions::build_conditions(&states, &before.conditions, generation, now),
    };
    (status, states)
}

fn plan_ready(outcome: &Outcome) -> State {
    if let Err(refusal) = &outcome.accepted {
        return State::no(refusal.reason, refusal.message.clone());
    }
    match &outcome.failure {
        Some((reason, why)) => State::no(*reason, format!("{why}.")),
        None if outcome.is_bound => State::yes(Reason::AsExpected, "The namespace and the Role exist."),
        None => State::no(Reason::NamespacePending, "The namespace is being created."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use yoke_api::tenant::TenantSpec;

    #[test]
    fn ready_follows_the_outcome() {
        let base = Outcome::new(2);
        for (rule, outcome, expected) in [
            ("nothing yet", base.clone(), Reason::NamespacePending),
            (
                "namespace",
                Outcome {
                    is_bound: true,
                    ..base.clone()
                },
                Reason::AsExpected,
            ),
            (
                "failure",
                Outcome {
                    failure: Some((Reason::ReconcileFailed, "x".into())),
                    ..base.clone()
                },
                Reason::ReconcileFailed,
            ),
        ] {
            let (status, _) = plan_status(
                &Tenant::new("t", TenantSpec::default()),
                &outcome,
                Timestamp::UNIX_EPOCH,
            );
            let ready = conditions::find(&status.conditions, ConditionType::Ready).unwrap();
            assert_eq!(ready.reason, expected.as_str(), "{rule}");
            assert_eq!(status.clusters, Some(2));
        }
    }
}
