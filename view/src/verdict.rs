//! What the status of a Cluster, Tenant or JoinToken says to somebody who waits for it. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use yoke_api::cluster::DesiredState;
use yoke_api::{Cluster, ConditionType, JoinToken, Reason, Tenant};

use crate::render::find;

/// What somebody who waits may make of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is as asked for.
    Done,
    /// It will not become so.
    Refused {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
    /// It may yet, and this is what it waits for.
    Waiting(Option<String>),
}

/// Whether a refusal may pass without anybody's doing: the Tenant of a Cluster may have been made a moment ago.
pub fn may_pass(reason: &str) -> bool {
    reason == Reason::TenantMissing.as_str()
}

/// Judges a Cluster.
pub fn judge(cluster: &Cluster) -> Verdict {
    let done = match cluster.spec.state {
        DesiredState::Running => ConditionType::Ready,
        DesiredState::Asleep => ConditionType::Asleep,
    };
    let status = cluster.status.as_ref();
    judge_conditions(
        status.map(|status| status.conditions.as_slice()).unwrap_or_default(),
        status.and_then(|status| status.observed_generation) >= cluster.metadata.generation,
        done,
    )
}

/// Whether no control plane runs, as asked for, be it by the spec or otherwise.
pub fn is_asleep(cluster: &Cluster) -> bool {
    let status = cluster.status.as_ref();
    let asleep = status.and_then(|status| find(&status.conditions, ConditionType::Asleep));
    asleep.is_some_and(|asleep| asleep.status == "True")
}

/// Judges a Tenant.
pub fn judge_tenant(tenant: &Tenant) -> Verdict {
    let status = tenant.status.as_ref();
    judge_conditions(
        status.map(|status| status.conditions.as_slice()).unwrap_or_default(),
        status.and_then(|status| status.observed_generation) >= tenant.metadata.generation,
        ConditionType::Ready,
    )
}

/// Judges a JoinToken, whose spec never changes.
pub fn judge_join_token(token: &JoinToken) -> Verdict {
    let status = token.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let over = [
        Reason::Expired,
        Reason::UsedUp,
        Reason::QuotaExceeded,
        Reason::ClusterReplaced,
        Reason::SecretConflict,
    ]
    .map(Reason::as_str);
    match find(conditions, ConditionType::Ready) {
        Some(ready) if ready.status != "True" && over.contains(&ready.reason.as_str()) => Verdict::Refused {
            reason: ready.reason.clone(),
            message: ready.message.clone(),
        },
        _ => judge_conditions(conditions, true, ConditionType::Ready),
    }
}

/// Judges by conditions of the present generation only: those of an older spec say nothing.
fn judge_conditions(conditions: &[Condition], is_current: bool, done: ConditionType) -> Verdict {
    if !is_current {
        return Verdict::Waiting(None);
    }
    let is = |wanted, state: &str| find(conditions, wanted).filter(|condition| condition.status == state);
    if let Some(accepted) = is(ConditionType::Accepted, "False") {
        return Verdict::Refused {
            reason: accepted.reason.clone(),
            message: accepted.message.clone(),
        };
    }
    if is(done, "True").is_some() {
        return Verdict::Done;
    }
    let telling = is(ConditionType::Progressing, "True").or_else(|| find(conditions, done));
    Verdict::Waiting(
        telling
            .map(|condition| condition.message.clone())
            .filter(|message| !message.is_empty()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(state: &str, observed: i64, conditions: &str) -> Cluster {
        let text = format!(
            "{{apiVersion: yoke.drzzl.io/v1alpha1, kind: Cluster, metadata: {{name: a, generation: 2}}, spec: {{state: {state}}}, \
             status: {{observedGeneration: {observed}, conditions: [{conditions}]}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    fn condition(name: &str, status: &str, message: &str) -> String {
        format!(
            "{{type: {name}, status: '{status}', reason: R, message: '{message}', lastTransitionTime: '2026-01-01T00:00:00Z'}}"
        )
    }

    #[test]
    fn tenant_is_judged_by_its_generation_too() {
        let tenant = |observed: i64| {
            let ready = condition("Ready", "True", "ok");
            let text = format!(
                "{{apiVersion: yoke.drzzl.io/v1alpha1, kind: Tenant, metadata: {{name: t, generation: 2}}, spec: {{}}, \
                 status: {{observedGeneration: {observed}, conditions: [{ready}]}}}}"
            );
            judge_tenant(&serde_saphyr::from_str(&text).unwrap())
        };
        assert_eq!(tenant(2), Verdict::Done);
        assert_eq!(tenant(1), Verdict::Waiting(None));
        assert_eq!(
            judge_tenant(&Tenant::new("t", Default::default())),
            Verdict::Waiting(None)
        );
    }

    #[test]
    fn a_join_token_that_is_over_is_not_waited_for() {
        let token = |status: &str, reason: &str| {
            let ready = condition("Ready", status, "m").replace("reason: R", &format!("reason: {reason}"));
            let text = format!(
                "{{apiVersion: yoke.drzzl.io/v1alpha1, kind: JoinToken, metadata: {{name: j}}, spec: {{clusterName: a}}, \
                 status: {{conditions: [{ready}]}}}}"
            );
            judge_join_token(&serde_saphyr::from_str(&text).unwrap())
        };
        let refused = |reason: &str| Verdict::Refused {
            reason: reason.into(),
            message: "m".into(),
        };
        for (status, reason, expected) in [
            ("True", "AsExpected", Verdict::Done),
            ("False", "ClusterNotReady", Verdict::Waiting(Some("m".into()))),
            ("False", "ClusterMissing", Verdict::Waiting(Some("m".into()))),
            ("False", "QuotaExceeded", refused("QuotaExceeded")),
            ("False", "Expired", refused("Expired")),
            ("False", "UsedUp", refused("UsedUp")),
            ("False", "ClusterReplaced", refused("ClusterReplaced")),
            ("False", "SecretConflict", refused("SecretConflict")),
        ] {
            assert_eq!(token(status, reason), expected, "{status} {reason}");
        }
    }

    #[test]
    fn verdict_follows_conditions_of_this_generation() {
        let waiting = |message: &str| Verdict::Waiting(Some(message.to_owned()));
        let refused = Verdict::Refused {
            reason: "R".into(),
            message: "no".into(),
        };
        let (ready, not_ready) = (
            condition("Ready", "True", "ok"),
            condition("Ready", "False", "starting"),
        );
        let progressing = condition("Progressing", "True", "certificates");
        for (rule, cluster, verdict) in [
            ("ready", cluster("Running", 2, &ready), Verdict::Done),
            ("older spec", cluster("Running", 1, &ready), Verdict::Waiting(None)),
            (
                "refused",
                cluster("Running", 2, &condition("Accepted", "False", "no")),
                refused,
            ),
            ("not ready", cluster("Running", 2, &not_ready), waiting("starting")),
            (
                "progress tells more",
                cluster("Running", 2, &format!("{not_ready}, {progressing}")),
                waiting("certificates"),
            ),
            ("nothing yet", cluster("Running", 2, ""), Verdict::Waiting(None)),
            (
                "awake, to be asleep",
                cluster("Asleep", 2, &ready),
                Verdict::Waiting(None),
            ),
            (
                "asleep",
                cluster("Asleep", 2, &condition("Asleep", "True", "")),
                Verdict::Done,
            ),
        ] {
            assert_eq!(judge(&cluster), verdict, "{rule}");
        }
    }
}
