//! Decides from the activity report of a store whether a cluster has been unused for so long that
//! it may sleep, and what prevents its sleep. Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde::Deserialize;
use yoke_api::sleep::WithWorkers;
use yoke_api::{Cluster, JoinToken, Reason};

use crate::cluster::ownership::is_token_of;
use crate::model::conditions::State;
use crate::model::join_token_term::{self, Term};

/// Maximum lifetime of a watch in seconds: then the API server ends it, unless the client requested
/// more.
const WATCH_MAX: i64 = 3600;
/// A Node that has been silent for this long, so that Kubernetes evicts its Pods, is no connected
/// worker.
const SILENCE: SignedDuration = SignedDuration::from_mins(5);

/// Activity report of a store. All times are in seconds, by the clock of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Report {
    /// Time of the report.
    pub now: i64,
    /// Since when the store sees requests. Requests that were open before are unknown to it.
    pub since: i64,
    /// Time of the last request.
    pub last: i64,
    /// Number of open requests.
    pub open: u64,
    /// Start of the most recent open request; older stores do not report it.
    pub opened: Option<i64>,
}

/// Decision that follows from a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The cluster has been unused for long enough.
    Sleep,
    /// The cluster cannot be due to sleep before this time is over: query the store again then.
    QueryAfter(Duration),
}

impl Report {
    /// When the cluster was last used, as far as the report shows.
    pub fn last_used(&self, started: Timestamp) -> Option<Timestamp> {
        let last = if self.is_open(started) { self.now } else { self.last };
        Timestamp::from_second(last).ok()
    }

    /// Whether a client uses the cluster now. A killed API server reports no end of its requests,
    /// so requests from before `started` are over.
    fn is_open(&self, started: Timestamp) -> bool {
        let is_of_this_server = |opened| opened >= started.as_second();
        self.open > 0 && self.opened.is_none_or(is_of_this_server)
    }
}

/// Decides for a Cluster that sleeps after it was unused for `after`. `started` is the start of its
/// API server, by the clock of the same node.
///
/// The start counts as use. So does the admission of the callers that woke the Cluster; `served` is
/// the time since then, if known.
pub fn plan_next(report: &Report, started: Timestamp, served: Option<Duration>, after: Duration) -> Next {
    if report.is_open(started) {
        return Next::QueryAfter(after);
    }
    let started = started.as_second();
    // A store that restarted beside a running API server does not know which watches were open.
    let from = match report.since > started {
        true => report.last.max(report.since.saturating_add(WATCH_MAX)),
        false => report.last.max(started),
    };
    let quiet = u64::try_from(report.now.saturating_sub(from)).unwrap_or_default();
    let quiet = Duration::from_secs(quiet).min(served.unwrap_or(Duration::MAX));
    match after.checked_sub(quiet) {
        None | Some(Duration::ZERO) => Next::Sleep,
        Some(remaining) => Next::QueryAfter(remaining),
    }
}

/// Obstacles to sleep in a cluster's own API, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct Obstacles {
    /// Number of Nodes; `None` if not known.
    pub nodes: Option<i32>,
    /// Name of a connected Node; the inner `None` means that there is none.
    pub connected: Option<Option<String>>,
    /// Name of a webhook that would keep workers from reconnecting; the inner `None` means that
    /// there is none.
    pub webhook: Option<Option<String>>,
}

/// Whether a Node is connected. A new Node without a status is: it is about to report more.
pub fn is_connected(node: &Node, now: Timestamp) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|all| all.iter().find(|condition| condition.type_ == "Ready"));
    // The node lifecycle controller sets this status.
    let silent = ready.filter(|ready| ready.status == "Unknown");
    let since = silent.and_then(|ready| ready.last_transition_time.as_ref());
    since.is_none_or(|since| now.duration_since(since.0) < SILENCE)
}

