//! Counts the uses of a JoinToken in its status, before anything is signed.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use yoke_api::join_token::Use;
use yoke_api::{JoinToken, Lenient};

use crate::csr_signer::context::{CONTROLLER, Context};
use crate::csr_signer::refusal::Refusal;
use crate::error::ReconcileError;
use crate::model::identity::Identity;
use crate::model::join_token_term::{self, Term};

/// Attempts in a row if others write at the same time.
const ATTEMPTS: usize = 5;

/// A joining node and its bootstrap token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joiner<'a> {
    /// Cluster that it joins.
    pub(crate) identity: &'a Identity,
    /// Public part of the bootstrap token.
    pub(crate) token_id: &'a str,
    /// Name of the Node.
    pub(crate) node: &'a str,
    /// UID of the request.
    pub(crate) request: &'a str,
    /// When the request was first seen.
    pub(crate) requested_at: Timestamp,
}

/// Returns the JoinToken with this bootstrap token, from the cache, or why it is not valid. `None`
/// if the cache may not have it yet.
pub(crate) fn find(context: &Context, joiner: &Joiner<'_>) -> Option<Result<Arc<JoinToken>, Refusal>> {
    let known = context
        .host
        .caches
        .join_tokens
        .state_filter(|token| is_named(token, joiner.identity, joiner.token_id));
    let known = known.into_iter().next()?;
    Some(plan_use(&known, joiner, Timestamp::now()).map(|_| known))
}

/// Records a use of a JoinToken, if that is allowed. A repeated request counts once.
pub(crate) async fn count(
    context: &Context,
    joiner: &Joiner<'_>,
    known: &JoinToken,
) -> Result<Result<(), Refusal>, ReconcileError> {
    let Joiner { identity, token_id, .. } = *joiner;
    let is_named = |token: &JoinToken| is_named(token, identity, token_id);
    let api = Api::<Lenient<JoinToken>>::namespaced(context.host.client.clone(), &identity.tenant);
    let params = PatchParams {
        field_manager: Some(format!("yoke-operator/{CONTROLLER}")),
        ..PatchParams::default()
    };
    for _ in 0..ATTEMPTS {
        let found = api.get_opt(&known.name_any()).await;
        let found = found.and_then(|found| found.map(Lenient::into_object).transpose());
        let found = found.map_err(ReconcileError::host("a JoinToken"))?;
        let Some(found) = found.filter(|found| found.uid() == known.uid() && is_named(found)) else {
            return Ok(Err(Refusal::TokenUnknown));
        };
        let uses = match plan_use(&found, joiner, Timestamp::now()) {
            Ok(Some(uses)) => uses,
            Ok(None) => return Ok(Ok(())),
            Err(refusal) => return Ok(Err(refusal)),
        };
        // The resource version makes the patch fail after a concurrent write.
        let patch = json!({"metadata": {"uid": found.uid(), "resourceVersion": found.resource_version()},
            "status": {"uses": uses}});
        match api.patch_status(&found.name_any(), &params, &Patch::Merge(patch)).await {
            Ok(_) => return Ok(Ok(())),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Err(Refusal::TokenUnknown)),
            Err(error) => return Err(ReconcileError::host("the uses of a JoinToken")(error)),
        }
    }
    Err(ReconcileError::Contended("the uses of a JoinToken"))
}

/// Returns the taints that a Node got from its JoinToken, if that is still known. With several
/// JoinTokens, the last one that a node with this name joined with counts.
pub(crate) fn find_taints(context: &Context, identity: &Identity, node: &str) -> Option<String> {
    let tokens = context
        .host
        .caches
        .join_tokens
        .state_filter(|token| is_of(token, identity));
    plan_taints(&tokens, node)
}

fn plan_taints(tokens: &[Arc<JoinToken>], node: &str) -> Option<String> {
    let joined = |token: &JoinToken| {
        let uses = token.status.iter().flat_map(|status| &status.uses);
        uses.filter(|each| each.node == node).map(|each| each.time.0).max()
    };
    let last = tokens.iter().filter_map(|token| Some((joined(token)?, token)));
    let (_, token) = last.max_by_key(|(time, _)| *time)?;
    let taints: Vec<_> = token.spec.taints.iter().map(ToString::to_string).collect();
    (!taints.is_empty()).then(|| taints.join(","))
}

/// Returns whether a JoinToken has this bootstrap token and belongs to this Cluster.
fn is_named(token: &JoinToken, identity: &Identity, token_id: &str) -> bool {
    let status = token.status.as_ref();
    is_of(token, identity) && status.and_then(|status| status.token_id.as_deref()) == Some(token_id)
}

/// Returns whether a JoinToken belongs to this Cluster, by its identity.
fn is_of(token: &JoinToken, identity: &Identity) -> bool {
    let status = token.status.as_ref();
    token.metadata.namespace.as_ref() == Some(&identity.tenant)
        && token.spec.cluster_name == identity.cluster
        && status.and_then(|status| status.cluster_id.as_deref()) == Some(identity.id.as_str())
}

