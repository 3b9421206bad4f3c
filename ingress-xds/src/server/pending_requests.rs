//! Delays requests for sleeping clusters until the cluster is awake. A request that may not wake
//! its cluster does not wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use yoke_api::ingress::Asleep;
use yoke_runtime::Drain;

use crate::activator::identity::Identity;
use crate::activator::wake::{EndedSleep, Outcome, Waker};
use crate::authz::request::Request;
use crate::authz::verdict::RequestRefusal;
use crate::limits::concurrency::{ConcurrencyLimiter, Slot};
use crate::metrics::Metrics;
use crate::snapshot::Snapshots;
use crate::snapshot::resource::resource_name;
use crate::snapshot::{Entry, Snapshot};

/// Maximum wait of a request: less than Envoy's timeout for `ext_authz` (`grpc_service.timeout` in
/// its bootstrap).
const MAX_WAIT: Duration = Duration::from_secs(25);
/// How often a waiting request repeats its wake request.
const REPEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before a request continues. Envoy gets the cluster's address on another stream than the
/// request's answer. A request that arrives earlier than the address is answered with 503 and
/// Retry-After.
const ENVOY_UPDATE_DELAY: Duration = Duration::from_millis(50);
/// Concurrently waiting requests, in total and for one cluster. Further requests are answered at
/// once and retry.
const MAX_PENDING: usize = 4096;
const MAX_PENDING_EACH: usize = 256;

/// Delays requests for sleeping clusters.
#[derive(Debug)]
pub(super) struct PendingRequests {
    snapshots: Snapshots,
    waker: Waker,
    limiter: ConcurrencyLimiter,
    metrics: Metrics,
    drain: Drain,
}

/// One waiting request. It ends with the answer, or when the client goes away.
#[derive(Debug)]
struct PendingRequest<'a> {
    requests: &'a PendingRequests,
    slot: Option<Slot>,
}

impl<'a> PendingRequest<'a> {
    fn new(requests: &'a PendingRequests, slot: Slot) -> Self {
        requests.count();
        Self {
            requests,
            slot: Some(slot),
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        drop(self.slot.take());
        self.requests.count();
    }
}

impl PendingRequests {
    pub(super) fn new(snapshots: Snapshots, waker: Waker, metrics: Metrics, drain: Drain) -> Self {
        Self {
            snapshots,
            waker,
            limiter: ConcurrencyLimiter::new(MAX_PENDING, MAX_PENDING_EACH),
            metrics,
            drain,
        }
    }

    fn count(&self) {
        self.metrics.set_pending_requests(self.limiter.occupied());
    }

    /// Waits until the cluster is awake, if the request may wake it.
    pub(super) async fn wait(
        &self,
        entry: &Entry,
        subject: String,
        request: Request<'_>,
    ) -> Result<(), RequestRefusal> {
        if !Identity::Account(subject).is_user() {
            return Err(RequestRefusal::Unneeded);
        }
        let Some(slot) = self.limiter.acquire(&entry.route) else {
            // The request does not wait, and its client retries. The cluster wakes meanwhile, even
            // if all slots are occupied.
            self.wake_if_asleep(entry, request)?;
            return Err(RequestRefusal::Asleep);
        };
        let _pending = PendingRequest::new(self, slot);
        let waiting = timeout(MAX_WAIT, self.wait_awake(entry, request));
        match self.drain.until_started(waiting).await {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(RequestRefusal::Asleep),
        }
    }

