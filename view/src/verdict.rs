//! Decides what the status of a Cluster, Tenant or JoinToken means for a caller that waits for it.
//! Pure.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use yoke_api::cluster::DesiredState;
use yoke_api::{Cluster, ConditionType, JoinToken, Reason, Tenant, labels};

use crate::render::{conditions, find};

/// The operator's refusal of an object, from a condition. The text completes the sentence "the
/// object is …".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
}

impl Refusal {
    fn of(condition: &Condition) -> Self {
        Self {
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }
    }

    /// Returns whether the refusal may disappear without a user's action. The Tenant of a Cluster,
    /// or the Cluster of a JoinToken, may have been created only a moment ago.
    pub fn may_pass(&self) -> bool {
        [Reason::TenantMissing, Reason::ClusterMissing]
            .map(Reason::as_str)
            .contains(&self.reason.as_str())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused ({}): {}", self.reason, self.message)
    }
}

/// The result of a wait so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The object has the desired state.
    Done,
    /// The object will not reach the desired state.
    Refused(Refusal),
    /// The object may still reach the desired state. The text says what is pending.
    Waiting(Option<String>),
}

/// A state of a Cluster in which no worker can join until a user changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The Cluster is asleep, and a JoinToken does not wake it.
    Asleep,
    /// The spec is refused, and no control plane runs.
    Refused(Refusal),
}

/// Judges a Cluster by its desired state.
pub fn judge(cluster: &Cluster) -> Verdict {
    let done = match cluster.spec.state {
        DesiredState::Running => ConditionType::Ready,
        DesiredState::Asleep => ConditionType::Asleep,
    };
    let status = cluster.status.as_ref();
    judge_conditions(
        conditions(cluster),
        status.and_then(|status| status.observed_generation) >= cluster.metadata.generation,
        done,
    )
}

/// Returns whether no control plane runs on purpose: because of the spec, an annotation, inactivity
/// or a schedule.
pub fn is_asleep(cluster: &Cluster) -> bool {
    let status = cluster.status.as_ref();
    let asleep = status.and_then(|status| find(&status.conditions, ConditionType::Asleep));
    asleep.is_some_and(|asleep| asleep.status == "True")
}

/// Returns whether the Cluster stays asleep, or goes to sleep, until a user wakes it. A Cluster
/// that is waking does not.
pub fn stays_asleep(cluster: &Cluster) -> bool {
    let words = cluster.metadata.annotations.as_ref();
    let word = words.and_then(|words| words.get(labels::SLEEP)).map(String::as_str);
    let activity = cluster.status.as_ref().and_then(|status| status.activity.as_ref());
    let is_asked_to = match word {
        Some(labels::SLEEP_NOW) => true,
        Some(labels::SLEEP_END) => false,
        _ => activity.is_some_and(|activity| activity.asleep_since().is_some()),
    };
    cluster.spec.state == DesiredState::Asleep || is_asked_to
}

