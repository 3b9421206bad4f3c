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
use crate::context::{Context, Obstacle};
use crate::tenant_api::{TenantApiError, Way};

/// How long one look may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Who takes long is left alone this many times as long, and who fails for this long at least.
const REST: u32 = 10;
const FAILED: Duration = Duration::from_secs(15);
/// How old may be what is said of its Nodes.
const NODES_EVERY: Duration = Duration::from_secs(60);

/// Whether nothing stands against that a Cluster goes to sleep by itself: by what was found not longer ago than `age`, or by what
/// is known, if its API is not to be asked.
pub(super) async fn find_possible(
    context: &Context,
    cluster: &Cluster,
    id: &ClusterId,
    age: Option<Duration>,
) -> State {
    let nodes = context.awake(id).nodes.map(|(nodes, _)| nodes);
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
    let due = is_due(context.awake(id).connected.as_ref(), age);
    let Some(api) = context.apis.known(id, Way::Inside).filter(|_| due) else {
        return;
    };
    let now = Timestamp::now();
    let looking = api.find_node(|node| idle::is_connected(node, now));
    let seen = look(id, "whether its Nodes are connected is not known", looking).await;
    context.note_awake(id, |awake| awake.connected = Some(seen));
}

async fn look_at_webhooks(context: &Context, id: &ClusterId, age: Duration) {
    let due = is_due(context.awake(id).webhooks.as_ref(), age);
    let Some(api) = context.apis.known(id, Way::Inside).filter(|_| due) else {
        return;
    };
    let seen = look(id, "its webhooks are not known", api.find_blocking_webhook()).await;
    context.note_awake(id, |awake| awake.webhooks = Some(seen));
}

fn is_due(seen: Option<&Obstacle>, age: Duration) -> bool {
    seen.is_none_or(|seen| {
        let lasts = if seen.found.is_some() { age } else { Duration::ZERO };
        seen.at.elapsed() >= lasts.max(seen.rest)
    })
}

async fn look(
    id: &ClusterId,
    failure: &str,
    looking: impl Future<Output = Result<Option<String>, TenantApiError>>,
) -> Obstacle {
    let began = Instant::now();
    let found = tokio::time::timeout(LIMIT, looking).await;
    let at = Instant::now();
    let rest = (at - began) * REST;
    match found.unwrap_or(Err(TenantApiError::Limit)) {
        Ok(name) => Obstacle {
            found: Some(name),
            at,
            rest,
        },
        Err(error) => {
            tracing::warn!(cluster = %id, error = %crate::chain(&error), "{failure}");
            Obstacle {
                found: None,
                at,
                rest: rest.max(FAILED),
            }
        }
    }
}