/// Returns the uses of a JoinToken with one more; `None` if this request is already counted. The
/// JoinToken must have been valid when the request arrived: a request is not refused because it
/// waited behind others.
fn plan_use(token: &JoinToken, joiner: &Joiner<'_>, now: Timestamp) -> Result<Option<Vec<Use>>, Refusal> {
    // Revocation has effect immediately, also for requests that arrived earlier.
    if join_token_term::term(token, joiner.requested_at) != Term::Holds {
        return Err(Refusal::TokenUnknown);
    }
    let mut uses = token.status.clone().unwrap_or_default().uses;
    if uses.iter().any(|each| each.request == joiner.request) {
        return Ok(None);
    }
    if uses.len() >= usize::try_from(token.spec.max_uses).unwrap_or(0) {
        return Err(Refusal::TokenUsedUp);
    }
    uses.push(Use {
        request: joiner.request.to_owned(),
        node: joiner.node.to_owned(),
        time: Time(now),
    });
    Ok(Some(uses))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    fn identity(id: &str) -> Identity {
        let value = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "a", "namespace": "t", "uid": "1"}, "spec": {"id": id}});
        Identity::of(&serde_json::from_value(value).unwrap(), "example.org").unwrap()
    }

    #[test]
    fn a_request_counts_as_one_use_within_the_limits() {
        let token = |max: i32, uses: &[&str], deleted: bool| -> JoinToken {
            let uses: Vec<_> = uses
                .iter()
                .map(|request| json!({"request": request, "node": "n", "time": "2026-01-01T00:00:00Z"}))
                .collect();
            let deleted = deleted.then_some("2026-01-01T00:00:00Z");
            serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
                "metadata": {"name": "j", "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": deleted},
                "spec": {"clusterName": "a", "maxUses": max, "ttl": "1h"}, "status": {"uses": uses}}))
            .unwrap()
        };
        let identity = identity("aaaaaaaaaa");
        let (in_time, late) = ("2026-01-01T00:59:59Z", "2026-01-01T01:00:00Z");
        for (rule, token, now, expected) in [
            ("the first use", token(1, &[], false), in_time, Ok(Some(1))),
            ("the second of two", token(2, &["x"], false), in_time, Ok(Some(2))),
            ("the same request again", token(1, &["r"], false), in_time, Ok(None)),
            (
                "one use too many",
                token(1, &["x"], false),
                in_time,
                Err(Refusal::TokenUsedUp),
            ),
            ("too late", token(1, &[], false), late, Err(Refusal::TokenUnknown)),
            (
                "the same request, too late",
                token(1, &["r"], false),
                late,
                Err(Refusal::TokenUnknown),
            ),
            ("revoked", token(1, &[], true), in_time, Err(Refusal::TokenUnknown)),
        ] {
            let joiner = Joiner {
                identity: &identity,
                token_id: "abcdef",
                node: "n",
                request: "r",
                requested_at: now.parse().unwrap(),
            };
            for waited in [0, 1800] {
                let now = joiner.requested_at + SignedDuration::from_secs(waited);
                let planned = plan_use(&token, &joiner, now);
                assert_eq!(planned.map(|uses| uses.map(|uses| uses.len())), expected, "{rule}");
            }
        }
    }

    #[test]
    fn a_token_of_a_deleted_cluster_is_not_valid_for_the_next() {
        let token: JoinToken =
            serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
            "metadata": {"name": "j", "namespace": "t"}, "spec": {"clusterName": "a"},
            "status": {"tokenId": "abcdef", "clusterId": "aaaaaaaaaa"}}))
            .unwrap();
        assert!(is_named(&token, &identity("aaaaaaaaaa"), "abcdef"));
        assert!(!is_named(&token, &identity("aaaaaaaaaa"), "abcdeg"));
        assert!(!is_named(&token, &identity("bbbbbbbbbb"), "abcdef"));
    }

    #[test]
    fn a_node_has_the_taints_of_its_last_token() {
        let token = |taints: serde_json::Value, uses: &[(&str, &str)]| -> Arc<JoinToken> {
            let uses: Vec<_> = uses
                .iter()
                .map(|(node, time)| json!({"request": time, "node": node, "time": time}))
                .collect();
            let token = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken", "metadata": {"name": "j"},
                "spec": {"clusterName": "a", "taints": taints}, "status": {"uses": uses}});
            Arc::new(serde_json::from_value(token).unwrap())
        };
        let gpu = json!([{"key": "gpu", "value": "a", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]);
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let tokens = [
            token(gpu, &[("n", first), ("m", second)]),
            token(json!([]), &[("n", second), ("m", first), ("o", first)]),
        ];
        assert_eq!(
            plan_taints(&tokens, "m").as_deref(),
            Some("gpu=a:NoSchedule,x:NoExecute")
        );
        for node in ["n", "o", "p"] {
            assert_eq!(plan_taints(&tokens, node), None, "{node}");
        }
    }
}
