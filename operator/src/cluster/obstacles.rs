//! What of a cluster's own API stands against sleep: its Nodes, or webhooks that these serve.
//!
//! Its tenant writes as many of them as he likes, and may have his API answer as late as he likes. So a look has a limit, and
//! the next one comes after ten times as long as it took.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use yoke_api::sleep::WithWorkers;
use yoke_api::{Cluster, ClusterId};

use super::idle::{self, Inside};
use crate::conditions::State;
use crate::context::{Context, ObstacleSeen};
use crate::tenant_api::{TenantApiError, Way};

/// How long one look may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Who takes long is left alone this many times as long, and who fails for this long at least.
const REST: u32 = 10;
const FAILED: Duration = Duration::from_secs(15);
/// How old may be what is said of its Nodes.
const NODES_EVERY: Duration = Duration::from_secs(60);

/// Whether nothing stands against that a Cluster goes to sleep by itself: by what was found not longer ago than `age`, or than
/// its API has a rest; or by what is known, if that is not to be asked.
pub(super) async fn find_possible(
    context: &Context,
    cluster: &Cluster,
    id: &ClusterId,
    age: Option<Duration>,
) -> State {
    let nodes = context.awake(id).nodes.and_then(|(nodes, _)| nodes);
    if let Some(age) = age.filter(|_| nodes.is_some_and(|nodes| nodes > 0)) {
        match cluster.spec.sleep.with_workers {
            WithWorkers::Allow => look_at_webhooks(context, id, age).await,
            WithWorkers::Prevent => look_at_nodes(context, id, age.min(NODES_EVERY)).await,
        }
    }
    let awake = context.awake(id);
    let inside = Inside {
        nodes,
        connected: awake.connected.and_then(|seen| seen.found),
        webhook: awake.webhooks.and_then(|seen| seen.found),
    };
    idle::plan_possible(cluster, &inside, &context.caches.join_tokens.state(), Timestamp::now())
}

async fn look_at_nodes(context: &Context, id: &ClusterId, age: Duration) {
    let due = is_due(context.awake(id).connected.as_ref(), age, Instant::now());
    let Some(api) = context.apis.known(id, Way::Inside).filter(|_| due) else {
        return;
    };
    let now = Timestamp::now();
    let looking = api.find_node(|node| idle::is_connected(node, now));
    let seen = look(id, "whether its Nodes are connected is not known", looking).await;
    context.note_awake(id, |awake| awake.connected = Some(seen));
}

async fn look_at_webhooks(context: &Context, id: &ClusterId, age: Duration) {
    let due = is_due(context.awake(id).webhooks.as_ref(), age, Instant::now());
    let Some(api) = context.apis.known(id, Way::Inside).filter(|_| due) else {
        return;
    };
    let seen = look(id, "its webhooks are not known", api.find_blocking_webhook()).await;
    context.note_awake(id, |awake| awake.webhooks = Some(seen));
}

/// Whether to look again: what was found lasts for a while, and in any case there is a rest.
fn is_due(seen: Option<&ObstacleSeen>, age: Duration, now: Instant) -> bool {
    seen.is_none_or(|seen| {
        let lasts = if seen.found.is_some() { age } else { Duration::ZERO };
        now.saturating_duration_since(seen.at) >= lasts.max(seen.rest)
    })
}

async fn look(
    id: &ClusterId,
    failure: &str,
    looking: impl Future<Output = Result<Option<String>, TenantApiError>>,
) -> ObstacleSeen {
    let began = Instant::now();
    let found = tokio::time::timeout(LIMIT, looking).await;
    let at = Instant::now();
    let rest = (at - began) * REST;
    match found.unwrap_or(Err(TenantApiError::Limit)) {
        Ok(name) => ObstacleSeen {
            found: Some(name),
            at,
            rest,
        },
        Err(error) => {
            tracing::warn!(cluster = %id, error = %crate::chain(&error), "{failure}");
            ObstacleSeen {
                found: None,
                at,
                rest: rest.max(FAILED),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_lasts_and_who_took_long_has_a_rest() {
        let at = Instant::now();
        let seen = |found: Option<Option<&str>>, rest| ObstacleSeen {
            found: found.map(|name| name.map(ToOwned::to_owned)),
            at,
            rest: Duration::from_secs(rest),
        };
        let (none, some, failed) = (Some(None), Some(Some("n")), None);
        for (rule, seen, after, due) in [
            ("nothing was looked for", None, 0, true),
            ("nothing was found", Some(seen(none, 1)), 59, false),
            ("too long ago", Some(seen(none, 1)), 60, true),
            ("something was found", Some(seen(some, 1)), 59, false),
            ("that took long", Some(seen(some, 90)), 89, false),
            ("and its rest is over", Some(seen(some, 90)), 90, true),
            ("it failed", Some(seen(failed, 15)), 14, false),
            ("and its rest is over", Some(seen(failed, 15)), 15, true),
        ] {
            let now = at + Duration::from_secs(after);
            assert_eq!(is_due(seen.as_ref(), Duration::from_secs(60), now), due, "{rule}");
        }
    }
}
