//! Limits how often clusters are woken. Pure but for the queue to the writer; time comes in as an
//! argument.
//!
//! ```text
//!  activator, ext_authz ─▶ Waker ─▶ budgets of source, cluster and Tenant ─▶ queue ─▶ write ─▶ Cluster.status.activity
//! ```
//!
//! Many callers wake a cluster once: after one wake request further ones are ignored for
//! [`REPEAT_AFTER`]. By then either the operator has reacted, or the request was lost and is
//! repeated within the budgets.

pub mod write;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use yoke_api::ClusterId;
use yoke_runtime::budget::{Budgets, Rate, source_key};

use crate::metrics::Metrics;
use crate::model::route::Route;

/// How long further wake requests of a cluster are ignored. A caller that the activator answers
/// after its wait repeats the request later than this.
const REPEAT_AFTER: Duration = Duration::from_secs(4);
/// Capacity of the queue of wake requests to the host API.
const QUEUE_CAPACITY: usize = 256;
/// Number of remembered clusters above which outdated ones are removed.
const MAX_REMEMBERED: usize = 1024;

/// Rate limits for wakes by this process.
#[derive(Clone, Copy, Debug)]
pub struct WakeLimits {
    /// Wakes of the clusters of one Tenant.
    pub tenant: Rate,
    /// Wakes by one source address, where it is known.
    pub source: Rate,
}

/// A wake request for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeRequest {
    /// The Tenant, which is also the Cluster's namespace.
    pub tenant: String,
    /// Name of the Cluster.
    pub cluster: String,
    /// UID of the Cluster object, so that a new Cluster of the same name is not woken.
    pub uid: String,
    /// Time of the request that needs the cluster.
    pub time: Time,
}

/// Identifies the sleep that is to end.
#[derive(Clone, Copy, Debug)]
pub struct EndedSleep<'a> {
    /// Start of the sleep.
    pub since: &'a Time,
    /// UID of the Cluster object that sleeps.
    pub uid: &'a str,
}

/// Result of a wake request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request is queued for the operator.
    Queued,
    /// The operator was notified a moment ago.
    AlreadyNotified,
    /// The source wakes too many clusters.
    SourceRate,
    /// Too many clusters of the Tenant are woken.
    TenantRate,
    /// The queue is full.
    Full,
}

impl Outcome {
    /// The value of the metric label `outcome`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "told",
            Self::AlreadyNotified => "known",
            Self::SourceRate => "source_rate",
            Self::TenantRate => "tenant_rate",
            Self::Full => "full",
        }
    }
}

/// Accepts wake requests and queues them for the operator. Clones share their state.
#[derive(Clone, Debug)]
pub struct Waker {
    memory: Arc<Mutex<Memory>>,
    requests: mpsc::Sender<WakeRequest>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Memory {
    /// The sleep of each cluster that was ended last, and when.
    woken: HashMap<ClusterId, (Time, Instant)>,
    tenants: Budgets<String>,
    sources: Budgets<IpAddr>,
}

impl Waker {
    /// Creates a waker, and the receiver of its wake requests.
    pub fn new(limits: WakeLimits, metrics: Metrics, now: Instant) -> (Self, mpsc::Receiver<WakeRequest>) {
        let (requests, queued) = mpsc::channel(QUEUE_CAPACITY);
        let memory = Memory {
            woken: HashMap::new(),
            tenants: Budgets::new(limits.tenant, now),
            sources: Budgets::new(limits.source, now),
        };
        let waker = Self {
            memory: Arc::new(Mutex::new(memory)),
            requests,
            metrics,
        };
        (waker, queued)
    }

    /// Requests that a sleeping cluster is woken. The caller has verified that the client may wake
    /// it.
    pub fn wake(&self, route: &Route, sleeping: EndedSleep<'_>, source: Option<IpAddr>) -> Outcome {
        let outcome = self.try_wake(Instant::now(), Timestamp::now(), route, sleeping, source);
        self.metrics.count_wake(outcome.as_str());
        outcome
    }

    fn try_wake(
        &self,
        now: Instant,
        time: Timestamp,
        route: &Route,
        sleeping: EndedSleep<'_>,
        source: Option<IpAddr>,
    ) -> Outcome {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refused) = memory.refuse(now, route, sleeping.since, source) {
            return refused;
        }
        let wake = WakeRequest {
            tenant: route.tenant.clone(),
            cluster: route.cluster.clone(),
            uid: sleeping.uid.to_owned(),
            time: plan_time(time, sleeping.since),
        };
        if self.requests.try_send(wake).is_err() {
            return Outcome::Full;
        }
        memory.woken.insert(route.id.clone(), (sleeping.since.clone(), now));
        Outcome::Queued
    }
}

impl Memory {
    fn refuse(&mut self, now: Instant, route: &Route, since: &Time, source: Option<IpAddr>) -> Option<Outcome> {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < REPEAT_AFTER;
        let last = self.woken.get(&route.id).filter(|(ended, _)| ended == since);
        let was_notified = last.is_some();
        if last.is_some_and(|(_, at)| is_recent(*at)) {
            return Some(Outcome::AlreadyNotified);
        }
        if self.woken.len() >= MAX_REMEMBERED {
            self.woken.retain(|_, (_, at)| is_recent(*at));
        }
        let refused = if source.is_some() && !self.sources.take(source_key(source), now) {
            Outcome::SourceRate
        } else if !self.tenants.take(route.tenant.clone(), now) {
            Outcome::TenantRate
        } else {
            return None;
        };
        // The operator was notified before, so the request need not be repeated and callers
        // continue to wait.
        Some(if was_notified {
            Outcome::AlreadyNotified
        } else {
            refused
        })
    }
}

