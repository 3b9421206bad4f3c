//! The desired run state of a Cluster, the source of its sleep request, and the ingress message while
//! no API runs. Pure.
//!
//! ```text
//!  spec.state: Asleep ───────────────────────────────▶ asleep, whoever connects
//!  annotation sleep=now ──────┐
//!  unused for some time ──────┴─▶ sleepRequestedTime ──┐
//!  a request ─▶ ingress ─▶ wakeRequestedTime ──────────┴──▶ asleep while sleepRequestedTime is later
//! ```

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use yoke_api::cluster::{ClusterStatus, DesiredState};
use yoke_api::ingress::{Asleep, Callers, IgnoredAgents};
use yoke_api::labels::{self, SLEEP_END, SLEEP_NOW};
use yoke_api::sleep::{ActivityStatus, SleepReason, WakeOnConnect, WithWorkers};
use yoke_api::{Cluster, ConditionType, Reason};
use yoke_pki::plan::Lifetimes;
use yoke_pki::request::Use;

use crate::model::conditions;

/// A wake takes a few seconds. After this time the ingress answers pending requests with the reason
/// for the delay. That is before clients with a timeout of half a minute give up: kubectl with
/// `--request-timeout=30s`, and client-go, whose API discovery waits for 32 s.
pub(crate) const LONGEST_WAKE: Duration = Duration::from_secs(25);
/// Shortest and longest sleep of a Cluster with Nodes before it wakes for them, in hundredths of
/// the lifetime of a kubelet's certificate. Clusters spread over the time between in `SHARES`
/// parts.
const SHORTEST_SLEEP: u32 = 6;
const LONGEST_SLEEP: u32 = 8;
const SHARES: u32 = 1024;

/// A request to sleep or to wake that does not come from the spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepCommand {
    /// Sleep until a client needs the cluster.
    Sleep(SleepReason),
    /// End such a sleep.
    Wake,
}

/// The desired run state of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SleepState {
    /// A control plane should run.
    Awake,
    /// No control plane runs, by `spec.state`.
    ByOwner,
    /// No control plane runs, as before: the spec requests one but is not applied.
    Unchanged,
    /// No control plane runs until a client connects.
    Request {
        /// Time of the request to sleep.
        since: Time,
        /// Source of the request to sleep.
        reason: SleepReason,
        /// Clients whose requests wake the cluster.
        wakes: WakeOnConnect,
        /// User agents whose requests do not wake the cluster.
        ignored: IgnoredAgents,
    },
}

impl SleepState {
    /// The run state that a Cluster requests.
    pub fn of(cluster: &Cluster) -> Self {
        if cluster.spec.state == DesiredState::Asleep {
            return Self::ByOwner;
        }
        let activity = cluster.status.as_ref().and_then(|status| status.activity.as_ref());
        match activity.and_then(ActivityStatus::asleep_since) {
            Some(since) => Self::Request {
                since: since.clone(),
                reason: activity.and_then(|activity| activity.sleep_reason).unwrap_or_default(),
                wakes: cluster.spec.sleep.wake_on_connect,
                ignored: IgnoredAgents(cluster.spec.sleep.ignore_user_agents.iter().cloned().collect()),
            },
            None => Self::Awake,
        }
    }

    /// Whether the control plane should be asleep.
    pub fn is_asleep(&self) -> bool {
        *self != Self::Awake
    }

    /// Reason of the condition `Asleep`.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Request { reason, .. } => match reason {
                SleepReason::Annotation => Reason::AsleepOnRequest,
                SleepReason::Inactivity => Reason::AsleepOnInactivity,
                SleepReason::Schedule => Reason::AsleepOnSchedule,
            },
            Self::ByOwner | Self::Unchanged | Self::Awake => Reason::AsleepByOwner,
        }
    }

    /// Why no control plane runs, as a part of a sentence.
    pub fn why(&self) -> &'static str {
        match self {
            Self::Request {
                reason: SleepReason::Inactivity,
                ..
            } => "as it was unused for spec.sleep.afterInactivity",
            Self::Request {
                reason: SleepReason::Schedule,
                ..
            } => "by spec.sleep.schedules",
            _ => "as requested",
        }
    }

    /// Until when no control plane runs, as a part of a sentence.
    pub fn until(&self) -> &'static str {
        match self {
            Self::Request {
                wakes: WakeOnConnect::Authenticated,
                ..
            } => "until a client with an identity of the cluster connects",
            Self::Request {
                wakes: WakeOnConnect::Any,
                ..
            } => "until a client connects",
            Self::Request {
                wakes: WakeOnConnect::Never,
                ..
            } => "until it has the annotation yoke.drzzl.io/sleep=end",
            Self::ByOwner | Self::Awake => "until its owner sets spec.state to Running",
            Self::Unchanged => "while its spec is not applied, as it is paused or refused",
        }
    }

    /// The ingress message for callers; `None` if a control plane should run.
    pub fn to_ingress_message(&self, uid: &str) -> Option<Asleep> {
        let callers = match self {
            Self::Awake => return None,
            Self::Request {
                wakes: WakeOnConnect::Authenticated,
                ..
            } => Callers::Authenticated,
            Self::Request {
                wakes: WakeOnConnect::Any,
                ..
            } => Callers::Any,
            Self::ByOwner | Self::Unchanged | Self::Request { .. } => return Some(no_wake_message(self.until())),
        };
        let Self::Request { since, ignored, .. } = self else {
            return None;
        };
        Some(Asleep::OnConnect {
            callers,
            ignored_agents: ignored.clone(),
            since: since.clone(),
            uid: uid.to_owned(),
        })
    }
}