/// Whether nothing prevents the automatic sleep of a Cluster.
///
/// Webhooks matter only where there are workers: without any, no webhook is served now either.
pub fn plan_possible<T: AsRef<JoinToken>>(
    cluster: &Cluster,
    obstacles: &Obstacles,
    tokens: &[T],
    now: Timestamp,
) -> State {
    let unknown = |what: &str| {
        State::unknown(
            Reason::APIServerNotReady,
            format!("{what} not known, as the API did not answer."),
        )
    };
    match (obstacles.nodes, cluster.spec.sleep.with_workers) {
        (Some(0), _) => {}
        (None, _) => return unknown("Its Nodes are"),
        (Some(_), WithWorkers::Prevent) => match &obstacles.connected {
            Some(None) => {}
            None => return unknown("Its Nodes are"),
            Some(Some(name)) => {
                let message = format!("Node {name} is connected, and spec.sleep.withWorkers is Prevent.");
                return State::no(Reason::WorkersConnected, message);
            }
        },
        (Some(_), WithWorkers::Allow) => match &obstacles.webhook {
            Some(None) => {}
            None => return unknown("Its webhooks are"),
            Some(Some(name)) => {
                let message = format!(
                    "Webhook {name} is served in the cluster and fails closed, so workers could not reconnect after a \
         wake. Set its failurePolicy to Ignore, or narrow its rules."
                );
                return State::no(Reason::WebhookBlocksWake, message);
            }
        },
    }
    let tokens = tokens
        .iter()
        .map(AsRef::as_ref)
        .filter(|token| is_token_of(token, cluster));
    let first = |matches: &dyn Fn(&&JoinToken) -> bool| {
        let names = tokens.clone().filter(matches).map(ResourceExt::name_any);
        names.min()
    };
    if let Some(name) = first(&|token| may_join(token, now)) {
        let message = format!(
            "A worker may still join with JoinToken {name}, which a sleeping cluster cannot check. Delete the \
         token, or wait until it expires."
        );
        return State::no(Reason::JoinTokenHolds, message);
    }
    if cluster.spec.sleep.with_workers == WithWorkers::Prevent
        && let Some(name) = first(&|token| join_token_term::is_just_used(token, now))
    {
        let message = format!("A worker has just joined with JoinToken {name} and may not be counted as a Node yet.");
        return State::no(Reason::JoinTokenHolds, message);
    }
    State::yes(Reason::AsExpected, "Nothing prevents sleep.")
}