/// The time of a wake request: later than the start of the sleep, whatever the clocks say, and in
/// whole seconds as Kubernetes writes times.
fn plan_time(now: Timestamp, since: &Time) -> Time {
    let next = since.0.checked_add(SignedDuration::from_secs(1)).unwrap_or(since.0);
    let time = now.max(next).as_second();
    Time(Timestamp::from_second(time).unwrap_or(next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::entries::entry;

    const LIMITS: WakeLimits = WakeLimits {
        tenant: Rate {
            per_second: 1,
            burst: 2,
        },
        source: Rate {
            per_second: 1,
            burst: 1,
        },
    };

    fn route(id: &str, tenant: &str) -> Route {
        let mut route = entry(id, &["a.yoke.test"], "1", "1").route.as_ref().clone();
        route.id = id.parse().unwrap();
        tenant.clone_into(&mut route.tenant);
        route
    }

    fn sleeping(since: &Time) -> EndedSleep<'_> {
        EndedSleep { since, uid: "u-1" }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn many_callers_wake_once() {
        let start = Instant::now();
        let (waker, mut queued) = Waker::new(LIMITS, Metrics::default(), start);
        let (since, route) = (Time(at(100)), route("bcdfghjk24", "t"));
        let wake = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            waker.try_wake(now, at(50), &route, sleeping(&since), None)
        };
        assert_eq!(wake(0), Outcome::Queued);
        for _ in 0..100 {
            assert_eq!(wake(3), Outcome::AlreadyNotified);
        }
        assert_eq!(wake(4), Outcome::Queued, "the first word may be lost");
        let expected = WakeRequest {
            tenant: "t".into(),
            cluster: "bcdfghjk24".into(),
            uid: "u-1".into(),
            time: Time(at(101)),
        };
        assert_eq!(queued.try_recv().unwrap(), expected, "by a clock that is behind");
        assert_eq!(queued.try_recv().unwrap(), expected);
        assert!(queued.try_recv().is_err());
        let later = Time(at(103));
        let again = waker.try_wake(start + REPEAT_AFTER, at(50), &route, sleeping(&later), None);
        assert_eq!(again, Outcome::Queued, "it was sent to sleep again");
        assert_eq!(queued.try_recv().unwrap().time, Time(at(104)));
    }

    #[test]
    fn wakes_of_a_tenant_and_of_a_source_are_limited() {
        let start = Instant::now();
        let (waker, _told) = Waker::new(LIMITS, Metrics::default(), start);
        let since = Time(at(100));
        let wake = |id: &str, tenant: &str, source: Option<&str>| {
            let source = source.map(|source| source.parse().unwrap());
            waker.try_wake(start, at(200), &route(id, tenant), sleeping(&since), source)
        };
        for (rule, id, tenant, source, expected) in [
            ("first", "bcdfghjk24", "t", Some("192.0.2.1"), Outcome::Queued),
            ("same source", "bcdfghjk25", "u", Some("192.0.2.1"), Outcome::SourceRate),
            ("another", "bcdfghjk25", "u", Some("192.0.2.2"), Outcome::Queued),
            ("not known", "bcdfghjk26", "t", None, Outcome::Queued),
            ("third of a Tenant", "bcdfghjk27", "t", None, Outcome::TenantRate),
        ] {
            assert_eq!(wake(id, tenant, source), expected, "{rule}");
        }
    }

    #[test]
    fn repeated_wakes_need_no_budget() {
        let start = Instant::now();
        let mut limits = LIMITS;
        limits.tenant.per_second = 0;
        limits.tenant.burst = 1;
        let (waker, _told) = Waker::new(limits, Metrics::default(), start);
        let since = Time(at(100));
        let wake = |id: &str, second| {
            let now = start + Duration::from_secs(second);
            waker.try_wake(now, at(200), &route(id, "t"), sleeping(&since), None)
        };
        assert_eq!(wake("bcdfghjk24", 0), Outcome::Queued);
        assert_eq!(wake("bcdfghjk24", 10), Outcome::AlreadyNotified);
        assert_eq!(wake("bcdfghjk25", 10), Outcome::TenantRate);
    }

    #[test]
    fn requests_over_the_queue_capacity_are_dropped() {
        let start = Instant::now();
        let rate = Rate {
            per_second: 1,
            burst: 10_000,
        };
        let limits = WakeLimits {
            tenant: rate,
            source: rate,
        };
        let (waker, _told) = Waker::new(limits, Metrics::default(), start);
        let since = Time(at(100));
        let ids = (0..=QUEUE_CAPACITY).map(|number| format!("b{number:09}"));
        let mut outcomes: Vec<_> = ids
            .map(|id| waker.try_wake(start, at(1), &route(&id, "t"), sleeping(&since), None))
            .collect();
        assert_eq!(outcomes.pop(), Some(Outcome::Full));
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Queued));
    }
}