/// The ingress message of a sleeping Cluster that no client can wake.
pub fn no_wake_message(until: &str) -> Asleep {
    Asleep::Held {
        why: format!("the cluster is asleep {until}"),
    }
}

/// The next ingress message: after a wake, `Waking` until the API answers. After `LONGEST_WAKE` it
/// names the problem. There is no problem to name while the Cluster is in the queue, or has started
/// only a moment ago.
pub fn next_ingress_message(
    wanted: Option<Asleep>,
    before: Option<&Asleep>,
    answers: bool,
    wait: impl FnOnce() -> Option<String>,
    now: Timestamp,
) -> Option<Asleep> {
    if wanted.is_some() {
        return wanted;
    }
    let since = match before? {
        Asleep::Waking { .. } if answers => return None,
        // A clock that was ahead must not make every wake late.
        Asleep::Waking { since, .. } if since.0 <= now => since.0,
        _ => Timestamp::from_second(now.as_second()).unwrap_or(now),
    };
    let is_late = now.duration_since(since).unsigned_abs() > LONGEST_WAKE;
    Some(Asleep::Waking {
        since: Time(since),
        problem: is_late.then(wait).flatten(),
    })
}

/// Time until a waking Cluster counts as late and its pending callers get the reason.
pub fn late_after(message: Option<&Asleep>, now: Timestamp) -> Option<Duration> {
    let Some(Asleep::Waking { since, problem: None }) = message else {
        return None;
    };
    // One second more, as `since` has whole seconds. A Cluster that is late already, without a
    // problem, is enqueued by the start queue.
    let late = LONGEST_WAKE + Duration::from_secs(1);
    late.checked_sub(Duration::try_from(now.duration_since(since.0)).unwrap_or_default())
}

/// Time until a sleeping Cluster with Nodes wakes so that they can renew their certificates.
///
/// `None` if its sleep has no limit: it has no Nodes, no client may wake it, or nothing would send
/// it to sleep again.
///
/// A kubelet renews its certificate when 70 to 90 % of its lifetime are over (client-go's
/// certificate manager). A Node that was connected before the sleep has at least a tenth of the
/// lifetime left, and could not reconnect without it. Clusters that went to sleep together do not
/// all wake together.
pub fn plan_renewal(cluster: &Cluster, now: Timestamp) -> Option<Duration> {
    let sleep = &cluster.spec.sleep;
    let SleepState::Request { since, wakes, .. } = SleepState::of(cluster) else {
        return None;
    };
    let sleeps_again = sleep.inactivity().is_some() || !sleep.schedules.is_empty();
    let may_wake = sleep.with_workers == WithWorkers::Allow && wakes != WakeOnConnect::Never;
    if !may_wake || !sleeps_again || !has_nodes(cluster) || !conditions::is_reconciled(cluster) {
        return None;
    }
    let hundredth = Lifetimes::from_spec(&cluster.spec.pki).ok()?.of_kubelet(Use::Client) / 100;
    let id = cluster.id()?;
    let share = id
        .as_str()
        .bytes()
        .fold(0_u32, |sum, byte| (sum * 31 + u32::from(byte)) % SHARES);
    let longest = hundredth * SHORTEST_SLEEP + hundredth * (LONGEST_SLEEP - SHORTEST_SLEEP) * share / SHARES;
    // A clock that was ahead must not make it sleep longer.
    let asleep_for = Duration::try_from(now.duration_since(since.0)).unwrap_or_default();
    Some(longest.saturating_sub(asleep_for))
}

