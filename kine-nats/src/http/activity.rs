//! When a client last used the cluster, as the audit events of its API server show it. This module
//! is pure.
//!
//! ```text
//!  kube-apiserver ──audit events──▶ audit_webhook.rs ──▶ ObservedRequests ──▶ Report ──▶ the operator, which decides whether the cluster sleeps
//! ```
//!
//! The audit policy of the API server leaves out nodes and controllers, so only requests that count
//! arrive here. A request that stays open, such as a watch, produces two events: one when the
//! response starts, and one when it has ended.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// Largest number of open requests that are tracked one by one. Above it, the report only has to
/// show that there are many.
const OPEN_MAX: usize = 10_000;
/// Ends of requests that arrive before their starts: the API server sends several messages
/// concurrently.
const EARLY_MAX: usize = 1024;
/// Age in seconds at which an open request is dropped whose end was never reported.
const DROPPED_AFTER: i64 = 24 * 60 * 60;

/// Seconds since 1970 by the clock of this node.
pub(crate) type Second = i64;

/// The body of one webhook message: an audit `EventList`.
#[derive(Debug, Deserialize)]
pub(crate) struct Events {
    items: Vec<Event>,
}

/// The fields of an audit event that are used here; see
/// <https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/#audit-k8s-io-v1-Event>.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID", default)]
    id: String,
    #[serde(default)]
    stage: String,
    #[serde(default)]
    verb: String,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<ObjectRef>,
}

#[derive(Debug, Deserialize)]
struct ObjectRef {
    #[serde(default)]
    subresource: String,
}

impl Event {
    /// Whether requests of this kind may stay open, by the rule of kube-apiserver
    /// (`LongRunningFunc` in pkg/controlplane/apiserver/config.go, 1.35).
    fn is_long(&self) -> bool {
        const SUBRESOURCES: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];
        let subresource = self.object_ref.as_ref().map(|object| object.subresource.as_str());
        self.verb == "watch" || subresource.is_some_and(|subresource| SUBRESOURCES.contains(&subresource))
    }
}

/// Clients that do not count. Each pattern is a complete `User-Agent`, or a prefix of one followed
/// by `*`.
#[derive(Debug, Clone, Default)]
pub(crate) struct IgnoredClients(pub(crate) Vec<String>);

impl IgnoredClients {
    fn has(&self, agent: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => agent.starts_with(beginning),
            None => agent == pattern,
        })
    }
}

/// Requests observed so far.
#[derive(Debug)]
pub(crate) struct ObservedRequests {
    ignored: IgnoredClients,
    since: Second,
    last: Second,
    open: HashMap<u128, Open>,
    early: VecDeque<u128>,
}

/// A request that is still open.
#[derive(Debug, Clone, Copy)]
struct Open {
    start: Second,
    is_watch: bool,
}

/// The response of `/activity`. All times are by the clock of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Current time.
    pub(crate) now: Second,
    /// Start of the observation. Requests that were already open then are unknown.
    pub(crate) since: Second,
    /// Time of the newest event.
    pub(crate) last: Second,
    /// Number of open requests.
    pub(crate) open: usize,
    /// Start of the newest open request.
    pub(crate) opened: Option<Second>,
}

impl ObservedRequests {
    /// Starts the observation now and counts that as activity, because earlier requests are
    /// unknown.
    pub(crate) fn new(ignored: IgnoredClients, now: Second) -> Self {
        Self {
            ignored,
            since: now,
            last: now,
            open: HashMap::new(),
            early: VecDeque::new(),
        }
    }

    /// Records the events of one message.
    pub(crate) fn record_events(&mut self, events: &Events, now: Second) {
        for event in &events.items {
            if !self.ignored.has(&event.user_agent) {
                self.last = self.last.max(now);
                self.follow(event, now);
            }
        }
    }

    /// Records a message that cannot be decoded: it shows activity, and may have contained the end
    /// of an open request. Watches are forgotten as after a start, because the API server ends each
    /// within the hour. Other open requests, such as a port-forward, may last longer and stay.
    pub(crate) fn record_unreadable(&mut self, now: Second) {
        (self.since, self.last) = (now, self.last.max(now));
        self.open.retain(|_, open| !open.is_watch);
    }

    /// Returns the current report, after dropping open requests that are too old.
    pub(crate) fn report(&mut self, now: Second) -> Report {
        self.open.retain(|_, open| now - open.start < DROPPED_AFTER);
        Report {
            now,
            since: self.since,
            last: self.last,
            open: self.open.len(),
            opened: self.open.values().map(|open| open.start).max(),
        }
    }

