//! Obstacles to sleep in a cluster's own API: its Nodes, or webhooks that these serve.
//!
//! A tenant can create as many of them as it likes, and can make its API as slow as it likes. So a
//! probe has a timeout, and the next one waits for ten times as long as it took.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use yoke_api::sleep::WithWorkers;
use yoke_api::{Cluster, ClusterId};

use crate::cluster::context::Context;
use crate::cluster::memory::ObstacleSeen;
use crate::cluster::sleep::idle::{self, Obstacles};
use crate::model::conditions::State;
use crate::tenant_client::{TenantApiError, Way};

/// Timeout of one probe.
const OBSTACLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a probe: this many times its duration, and at least `PAUSE_AFTER_FAILURE` after a failure.
const PAUSE_FACTOR: u32 = 10;
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(15);
/// Maximum age of the answer about its Nodes.
const NODES_MAX_AGE: Duration = Duration::from_secs(60);

/// Whether nothing prevents the automatic sleep of a Cluster.
///
/// A probe runs if the last answer is older than `age`, unless its API is in a pause. With `None`
/// no probe runs, and the last answer counts.
pub(crate) async fn find_possible(
    context: &Context,
    cluster: &Cluster,
    id: &ClusterId,
    age: Option<Duration>,
) -> State {
    let nodes = context.memory.running(id).nodes.and_then(|(nodes, _)| nodes);
    if let Some(age) = age.filter(|_| nodes.is_some_and(|nodes| nodes > 0)) {
        match cluster.spec.sleep.with_workers {
            WithWorkers::Allow => probe_webhooks(context, id, age).await,
            WithWorkers::Prevent => probe_nodes(context, id, age.min(NODES_MAX_AGE)).await,
        }
    }
    let running = context.memory.running(id);
    let obstacles = Obstacles {
        nodes,
        connected: running.connected.and_then(|seen| seen.found),
        webhook: running.webhooks.and_then(|seen| seen.found),
    };
    idle::plan_possible(
        cluster,
        &obstacles,
        &context.host.caches.join_tokens.state(),
        Timestamp::now(),
    )
}

async fn probe_nodes(context: &Context, id: &ClusterId, age: Duration) {
    let due = is_due(context.memory.running(id).connected.as_ref(), age, Instant::now());
    let Some(api) = context.apis.known(id, Way::Inside).filter(|_| due) else {
        return;
    };
    let now = Timestamp::now();
    let probe = api.find_node(|node| idle::is_connected(node, now));
    let seen = probe_obstacle(id, "Nodes cannot be checked for sleep", probe).await;
    context
        .memory
        .update_running(id, |running| running.connected = Some(seen));
}

async fn probe_webhooks(context: &Context, id: &ClusterId, age: Duration) {
    let due = is_due(context.memory.running(id).webhooks.as_ref(), age, Instant::now());
    let Some(api) = context.apis.known(id, Way::Inside).filter(|_| due) else {
        return;
    };
    let seen = probe_obstacle(id, "webhooks cannot be checked for sleep", api.find_blocking_webhook()).await;
    context
        .memory
        .update_running(id, |running| running.webhooks = Some(seen));
}

/// Whether a probe is due: an answer is valid for `age`, and a pause follows every probe.
fn is_due(seen: Option<&ObstacleSeen>, age: Duration, now: Instant) -> bool {
    seen.is_none_or(|seen| {
        let valid_for = if seen.found.is_some() { age } else { Duration::ZERO };
        now.saturating_duration_since(seen.ended) >= valid_for.max(seen.pause)
    })
}

async fn probe_obstacle(
    id: &ClusterId,
    failure: &str,
    probe: impl Future<Output = Result<Option<String>, TenantApiError>>,
) -> ObstacleSeen {
    let started = Instant::now();
    let found = tokio::time::timeout(OBSTACLE_TIMEOUT, probe).await;
    let ended = Instant::now();
    let pause = (ended - started) * PAUSE_FACTOR;
    match found.unwrap_or(Err(TenantApiError::Limit)) {
        Ok(name) => ObstacleSeen {
            found: Some(name),
            ended,
            pause,
        },
        Err(error) => {
            tracing::warn!(cluster = %id, error = %crate::chain(&error), "{failure}");
            ObstacleSeen {
                found: None,
                ended,
                pause: pause.max(PAUSE_AFTER_FAILURE),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_is_due_after_its_result_and_its_pause_expire() {
        let ended = Instant::now();
        let seen = |found: Option<Option<&str>>, pause| ObstacleSeen {
            found: found.map(|name| name.map(ToOwned::to_owned)),
            ended,
            pause: Duration::from_secs(pause),
        };
        let (none, some, failed) = (Some(None), Some(Some("n")), None);
        for (rule, seen, after, due) in [
            ("no probe yet", None, 0, true),
            ("no obstacle, recent", Some(seen(none, 1)), 59, false),
            ("no obstacle, expired", Some(seen(none, 1)), 60, true),
            ("obstacle, recent", Some(seen(some, 1)), 59, false),
            ("slow probe, in its pause", Some(seen(some, 90)), 89, false),
            ("slow probe, after its pause", Some(seen(some, 90)), 90, true),
            ("failed probe, in its pause", Some(seen(failed, 15)), 14, false),
            ("failed probe, after its pause", Some(seen(failed, 15)), 15, true),
        ] {
            let now = ended + Duration::from_secs(after);
            assert_eq!(is_due(seen.as_ref(), Duration::from_secs(60), now), due, "{rule}");
        }
    }
}
