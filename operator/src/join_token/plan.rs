//! Decides the next state of a JoinToken, and when to reconcile it again. Pure.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use yoke_api::{ClusterId, JoinToken};

use crate::model::join_token_term::{AFTERGLOW, DELETED_AFTER, Term};
use crate::model::join_token_term::{end, is_just_used, is_used_up, term};
use crate::model::tenant_namespace::TENANT_MAX;

/// Maximum number of valid JoinTokens of a Cluster.
pub(crate) const CLUSTER_MAX: usize = 16;
/// Requeue delay if too many other JoinTokens of the Tenant are in progress.
pub(crate) const BUSY: Duration = Duration::from_secs(2);
/// Minimum and maximum requeue delay while a precondition is missing.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Returns whether it was for a Cluster with another identity, even if that had the same name.
pub(crate) fn is_of_another(token: &JoinToken, cluster: &ClusterId) -> bool {
    let first = token.status.as_ref().and_then(|status| status.cluster_id.as_deref());
    first.is_some_and(|first| first != cluster.as_str())
}

/// Returns whether it is used up and its bootstrap token is no longer needed.
pub(crate) fn is_spent(token: &JoinToken, now: Timestamp) -> bool {
    is_used_up(token) && !is_just_used(token, now)
}

/// Returns whether a bootstrap token was generated for it.
pub(crate) fn is_served(token: &JoinToken) -> bool {
    token.status.as_ref().is_some_and(|status| status.token_id.is_some())
}

/// Returns whether it must wait because of too many older JoinTokens that are valid and not used
/// up.
pub(crate) fn exceeds_limit(token: &JoinToken, all: &[Arc<JoinToken>], now: Timestamp) -> bool {
    let age = |token: &JoinToken| (token.creation_timestamp().map(|created| created.0), token.name_any());
    let older = || {
        let others = all
            .iter()
            .filter(|other| other.metadata.namespace == token.metadata.namespace);
        others.filter(|other| term(other, now) == Term::Holds && !is_spent(other, now) && age(other) < age(token))
    };
    let same = older().filter(|other| other.spec.cluster_name == token.spec.cluster_name);
    older().count() >= TENANT_MAX || same.count() >= CLUSTER_MAX
}

/// Returns the requeue delay while a precondition is missing. It grows with the age of the
/// JoinToken.
pub(crate) fn plan_wait(token: &JoinToken, now: Timestamp) -> Duration {
    let created = token.creation_timestamp().map_or(now, |created| created.0);
    let age = Duration::try_from(now.duration_since(created)).unwrap_or_default();
    until_end(token, now).min((age / 4).clamp(DELAYS.0, DELAYS.1))
}

/// Returns the time until the end of its validity, or until its deletion; never zero.
pub(crate) fn until_end(token: &JoinToken, now: Timestamp) -> Duration {
    let next = end(token).map(|end| {
        if now < end {
            end
        } else {
            end.saturating_add(DELETED_AFTER).unwrap_or(end)
        }
    });
    let remaining = next.map(|next| next.duration_since(now));
    let remaining = remaining.and_then(|remaining| Duration::try_from(remaining).ok());
    remaining.unwrap_or_default() + DELAYS.0
}

/// Returns the time until the bootstrap token of a used-up JoinToken can be deleted.
pub(crate) fn until_spent(token: &JoinToken, now: Timestamp) -> Duration {
    let afterglow = Duration::try_from(AFTERGLOW).unwrap_or_default();
    until_end(token, now).min(afterglow + DELAYS.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(name: &str, cluster: &str, second: i64) -> JoinToken {
        let created = Timestamp::from_second(second).unwrap();
        serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
            "metadata": {"name": name, "namespace": "t", "creationTimestamp": created},
            "spec": {"clusterName": cluster, "ttl": "10m"}}))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_token_is_valid_for_its_ttl_and_deleted_an_hour_later() {
        let token = token("j", "a", 1000);
        for (second, expected) in [
            (1000, Term::Holds),
            (1599, Term::Holds),
            (1600, Term::Over),
            (1600 + 3599, Term::Over),
            (1600 + 3600, Term::Forgotten),
        ] {
            assert_eq!(term(&token, at(second)), expected, "{second}");
        }
        for (second, seconds) in [(1000, 601), (1599, 2), (1600, 3601), (9000, 1)] {
            assert_eq!(until_end(&token, at(second)), Duration::from_secs(seconds), "{second}");
        }
    }

    #[test]
    fn the_delay_for_a_precondition_grows() {
        let token = token("j", "a", 1000);
        for (second, seconds) in [(1000, 1), (1040, 10), (1300, 60), (1598, 3), (900, 1)] {
            assert_eq!(plan_wait(&token, at(second)), Duration::from_secs(seconds), "{second}");
        }
    }

    #[test]
    fn the_newest_tokens_wait_above_the_limit() {
        let all = |count: usize, cluster: &dyn Fn(usize) -> String| -> Vec<_> {
            let each = |number: usize| Arc::new(token(&format!("j{number:03}"), &cluster(number), 1000));
            (0..count).map(each).collect()
        };
        let now = at(1001);
        let same = all(CLUSTER_MAX + 1, &|_| "a".into());
        assert!(!exceeds_limit(&same[CLUSTER_MAX - 1], &same, now));
        assert!(exceeds_limit(&same[CLUSTER_MAX], &same, now));
        assert!(
            !exceeds_limit(&same[CLUSTER_MAX], &same, at(1600)),
            "the other tokens have expired"
        );
        let many = all(TENANT_MAX + 1, &|number| format!("c{number}"));
        assert!(!exceeds_limit(&many[TENANT_MAX - 1], &many, now));
        assert!(exceeds_limit(&many[TENANT_MAX], &many, now));
        let uses = json!({"uses": [{"request": "r", "node": "n", "time": "1970-01-01T00:16:40Z"}]});
        let mut spent = same.clone();
        let mut first = (*spent[0]).clone();
        first.status = serde_json::from_value(uses).unwrap();
        spent[0] = Arc::new(first);
        assert!(
            exceeds_limit(&spent[CLUSTER_MAX], &spent, at(1300)),
            "a token that is used up still counts"
        );
        assert!(
            !exceeds_limit(&spent[CLUSTER_MAX], &spent, at(1301)),
            "a spent token counts"
        );
        let mut elsewhere = token("k", "a", 2000);
        elsewhere.metadata.namespace = Some("u".into());
        assert!(!exceeds_limit(&elsewhere, &same, now), "a token of another Tenant");
    }

    #[test]
    fn a_used_up_token_is_spent_after_a_delay() {
        let mut token = token("j", "a", 1000);
        assert!(!is_used_up(&token));
        let uses = json!({"uses": [{"request": "r", "node": "n", "time": "1970-01-01T00:20:00Z"}]});
        token.status = serde_json::from_value(uses).unwrap();
        assert!(is_used_up(&token));
        assert!(!is_spent(&token, at(1200 + 300)));
        assert!(is_spent(&token, at(1200 + 301)));
    }
}