    fn follow(&mut self, event: &Event, now: Second) {
        // The client may choose the audit id, so its length is unbounded; only a hash is stored.
        let id = xxh3_128(event.id.as_bytes());
        match event.stage.as_str() {
            "ResponseStarted" => {
                if let Some(index) = self.early.iter().position(|early| *early == id) {
                    self.early.remove(index);
                } else if self.open.len() < OPEN_MAX {
                    let is_watch = event.verb == "watch";
                    self.open.insert(id, Open { start: now, is_watch });
                }
            }
            "ResponseComplete" | "Panic" if self.open.remove(&id).is_none() && event.is_long() => {
                if self.early.len() == EARLY_MAX {
                    self.early.pop_front();
                }
                self.early.push_back(id);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn events(items: &[Value]) -> Events {
        serde_json::from_value(json!({"kind": "EventList", "items": items})).unwrap()
    }

    fn event(id: &str, stage: &str, verb: &str) -> Value {
        json!({"auditID": id, "stage": stage, "verb": verb, "userAgent": "kubectl/v1.35.4 (linux/amd64)", "user": {"username": "a"}})
    }

    fn observed(ignored: &[&str]) -> ObservedRequests {
        ObservedRequests::new(IgnoredClients(ignored.iter().map(ToString::to_string).collect()), 100)
    }

    /// The time of the newest event and the number of open requests after messages that arrive one
    /// second apart, from second 101 on.
    fn after(observed: &mut ObservedRequests, messages: &[Vec<Value>]) -> (Second, usize) {
        let mut now = 100;
        for message in messages {
            now += 1;
            observed.record_events(&events(message), now);
        }
        let report = observed.report(now);
        (report.last, report.open)
    }

    #[test]
    fn a_request_is_open_until_its_end() {
        let (start, end) = ("ResponseStarted", "ResponseComplete");
        let exec = json!({"auditID": "x", "stage": end, "verb": "create", "objectRef": {"subresource": "exec"}});
        for (rule, messages, expected) in [
            ("no request", vec![], (100, 0)),
            ("a request", vec![vec![event("a", end, "get")]], (101, 0)),
            ("a watch starts", vec![vec![event("a", start, "watch")]], (101, 1)),
            (
                "a watch ends",
                vec![vec![event("a", start, "watch")], vec![event("a", end, "watch")]],
                (102, 0),
            ),
            (
                "one of two ends",
                vec![
                    vec![event("a", start, "watch"), event("b", start, "watch")],
                    vec![event("b", end, "watch")],
                ],
                (102, 1),
            ),
            (
                "the end is reported first",
                vec![vec![event("a", end, "watch")], vec![event("a", start, "watch")]],
                (102, 0),
            ),
            (
                "the end of an exec is reported first",
                vec![vec![exec], vec![event("x", start, "create")]],
                (102, 0),
            ),
            (
                "a watch from before this process",
                vec![vec![event("a", end, "watch")]],
                (101, 0),
            ),
            (
                "the handler panicked",
                vec![vec![event("a", start, "watch")], vec![event("a", "Panic", "watch")]],
                (102, 0),
            ),
        ] {
            assert_eq!(after(&mut observed(&[]), &messages), expected, "{rule}");
        }
    }

    #[test]
    fn the_newest_open_request_has_the_time_of_its_start() {
        let mut observed = observed(&[]);
        assert_eq!(observed.report(100).opened, None);
        let watches = ["a", "b"].map(|id| vec![event(id, "ResponseStarted", "watch")]);
        after(&mut observed, &watches);
        assert_eq!(observed.report(103).opened, Some(102));
        observed.record_events(&events(&[event("b", "ResponseComplete", "watch")]), 104);
        assert_eq!(observed.report(104).opened, Some(101));
    }

    #[test]
    fn open_watches_are_dropped_after_unreadable_events() {
        let mut observed = observed(&[]);
        let watch = |id: &str| vec![vec![event(id, "ResponseStarted", "watch")]];
        assert_eq!(after(&mut observed, &watch("a")), (101, 1));
        observed.record_unreadable(200);
        let report = observed.report(200);
        assert_eq!((report.since, report.last), (200, 200));
        assert_eq!(
            (report.open, report.opened),
            (0, None),
            "the end was in the unreadable events"
        );
        observed.record_events(&events(&watch("b")[0]), 201);
        assert_eq!(observed.report(201).open, 1);

        // A session may stay open for longer than an API server lets a watch run.
        let exec = json!({"subresource": "exec"});
        let session = json!({"auditID": "c", "stage": "ResponseStarted", "verb": "create", "objectRef": exec});
        observed.record_events(&events(&[session]), 202);
        observed.record_unreadable(300);
        let report = observed.report(300);
        assert_eq!((report.open, report.opened), (1, Some(202)));
    }

    #[test]
    fn ignored_clients_do_not_count() {
        let watch = vec![vec![event("a", "ResponseStarted", "watch")]];
        for (pattern, expected) in [
            ("kubectl/*", (100, 0)),
            ("kubectl/v1.35.4 (linux/amd64)", (100, 0)),
            ("kubectl", (101, 1)),
            ("k9s/*", (101, 1)),
        ] {
            assert_eq!(after(&mut observed(&[pattern]), &watch), expected, "{pattern}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let many = |stage: &str, from: usize| -> Vec<Value> {
            let ids = from..from + OPEN_MAX + 7;
            ids.map(|id| event(&id.to_string(), stage, "watch")).collect()
        };
        let mut observed = observed(&[]);
        assert_eq!(after(&mut observed, &[many("ResponseStarted", 0)]), (101, OPEN_MAX));
        assert_eq!(observed.report(101 + DROPPED_AFTER - 1).open, OPEN_MAX);
        assert_eq!(
            observed.report(101 + DROPPED_AFTER).open,
            0,
            "ends that were never reported"
        );
        after(&mut observed, &[many("ResponseComplete", 0)]);
        assert_eq!(observed.early.len(), EARLY_MAX);
    }
}
