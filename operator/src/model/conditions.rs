//! Builds and compares conditions. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use yoke_api::{Cluster, ConditionType, Reason};

use crate::host_api::events::Notice;

/// The state of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// `True`, `False`, or `Unknown` for `None`.
    pub status: Option<bool>,
    /// Machine-readable cause.
    pub reason: Reason,
    /// A sentence for the tenant.
    pub message: String,
}

impl State {
    /// Status `True`.
    pub fn yes(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: Some(true),
            reason,
            message: message.into(),
        }
    }

    /// Status `False`.
    pub fn no(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: Some(false),
            reason,
            message: message.into(),
        }
    }

    /// Status `Unknown`.
    pub fn unknown(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: None,
            reason,
            message: message.into(),
        }
    }

    fn text(&self) -> &'static str {
        match self.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

/// Builds conditions from states. The time of the last transition comes from `before` if the status
/// is unchanged.
pub fn build_conditions(
    states: &[(ConditionType, State)],
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    states
        .iter()
        .map(|(type_, state)| {
            let old = find(before, *type_).filter(|old| old.status == state.text());
            Condition {
                type_: type_.as_str().to_owned(),
                status: state.text().to_owned(),
                reason: state.reason.as_str().to_owned(),
                message: state.message.clone(),
                observed_generation: generation,
                last_transition_time: old.map_or(Time(now), |old| old.last_transition_time.clone()),
            }
        })
        .collect()
}

/// Builds an event for each condition in `reported` whose status or reason differs from `before`.
pub fn build_notices(
    states: &[(ConditionType, State)],
    before: &[Condition],
    reported: &[ConditionType],
    action: &'static str,
) -> Vec<Notice> {
    states
        .iter()
        .filter(|(type_, _)| reported.contains(type_))
        .filter(|(type_, state)| {
            find(before, *type_).is_none_or(|old| old.status != state.text() || old.reason != state.reason.as_str())
        })
        .map(|(type_, state)| Notice {
            warning: is_bad(*type_, state),
            action,
            reason: state.reason,
            note: format!("{type_} is {}: {}", state.text(), state.message),
        })
        .collect()
}

/// Returns the condition of a type.
pub fn find(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == type_.as_str())
}

/// Returns the status of a Cluster's condition; `None` if it has none of that type.
pub fn status_of(cluster: &Cluster, type_: ConditionType) -> Option<&str> {
    let status = cluster.status.as_ref()?;
    find(&status.conditions, type_).map(|condition| condition.status.as_str())
}

/// Returns since when a condition of a Cluster is `False`; `None` if it is not.
pub fn find_lacking(cluster: &Cluster, type_: ConditionType) -> Option<Timestamp> {
    let found = find(&cluster.status.as_ref()?.conditions, type_)?;
    (found.status == "False").then_some(found.last_transition_time.0)
}

/// Returns whether the operator reconciles the spec of a Cluster, by its last status: it is not
/// paused, and it is accepted.
pub fn is_reconciled(cluster: &Cluster) -> bool {
    !cluster.spec.paused && status_of(cluster, ConditionType::Accepted) == Some("True")
}

/// Returns whether the current spec of a Cluster is known to be applied, by its last status.
pub fn is_current(cluster: &Cluster) -> bool {
    let observed = cluster.status.as_ref().and_then(|status| status.observed_generation);
    is_reconciled(cluster) && observed == cluster.metadata.generation
}

fn is_bad(type_: ConditionType, state: &State) -> bool {
    match type_ {
        ConditionType::Degraded => state.status == Some(true),
        ConditionType::Accepted => state.status != Some(true),
        _ => matches!(
            state.reason,
            Reason::ContainerFailing
                | Reason::StoreUnavailable
                | Reason::StoreLost
                | Reason::WorkerUpgradeFailed
                | Reason::ReconcileFailed
                | Reason::WakeDelayed
                | Reason::MachineLost
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_follows_only_the_status() {
        let ready = |state| vec![(ConditionType::Ready, state)];
        let first = build_conditions(&ready(State::no(Reason::PodPending, "a")), &[], Some(1), at(1));
        let second = build_conditions(
            &ready(State::no(Reason::APIServerNotReady, "b")),
            &first,
            Some(2),
            at(2),
        );
        assert_eq!(second[0].last_transition_time, Time(at(1)));
        assert_eq!(
            (second[0].message.as_str(), second[0].observed_generation),
            ("b", Some(2))
        );
        let third = build_conditions(&ready(State::yes(Reason::AsExpected, "c")), &second, Some(2), at(3));
        assert_eq!(third[0].last_transition_time, Time(at(3)));
    }

    #[test]
    fn a_change_is_one_event() {
        let states = vec![
            (
                ConditionType::Accepted,
                State::no(Reason::UnknownVersion, "v9 is not offered."),
            ),
            (ConditionType::Ready, State::no(Reason::PodPending, "x")),
        ];
        let notices = build_notices(&states, &[], &[ConditionType::Accepted], "Validate");
        assert_eq!(notices.len(), 1);
        assert!(notices[0].warning);
        assert_eq!(notices[0].note, "Accepted is False: v9 is not offered.");
        let before = build_conditions(&states, &[], None, at(1));
        assert!(build_notices(&states, &before, &[ConditionType::Accepted], "Validate").is_empty());
    }
}