    async fn wait_awake(&self, entry: &Entry, request: Request<'_>) -> Result<(), RequestRefusal> {
        let mut snapshots = self.snapshots.clone();
        let name = resource_name(&entry.route.public_name);
        loop {
            let now = snapshots
                .borrow_and_update()
                .as_ref()
                .and_then(|all| all.get(&name).cloned());
            let Some(now) = now else {
                return Err(RequestRefusal::NoEndpoints);
            };
            if self.wake_if_asleep(&now, request)? {
                tokio::time::sleep(ENVOY_UPDATE_DELAY).await;
                return Ok(());
            }
            // The snapshot also changes for other clusters; ignore those changes.
            let is_same = |all: &Option<Arc<Snapshot>>| {
                all.as_ref()
                    .and_then(|all| all.get(&name))
                    .is_some_and(|later| Arc::ptr_eq(later, &now))
            };
            let changed = snapshots.wait_for(|all| !is_same(all));
            match timeout(REPEAT_INTERVAL, changed).await {
                Ok(Ok(_)) | Err(_) => {}
                Ok(Err(_)) => return Err(RequestRefusal::NotSynced),
            }
        }
    }

    /// Wakes the cluster if it sleeps and the request may wake it. Returns whether it is awake;
    /// fails if it will not wake.
    fn wake_if_asleep(&self, entry: &Entry, request: Request<'_>) -> Result<bool, RequestRefusal> {
        match entry.route.asleep.as_ref().map(|asleep| &asleep.state) {
            None => Ok(true),
            Some(Asleep::Held { .. }) => Err(RequestRefusal::Held),
            Some(Asleep::OnConnect { ignored_agents, .. }) if ignored_agents.has(request.agent) => {
                Err(RequestRefusal::Ignored)
            }
            Some(Asleep::OnConnect { since, uid, .. }) => {
                match self.waker.wake(&entry.route, EndedSleep { since, uid }, request.source) {
                    Outcome::Queued | Outcome::AlreadyNotified => Ok(false),
                    Outcome::SourceRate | Outcome::TenantRate | Outcome::Full => Err(RequestRefusal::Asleep),
                }
            }
            Some(Asleep::Waking { problem: Some(_), .. }) => Err(RequestRefusal::Stuck),
            Some(Asleep::Waking { problem: None, .. }) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::watch;
    use yoke_api::ingress::{Callers, IgnoredAgents};
    use yoke_runtime::budget::Rate;
    use yoke_runtime::{DrainTrigger, Metrics as Registry};

    use super::*;
    use crate::activator::wake::WakeLimits;
    use crate::model::route::{Route, Sleep};
    use crate::snapshot::entries::entry;
    use crate::test_util::fixtures::since;

    #[tokio::test]
    async fn a_cluster_wakes_while_others_occupy_all_slots() {
        const ONE: Rate = Rate {
            per_second: 1,
            burst: 1,
        };
        let limits = WakeLimits {
            tenant: ONE,
            source: ONE,
        };
        let metrics = Metrics::new(&Registry::new("a"));
        let (waker, mut requests) = Waker::new(limits, metrics.clone(), Instant::now());
        let (_snapshots, known) = watch::channel(None);
        let (_trigger, drain) = DrainTrigger::new();
        let pending = PendingRequests {
            limiter: ConcurrencyLimiter::new(0, 0),
            ..PendingRequests::new(known, waker, metrics, drain)
        };
        let awake = entry("a", &["a.yoke.test"], "1", "1");
        let asleep = |agents: &[&str]| Entry {
            route: Arc::new(Route {
                asleep: Some(Sleep {
                    state: Asleep::OnConnect {
                        callers: Callers::Authenticated,
                        ignored_agents: IgnoredAgents(agents.iter().map(ToString::to_string).collect()),
                        since: since(),
                        uid: "u-1".into(),
                    },
                    client_ca: String::new(),
                }),
                ..awake.route.as_ref().clone()
            }),
            ..awake.clone()
        };
        let request = Request {
            authorization: None,
            authority: "a.yoke.test",
            source: None,
            agent: b"k9s/v0.50.6",
        };
        let robot = "system:serviceaccount:default:robot";
        let wait = async |entry: &Entry| pending.wait(entry, robot.to_owned(), request).await;
        assert_eq!(wait(&asleep(&["k9s/*"])).await, Err(RequestRefusal::Ignored));
        assert!(requests.try_recv().is_err());
        assert_eq!(wait(&asleep(&[])).await, Err(RequestRefusal::Asleep));
        assert_eq!(requests.try_recv().unwrap().cluster, "a");
    }
}