/// Whether a worker may join with this token.
fn may_join(token: &JoinToken, now: Timestamp) -> bool {
    join_token_term::term(token, now) == Term::Holds && !join_token_term::is_used_up(token)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use yoke_api::JoinTokenSpec;
    use yoke_api::join_token::{JoinTokenStatus, Use};

    use super::*;
    use crate::fixtures;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn cluster_sleeps_once_it_is_unused_for_long_enough() {
        let query_after = |seconds| Next::QueryAfter(Duration::from_secs(seconds));
        let report = |now, since, last, open| Report {
            now,
            since,
            last,
            open,
            opened: None,
        };
        let opened = |opened| Report {
            opened: Some(opened),
            ..report(2000, 995, 1050, 1)
        };
        // The API server started at second 1000, and the cluster sleeps after 60 s.
        for (rule, report, expected) in [
            ("just started", report(1001, 995, 995, 0), query_after(59)),
            ("start counts as use", report(1059, 995, 995, 0), query_after(1)),
            ("unused for long enough", report(1060, 995, 995, 0), Next::Sleep),
            ("used 50 s ago", report(1100, 995, 1050, 0), query_after(10)),
            ("used long ago", report(1110, 995, 1050, 0), Next::Sleep),
            ("request is open", report(2000, 995, 1050, 1), query_after(60)),
            ("request is open since the start", opened(1000), query_after(60)),
            ("open request of the previous API server", opened(999), Next::Sleep),
            ("started in the same second", report(1060, 1000, 1000, 0), Next::Sleep),
            ("store restarted", report(1400, 1300, 1300, 0), query_after(60)),
            (
                "watches from before the restart may be open",
                report(4900, 1300, 1300, 0),
                query_after(60),
            ),
            (
                "watches from before the restart are over",
                report(4960, 1300, 1300, 0),
                Next::Sleep,
            ),
            ("clock was set back", report(900, 995, 995, 0), query_after(60)),
        ] {
            let next = plan_next(&report, at(1000), None, Duration::from_secs(60));
            assert_eq!(next, expected, "{rule}");
        }
        let long_quiet = report(1500, 995, 995, 0);
        for (rule, served, expected) in [
            ("caller that woke it was admitted just now", 1, query_after(59)),
            ("caller that woke it was admitted long ago", 60, Next::Sleep),
        ] {
            let served = Some(Duration::from_secs(served));
            let next = plan_next(&long_quiet, at(1000), served, Duration::from_secs(60));
            assert_eq!(next, expected, "{rule}");
        }
    }

    #[test]
    fn connected_workers_or_webhooks_prevent_sleep() {
        let possible = |with_workers, nodes, found: Option<Option<&str>>| {
            let cluster = fixtures::with(fixtures::cluster("a"), |spec| spec.sleep.with_workers = with_workers);
            let found = found.map(|name| name.map(str::to_owned));
            let (connected, webhook) = match with_workers {
                WithWorkers::Prevent => (found, None),
                WithWorkers::Allow => (None, found),
            };
            let obstacles = Obstacles {
                nodes,
                connected,
                webhook,
            };
            let state = plan_possible::<Arc<JoinToken>>(&cluster, &obstacles, &[], at(1));
            (state.status, state.reason)
        };
        let (yes, unknown) = ((Some(true), Reason::AsExpected), (None, Reason::APIServerNotReady));
        let (prevent, allow) = (WithWorkers::Prevent, WithWorkers::Allow);
        let (none, some) = (Some(None), Some(Some("a.example.org")));
        assert_eq!(possible(prevent, Some(0), None), yes);
        assert_eq!(
            possible(prevent, Some(2), some),
            (Some(false), Reason::WorkersConnected)
        );
        assert_eq!(possible(prevent, Some(2), none), yes);
        assert_eq!(possible(prevent, Some(2), None), unknown);
        assert_eq!(possible(prevent, None, none), unknown);
        assert_eq!(possible(allow, Some(2), none), yes);
        assert_eq!(possible(allow, Some(2), some), (Some(false), Reason::WebhookBlocksWake));
        assert_eq!(possible(allow, Some(2), None), unknown);
        assert_eq!(possible(allow, Some(0), some), yes);
    }

    #[test]
    fn a_node_that_is_silent_for_long_is_not_connected() {
        let ready = |status: &str, since: Option<i64>| NodeCondition {
            type_: "Ready".into(),
            status: status.into(),
            last_transition_time: since.map(|second| Time(at(second))),
            ..NodeCondition::default()
        };
        for (rule, condition, expected) in [
            ("ready", Some(ready("True", Some(0))), true),
            ("not ready", Some(ready("False", Some(0))), true),
            ("silent for a moment", Some(ready("Unknown", Some(701))), true),
            ("silent", Some(ready("Unknown", Some(700))), false),
            ("silent since an unknown time", Some(ready("Unknown", None)), true),
            ("just created", None, true),
        ] {
            let status = NodeStatus {
                conditions: condition.map(|condition| vec![condition]),
                ..NodeStatus::default()
            };
            let node = Node {
                status: Some(status),
                ..Node::default()
            };
            assert_eq!(is_connected(&node, at(1000)), expected, "{rule}");
        }
    }

    #[test]
    fn open_request_counts_as_use() {
        let report = |open| Report {
            now: 20,
            since: 1,
            last: 10,
            open,
            opened: Some(5),
        };
        let used = |open, started| report(open).last_used(at(started));
        assert_eq!((used(0, 5), used(1, 5)), (Some(at(10)), Some(at(20))));
        assert_eq!(used(1, 6), Some(at(10)), "open request of a previous API server");
    }

    #[test]
    fn valid_join_token_prevents_sleep() {
        let token_of = |with_workers, seconds: i64, change: &dyn Fn(&mut JoinToken)| {
            let spec = JoinTokenSpec {
                cluster_name: "a".into(),
                ttl: "1m".into(),
                max_uses: 1,
                ..JoinTokenSpec::default()
            };
            let mut token = JoinToken::new("t", spec);
            token.metadata.namespace = Some("demo".into());
            token.metadata.creation_timestamp = Some(Time(at(1000)));
            change(&mut token);
            let tokens = [Arc::new(token)];
            let obstacles = Obstacles {
                nodes: Some(0),
                ..Obstacles::default()
            };
            let cluster = fixtures::with(fixtures::cluster("a"), |spec| spec.sleep.with_workers = with_workers);
            let possible = plan_possible(&cluster, &obstacles, &tokens, at(seconds));
            assert!(possible.status == Some(true) || possible.reason == Reason::JoinTokenHolds);
            possible.status == Some(false)
        };
        let token = |change: &dyn Fn(&mut JoinToken)| token_of(WithWorkers::Allow, 1059, change);
        let used = |token: &mut JoinToken| {
            token.status = Some(JoinTokenStatus {
                uses: vec![Use {
                    request: "r".into(),
                    node: "n".into(),
                    time: Time(at(1001)),
                }],
                ..JoinTokenStatus::default()
            });
        };
        assert!(token(&|_| ()));
        assert!(token(&|token| {
            used(token);
            token.spec.max_uses = 2;
        }));
        assert!(!token(&used));
        let prevented = |seconds| token_of(WithWorkers::Prevent, seconds, &used);
        assert!(prevented(1059) && prevented(1301), "joining worker is not a Node yet");
        assert!(!prevented(1302));
        assert!(!token(&|token| token.metadata.creation_timestamp = Some(Time(at(999)))));
        assert!(!token(&|token| token.spec.cluster_name = "b".into()));
        assert!(!token(&|token| token.metadata.namespace = Some("other".into())));
        assert!(!token(&|token| token.metadata.deletion_timestamp = Some(Time(at(1050)))));
    }
}