/// Returns the reason why no worker can join this Cluster, with any JoinToken.
pub fn find_obstacle(cluster: &Cluster) -> Option<Obstacle> {
    if stays_asleep(cluster) {
        return Some(Obstacle::Asleep);
    }
    let status = cluster.status.as_ref();
    let available = status.and_then(|status| find(&status.conditions, ConditionType::APIServerAvailable));
    match judge(cluster) {
        // A control plane that already runs keeps serving when a later spec is refused.
        Verdict::Refused(refusal)
            if !refusal.may_pass() && available.is_none_or(|available| available.status != "True") =>
        {
            Some(Obstacle::Refused(refusal))
        }
        _ => None,
    }
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

/// Judges a JoinToken. Its spec is immutable, so the generation does not matter.
pub fn judge_join_token(token: &JoinToken) -> Verdict {
    let status = token.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let over = [
        Reason::ClusterMissing,
        Reason::Expired,
        Reason::UsedUp,
        Reason::QuotaExceeded,
        Reason::ClusterReplaced,
        Reason::SecretConflict,
    ]
    .map(Reason::as_str);
    match find(conditions, ConditionType::Ready) {
        Some(ready) if ready.status != "True" && over.contains(&ready.reason.as_str()) => {
            Verdict::Refused(Refusal::of(ready))
        }
        _ => judge_conditions(conditions, true, ConditionType::Ready),
    }
}

/// Judges only by conditions of the current generation; conditions of an older spec say nothing
/// about this one.
fn judge_conditions(conditions: &[Condition], is_current: bool, done: ConditionType) -> Verdict {
    if !is_current {
        return Verdict::Waiting(None);
    }
    let is = |wanted, state: &str| find(conditions, wanted).filter(|condition| condition.status == state);
    if let Some(accepted) = is(ConditionType::Accepted, "False") {
        return Verdict::Refused(Refusal::of(accepted));
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

    fn refusal(reason: &str, message: &str) -> Refusal {
        Refusal {
            reason: reason.into(),
            message: message.into(),
        }
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
    fn finished_join_token_ends_the_wait() {
        let token = |status: &str, reason: &str| {
            let ready = condition("Ready", status, "m").replace("reason: R", &format!("reason: {reason}"));
            let text = format!(
                "{{apiVersion: yoke.drzzl.io/v1alpha1, kind: JoinToken, metadata: {{name: j}}, spec: {{clusterName: a}}, \
                 status: {{conditions: [{ready}]}}}}"
            );
            judge_join_token(&serde_saphyr::from_str(&text).unwrap())
        };
        let refused = |reason: &str| Verdict::Refused(refusal(reason, "m"));
        for (status, reason, expected) in [
            ("True", "AsExpected", Verdict::Done),
            ("False", "ClusterNotReady", Verdict::Waiting(Some("m".into()))),
            ("False", "ClusterMissing", refused("ClusterMissing")),
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
    fn missing_owners_are_transient_refusals() {
        for (reason, expected) in [
            ("TenantMissing", true),
            ("ClusterMissing", true),
            ("ClusterReplaced", false),
            ("QuotaExceeded", false),
        ] {
            assert_eq!(refusal(reason, "").may_pass(), expected, "{reason}");
        }
    }

    #[test]
    fn asleep_or_refused_clusters_cannot_be_joined() {
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let cluster = |word: &str, sleep: &str, wake: &str, state: &str, conditions: &str| -> Cluster {
            let text = format!(
                "{{apiVersion: yoke.drzzl.io/v1alpha1, kind: Cluster, metadata: {{name: a, generation: 2, \
                 annotations: {{yoke.drzzl.io/sleep: '{word}'}}}}, spec: {{state: {state}}}, status: {{observedGeneration: 2, \
                 activity: {{sleepRequestedTime: '{sleep}', wakeRequestedTime: '{wake}'}}, conditions: [{conditions}]}}}}"
            );
            serde_saphyr::from_str(&text).unwrap()
        };
        let asleep = condition("Asleep", "True", "");
        let refused = condition("Accepted", "False", "no");
        let early_refused = refused.replace("reason: R", "reason: TenantMissing");
        let serves = format!("{refused}, {}", condition("APIServerAvailable", "True", ""));
        let away = format!("{refused}, {}", condition("APIServerAvailable", "False", ""));
        let no = || Some(Obstacle::Refused(refusal("R", "no")));
        let sleeps = || Some(Obstacle::Asleep);
        for (rule, cluster, expected) in [
            ("it runs", cluster("", early, late, "Running", ""), None),
            ("its owner's word", cluster("", early, late, "Asleep", ""), sleeps()),
            (
                "that ends with it alone",
                cluster("end", early, late, "Asleep", ""),
                sleeps(),
            ),
            ("asked to", cluster("", late, early, "Running", ""), sleeps()),
            ("not taken up yet", cluster("now", early, late, "Running", ""), sleeps()),
            ("woken", cluster("end", late, early, "Running", &asleep), None),
            ("on its way", cluster("", early, late, "Running", &asleep), None),
            ("refused", cluster("", early, late, "Running", &refused), no()),
            ("refused, and down", cluster("", early, late, "Running", &away), no()),
            ("refused, and up", cluster("", early, late, "Running", &serves), None),
            ("new", cluster("", early, late, "Running", &early_refused), None),
        ] {
            assert_eq!(find_obstacle(&cluster), expected, "{rule}");
        }
        assert_eq!(find_obstacle(&Cluster::new("a", Default::default())), None, "just made");
    }

    #[test]
    fn verdict_follows_conditions_of_this_generation() {
        let waiting = |message: &str| Verdict::Waiting(Some(message.to_owned()));
        let refused = Verdict::Refused(refusal("R", "no"));
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