/// Whether the sleep of a Cluster may outlast the certificates of its Nodes.
pub fn outlives_node_certificates(cluster: &Cluster) -> bool {
    SleepState::of(cluster).is_asleep() && has_nodes(cluster) && plan_renewal(cluster, Timestamp::UNIX_EPOCH).is_none()
}

fn has_nodes(cluster: &Cluster) -> bool {
    let nodes = cluster.status.as_ref().and_then(|status| status.nodes);
    nodes.is_some_and(|nodes| nodes > 0)
}

/// Time of the last request to sleep.
pub fn sleep_requested(cluster: &Cluster) -> Option<&Time> {
    let activity = cluster.status.as_ref()?.activity.as_ref()?;
    activity.sleep_requested_time.as_ref()
}

/// The command in the annotation of a Cluster, if its value is valid.
pub fn parse_sleep_annotation(cluster: &Cluster) -> Option<SleepCommand> {
    match cluster.annotations().get(labels::SLEEP)?.as_str() {
        SLEEP_NOW => Some(SleepCommand::Sleep(SleepReason::Annotation)),
        SLEEP_END => Some(SleepCommand::Wake),
        _ => None,
    }
}

/// The sleep request to write for a command. Its time is later than the last wake, even if another
/// clock set that.
pub fn plan_sleep_requested(
    before: Option<&ActivityStatus>,
    command: SleepCommand,
    now: Timestamp,
) -> Option<(Time, SleepReason)> {
    let woken = before.and_then(|before| before.wake_requested_time.as_ref().map(|time| time.0));
    let next = |time: Timestamp| time.checked_add(SignedDuration::from_secs(1)).unwrap_or(time);
    let now = woken.map_or(now, |woken| now.max(next(woken)));
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    match command {
        SleepCommand::Sleep(reason) => Some((Time(now), reason)),
        SleepCommand::Wake => None,
    }
}

/// Time of the wake request of a Cluster that slept and is Ready now, for the wake-latency metric.
pub fn plan_woken(status: &ClusterStatus) -> Option<Timestamp> {
    let ready = conditions::find(&status.conditions, ConditionType::Ready)?;
    let activity = status.activity.as_ref()?;
    let has_slept = activity.sleep_requested_time.is_some() && activity.asleep_since().is_none();
    let woken = activity.wake_requested_time.as_ref()?.0;
    (has_slept && ready.status == "True").then_some(woken)
}

/// The activity status with the time of last use, if the store reported it.
pub fn plan_last_used(before: Option<ActivityStatus>, used: Option<Timestamp>) -> Option<ActivityStatus> {
    let Some(used) = used else {
        return before;
    };
    Some(ActivityStatus {
        last_activity_time: Some(Time(used)),
        ..before.unwrap_or_default()
    })
}

