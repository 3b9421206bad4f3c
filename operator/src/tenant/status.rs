//! What a Tenant's status says. Pure.

use k8s_openapi::jiff::Timestamp;
use yoke_api::tenant::TenantStatus;
use yoke_api::{ConditionType, Reason, Tenant};

use super::validate::Refusal;
use crate::conditions::{self, State};

/// What one reconciliation found and did.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether the spec was accepted.
    pub accepted: Result<(), Refusal>,
    /// Public key of the account, once NATS has it.
    pub account: Option<String>,
    /// The account's keys are gone.
    pub account_lost: bool,
    /// Number of Clusters.
    pub clusters: usize,
    /// What failed.
    pub failure: Option<(Reason, String)>,
}

impl Outcome {
    /// Nothing done yet, for a Tenant with this many Clusters.
    pub fn new(clusters: usize) -> Self {
        Self {
            accepted: Ok(()),
            account: None,
            account_lost: false,
            clusters,
            failure: None,
        }
    }
}

/// The status to write, and the states of its conditions.
pub fn plan_status(tenant: &Tenant, outcome: &Outcome, now: Timestamp) -> (TenantStatus, Vec<(ConditionType, State)>) {
    let before = tenant.status.clone().unwrap_or_default();
    let accepted = match &outcome.accepted {
        Ok(()) => State::yes(Reason::Valid, "The spec can be carried out."),
        Err(refusal) => State::no(refusal.reason, refusal.message.clone()),
    };
    let states = vec![
        (ConditionType::Accepted, accepted),
        (ConditionType::Ready, plan_ready(outcome)),
    ];
    let generation = tenant.metadata.generation;
    let status = TenantStatus {
        observed_generation: generation,
        account: outcome.account.clone().or(before.account),
        clusters: i32::try_from(outcome.clusters).ok(),
        conditions: conditions::build_conditions(&states, &before.conditions, generation, now),
    };
    (status, states)
}

fn plan_ready(outcome: &Outcome) -> State {
    if let Err(refusal) = &outcome.accepted {
        return State::no(refusal.reason, refusal.message.clone());
    }
    if outcome.account_lost {
        return State::no(
            Reason::AccountKeyLost,
            "The keys of the NATS account are gone; restore their Secret, or delete the Tenant.",
        );
    }
    match (&outcome.failure, &outcome.account) {
        (Some((reason, why)), _) => State::no(*reason, format!("{why}.")),
        (None, Some(_)) => State::yes(Reason::AsExpected, "Namespace, role and account are there."),
        (None, None) => State::no(
            Reason::AccountPending,
            "The namespace and the NATS account are being made.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use yoke_api::tenant::TenantSpec;

    #[test]
    fn ready_follows_what_happened() {
        let base = Outcome::new(2);
        for (rule, outcome, expected) in [
            ("nothing yet", base.clone(), Reason::AccountPending),
            (
                "account",
                Outcome {
                    account: Some("A".into()),
                    ..base.clone()
                },
                Reason::AsExpected,
            ),
            (
                "lost keys",
                Outcome {
                    account_lost: true,
                    ..base.clone()
                },
                Reason::AccountKeyLost,
            ),
            (
                "failure",
                Outcome {
                    failure: Some((Reason::StoreUnavailable, "x".into())),
                    ..base.clone()
                },
                Reason::StoreUnavailable,
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