/// Whether the spec overrides a request to sleep: the owner's `spec.state` ends it.
pub fn is_overridden(cluster: &Cluster) -> bool {
    let activity = cluster.status.as_ref().and_then(|status| status.activity.as_ref());
    cluster.spec.state == DesiredState::Asleep
        && activity.is_some_and(|activity| activity.sleep_requested_time.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    use super::*;
    use crate::fixtures::{cluster, with};

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn cluster_after(sleep: Option<i64>, wake: Option<i64>) -> Cluster {
        let mut cluster = cluster("a");
        cluster.status.get_or_insert_default().activity = Some(ActivityStatus {
            sleep_requested_time: sleep.map(at),
            wake_requested_time: wake.map(at),
            ..ActivityStatus::default()
        });
        cluster
    }

    fn accepted(status: &str) -> Condition {
        Condition {
            type_: "Accepted".into(),
            status: status.into(),
            reason: "Valid".into(),
            message: String::new(),
            last_transition_time: at(0),
            observed_generation: None,
        }
    }

    /// A Cluster with a Node that no client uses since second 0.
    fn unused() -> Cluster {
        let mut cluster = with(cluster_after(Some(0), None), |spec| {
            spec.sleep.with_workers = WithWorkers::Allow;
            spec.sleep.after_inactivity = Some("1h".into());
        });
        let status = cluster.status.get_or_insert_default();
        status.nodes = Some(1);
        status.conditions = vec![accepted("True")];
        cluster
    }

    #[test]
    fn sleeping_cluster_wakes_so_that_nodes_renew_certificates() {
        let seconds = |cluster: &Cluster, now| plan_renewal(cluster, at(now).0).map(|remaining| remaining.as_secs());
        // One hundredth of 90 days, in seconds.
        let hundredth = 77_760;
        let longest = seconds(&unused(), 0).unwrap();
        assert!((6 * hundredth..=8 * hundredth).contains(&longest), "{longest}");
        let mut other = unused();
        other.spec.id = Some("cdfghjkl24".into());
        assert_ne!(seconds(&other, 0), Some(longest), "Clusters wake at different times");
        assert_eq!(seconds(&unused(), -9), Some(longest), "a clock that is behind");
        assert_eq!(seconds(&unused(), 80), Some(longest - 80));
        assert_eq!(seconds(&unused(), 700_000), Some(0));
        let short = with(unused(), |spec| spec.pki.ca_overlap = "100h".into());
        assert!(seconds(&short, 0).unwrap() <= 8 * 3600, "shorter certificates");
        let nodes = |nodes| {
            let mut cluster = unused();
            cluster.status.get_or_insert_default().nodes = nodes;
            cluster
        };
        let mut refused = unused();
        refused.status.get_or_insert_default().conditions = vec![accepted("False")];
        for (rule, cluster, outlives) in [
            ("awake", with(cluster_after(None, None), |_| {}), false),
            ("without Nodes", nodes(Some(0)), false),
            ("number of Nodes is not known", nodes(None), false),
            (
                "by its owner",
                with(unused(), |spec| spec.state = DesiredState::Asleep),
                true,
            ),
            ("paused", with(unused(), |spec| spec.paused = true), true),
            ("refused", refused, true),
            (
                "no client may wake it",
                with(unused(), |spec| spec.sleep.wake_on_connect = WakeOnConnect::Never),
                true,
            ),
            (
                "nothing would send it to sleep again",
                with(unused(), |spec| spec.sleep.after_inactivity = None),
                true,
            ),
            (
                "Nodes are silent",
                with(unused(), |spec| spec.sleep.with_workers = WithWorkers::Prevent),
                true,
            ),
        ] {
            assert_eq!(
                (seconds(&cluster, 0), outlives_node_certificates(&cluster)),
                (None, outlives),
                "{rule}"
            );
        }
        assert!(!outlives_node_certificates(&unused()));
    }

    #[test]
    fn spec_state_takes_precedence() {
        let never = with(cluster_after(Some(5), None), |spec| {
            spec.sleep.wake_on_connect = WakeOnConnect::Never;
        });
        let owner = with(cluster_after(Some(5), Some(9)), |spec| {
            spec.state = DesiredState::Asleep
        });
        let request = |wakes| SleepState::Request {
            since: at(5),
            reason: SleepReason::Annotation,
            wakes,
            ignored: IgnoredAgents::default(),
        };
        for (rule, cluster, expected) in [
            ("no request", cluster("a"), SleepState::Awake),
            (
                "sleep requested",
                cluster_after(Some(5), None),
                request(WakeOnConnect::Authenticated),
            ),
            ("woken", cluster_after(Some(5), Some(6)), SleepState::Awake),
            ("no client may wake it", never, request(WakeOnConnect::Never)),
            ("by its owner, though a client connected", owner, SleepState::ByOwner),
        ] {
            assert_eq!(SleepState::of(&cluster), expected, "{rule}");
        }
    }

    #[test]
    fn ingress_message_lists_ignored_user_agents() {
        let message = |agents: &[&str]| {
            let cluster = with(cluster_after(Some(5), None), |spec| {
                spec.sleep.ignore_user_agents = agents.iter().map(ToString::to_string).collect();
            });
            serde_json::to_value(SleepState::of(&cluster).to_ingress_message("u-1")).unwrap()
        };
        let since = "1970-01-01T00:00:05Z";
        let before = json!({"onConnect": {"callers": "Authenticated", "since": since, "uid": "u-1"}});
        assert_eq!(
            message(&[]),
            before,
            "without ignored agents the ConfigMap is unchanged"
        );
        let mut expected = before;
        expected["onConnect"]["ignoredAgents"] = json!(["Headlamp", "k9s/*"]);
        assert_eq!(message(&["k9s/*", "Headlamp"]), expected);
    }

    #[test]
    fn spec_state_overrides_an_earlier_request() {
        let owner = |cluster| with(cluster, |spec| spec.state = DesiredState::Asleep);
        assert!(is_overridden(&owner(cluster_after(Some(5), Some(3)))));
        assert!(is_overridden(&owner(cluster_after(Some(3), Some(5)))));
        assert!(!is_overridden(&owner(cluster_after(None, Some(5)))));
        assert!(!is_overridden(&cluster_after(Some(5), None)));
        let mut asleep = cluster_after(Some(5), None);
        assert_eq!(SleepState::of(&asleep).reason(), Reason::AsleepOnRequest);
        let activity = asleep.status.as_mut().and_then(|status| status.activity.as_mut());
        activity.unwrap().sleep_reason = Some(SleepReason::Inactivity);
        assert_eq!(SleepState::of(&asleep).reason(), Reason::AsleepOnInactivity);
    }

    #[test]
    fn sleep_request_is_later_than_the_last_wake() {
        let (now, sleep) = (at(100).0, SleepCommand::Sleep(SleepReason::Inactivity));
        for (rule, wake, command, expected) in [
            ("never woken", None, sleep, Some(100)),
            ("woken before", Some(90), sleep, Some(100)),
            ("woken in the same second", Some(100), sleep, Some(101)),
            ("woken by a clock that is ahead", Some(130), sleep, Some(131)),
            ("wake command", Some(90), SleepCommand::Wake, None),
        ] {
            let before = ActivityStatus {
                sleep_requested_time: Some(at(1)),
                wake_requested_time: wake.map(at),
                ..ActivityStatus::default()
            };
            let requested = plan_sleep_requested(Some(&before), command, now);
            let expected = expected.map(|second| (at(second), SleepReason::Inactivity));
            assert_eq!(requested, expected, "{rule}");
            let after = ActivityStatus {
                sleep_requested_time: requested.map(|(time, _)| time),
                ..before
            };
            assert_eq!(after.asleep_since().is_some(), command == sleep, "{rule}");
        }
    }

    #[test]
    fn time_of_last_use_changes_no_other_field() {
        let before = cluster_after(Some(5), Some(3))
            .status
            .and_then(|status| status.activity);
        assert_eq!(plan_last_used(before.clone(), None), before);
        let after = plan_last_used(before, Some(at(7).0)).unwrap();
        assert_eq!(
            (after.last_activity_time, after.sleep_requested_time),
            (Some(at(7)), Some(at(5)))
        );
        assert_eq!(plan_last_used(None, None), None);
    }

    #[test]
    fn ingress_message_is_waking_until_the_api_answers() {
        let asleep = || Some(no_wake_message("for long"));
        let waking = |since: i64, problem: Option<&str>| {
            let problem = problem.map(ToOwned::to_owned);
            Some(Asleep::Waking {
                since: at(since),
                problem,
            })
        };
        for (rule, wanted, before, answers, expected) in [
            ("awake", None, None, true, None),
            ("never slept, and does not answer", None, None, false, None),
            ("goes to sleep", asleep(), None, true, asleep()),
            ("asleep", asleep(), asleep(), false, asleep()),
            ("wakes", None, asleep(), false, waking(100, None)),
            (
                "wakes while a terminating pod answers",
                None,
                asleep(),
                true,
                waking(100, None),
            ),
            ("waking for 25 s", None, waking(75, None), false, waking(75, None)),
            (
                "waking for 26 s",
                None,
                waking(74, None),
                false,
                waking(74, Some("no room")),
            ),
            (
                "by a clock that was ahead",
                None,
                waking(101, None),
                false,
                waking(100, None),
            ),
            ("API answers", None, waking(74, Some("no room")), true, None),
        ] {
            let message = next_ingress_message(wanted, before.as_ref(), answers, || Some("no room".into()), at(100).0);
            assert_eq!(message, expected, "{rule}");
        }
        for (rule, since, expected) in [
            ("queued", waking(74, None), waking(74, None)),
            (
                "problem is solved, and it is queued",
                waking(9, Some("no room")),
                waking(9, None),
            ),
        ] {
            let message = next_ingress_message(None, since.as_ref(), false, || None, at(100).0);
            assert_eq!(message, expected, "{rule}");
        }
        let late = |message: Option<Asleep>| late_after(message.as_ref(), at(100).0).map(|late| late.as_secs());
        assert_eq!(late(waking(75, None)), Some(1));
        assert_eq!(late(waking(90, None)), Some(16));
        assert_eq!(late(waking(9, None)), None, "it waits in the queue");
        assert_eq!(late(waking(9, Some("no room"))), None, "callers know the problem");
        assert_eq!(late(asleep()), None);
        assert_eq!(late(None), None);
    }

    #[test]
    fn invalid_annotation_is_no_command() {
        let annotated = |value: &str| {
            let mut cluster = cluster("a");
            cluster.annotations_mut().insert(labels::SLEEP.into(), value.into());
            parse_sleep_annotation(&cluster)
        };
        assert_eq!(parse_sleep_annotation(&cluster("a")), None);
        assert_eq!(annotated("now"), Some(SleepCommand::Sleep(SleepReason::Annotation)));
        assert_eq!(annotated("end"), Some(SleepCommand::Wake));
        assert_eq!(annotated("tomorrow"), None);
    }
}
