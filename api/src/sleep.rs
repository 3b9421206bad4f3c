//! When a Cluster with `state: Running` sleeps, and which connections wake it.
//!
//! A sleep request and a wake request are each recorded as a time, and the later one wins. The
//! writers' clocks need not agree. The operator records a sleep request later than the last wake
//! request that it has seen. The ingress records a wake request later than the sleep that it was
//! notified of.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::parse_time;

/// When a Cluster with `state: Running` goes to sleep, and which connections wake it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SleepSpec {
    /// Idle time after which the Cluster goes to sleep, in minutes or hours, at least `1m`, such as
    /// `30m`. If unset, the Cluster does not sleep because of inactivity. Requests of these clients
    /// do not count as use: Nodes, the control plane's own identities, service accounts of
    /// `kube-system`, and `ignoreUserAgents`. An open request of any other client, such as a watch,
    /// counts as use until it ends. A valid JoinToken keeps the Cluster awake. Setting this field
    /// for the first time, or removing it, restarts the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5), regex(pattern = r"^[1-9][0-9]{0,3}[mh]$"))]
    pub after_inactivity: Option<String>,

    /// Clients whose requests neither count as use for `afterInactivity` nor wake the Cluster, at
    /// most 16. Each entry is a complete `User-Agent`, or a prefix followed by `*`, such as
    /// `k9s/*`. A change restarts the control plane.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"), inner(length(max = 128), regex(pattern = r"^[ -)+-~]+[*]?$")))]
    pub ignore_user_agents: Vec<String>,

    /// Times at which the Cluster sleeps and wakes, at most 8 schedules. If several times passed
    /// while the operator was not running, only the last one is applied. A change of the Cluster's
    /// spec does not apply times that have already passed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub schedules: Vec<SleepSchedule>,

    /// Whether the Cluster can go to sleep by itself while a Node is connected. A Node counts as
    /// connected for five minutes after its last heartbeat.
    ///
    /// - `Prevent` (the default): the Cluster stays awake.
    /// - `Allow`: the Cluster goes to sleep. Pods on its workers keep running, but nothing is
    ///   scheduled, healed or scaled.
    ///
    /// The annotation `yoke.drzzl.io/sleep=now` and `spec.state: Asleep` ignore this field.
    /// Kubelets cannot renew their certificates while the Cluster sleeps. With `Allow`, the
    /// operator therefore wakes a Cluster that has slept for 6 to 8 % of the lifetime of a kubelet
    /// certificate (5 to 7 days). It does so only if `afterInactivity` or `schedules` puts the
    /// Cluster to sleep again and `wakeOnConnect` is not `Never`. In other cases, the condition
    /// `Asleep` describes the risk.
    #[serde(default)]
    pub with_workers: WithWorkers,

    /// Clients that wake a sleeping Cluster with a request to its API. It has no effect while
    /// `spec.state` is `Asleep`.
    ///
    /// - `Authenticated` (the default): clients with a client certificate of the cluster's CA or an
    ///   expiring token of one of its service accounts. Tokens from Secrets cannot be verified
    ///   while the Cluster sleeps. Nodes, the control plane's own identities and service accounts
    ///   of `kube-system` do not wake it.
    /// - `Any`: every client that knows the public name.
    /// - `Never`: no client.
    #[serde(default)]
    pub wake_on_connect: WakeOnConnect,
}

/// Times at which a Cluster sleeps and wakes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("has(self.sleep) || has(self.wake)").message("a schedule must have sleep, wake, or both"))]
#[serde(rename_all = "camelCase")]
pub struct SleepSchedule {
    /// When the Cluster goes to sleep: a cron expression of five fields, such as `0 20 * * 1-5`.
    /// `L` (last day of the month) is not supported. If the condition `SleepPossible` is `False` at
    /// that time, the Cluster goes to sleep as soon as it becomes `True`, unless the next `wake`
    /// time comes first. Connections wake the Cluster as `wakeOnConnect` permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), regex(pattern = r"^([0-9A-Za-z*/,#?-]+ ){4}[0-9A-Za-z*/,#?-]+$"))]
    pub sleep: Option<String>,
    /// When the Cluster wakes: a cron expression of five fields, such as `0 7 * * 1-5`. It has no
    /// effect while `spec.state` is `Asleep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), regex(pattern = r"^([0-9A-Za-z*/,#?-]+ ){4}[0-9A-Za-z*/,#?-]+$"))]
    pub wake: Option<String>,
    /// IANA time zone of `sleep` and `wake`, such as `Europe/Berlin`. If unset, UTC. A time that
    /// daylight saving skips takes effect when the clock changes. A time that occurs twice takes
    /// effect the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = r"^[A-Za-z][-A-Za-z0-9_+]*(/[-A-Za-z0-9_+]+)*$"))]
    pub time_zone: Option<String>,
}

impl SleepSpec {
    /// Idle time after which the Cluster goes to sleep. `None`: it never does.
    pub fn inactivity(&self) -> Option<Duration> {
        parse_time(self.after_inactivity.as_deref()?).filter(|time| !time.is_zero())
    }
}

/// Whether a Cluster can go to sleep by itself while a Node is connected.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WithWorkers {
    /// The Cluster stays awake.
    #[default]
    Prevent,
    /// The Cluster goes to sleep.
    Allow,
}

/// Clients that wake a sleeping Cluster with a request to its API.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WakeOnConnect {
    /// No client.
    Never,
    /// Clients with a client certificate of the cluster's CA, or an expiring token of one of its
    /// service accounts. Only the cluster itself can verify a token from a Secret. Nodes, the
    /// control plane's own identities and service accounts of `kube-system` do not count.
    #[default]
    Authenticated,
    /// Every client that knows the public name.
    Any,
}

/// Origin of a sleep request for a Cluster with `state: Running`.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SleepReason {
    /// The annotation `yoke.drzzl.io/sleep=now`.
    #[default]
    Annotation,
    /// The Cluster was idle for `spec.sleep.afterInactivity`.
    Inactivity,
    /// A time in `spec.sleep.schedules`.
    Schedule,
}

/// Last use of a Cluster, and the last requests to put it to sleep or to wake it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActivityStatus {
    /// Time of the last sleep request, other than `spec.state`. The Cluster sleeps while this time
    /// is later than `wakeRequestedTime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_requested_time: Option<Time>,
    /// Origin of the last sleep request: `Annotation`, `Inactivity` or `Schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_reason: Option<SleepReason>,
    /// Time of the last use of the Cluster's API, as last read from its store. The operator reads
    /// it only if `spec.sleep.afterInactivity` is set, and only when the idle time may have passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_activity_time: Option<Time>,
    /// Time up to which `spec.sleep.schedules` have been applied. Earlier schedule times are not
    /// applied again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_time: Option<Time>,
    /// Time at which the ingress last received a request that wakes the Cluster. Only the ingress
    /// writes it.
    #[x_kube(validation = Rule::new("self >= oldSelf").message("wakeRequestedTime cannot move back"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_requested_time: Option<Time>,
}

impl ActivityStatus {
    /// Time of the sleep request, if no later wake request exists.
    pub fn asleep_since(&self) -> Option<&Time> {
        let asked = self.sleep_requested_time.as_ref()?;
        let woken = self.wake_requested_time.as_ref();
        woken.is_none_or(|woken| woken < asked).then_some(asked)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn times_are_minutes_or_hours() {
        for (text, minutes) in [
            (Some("1m"), Some(1)),
            (Some("90m"), Some(90)),
            (Some("9999h"), Some(9999 * 60)),
            (Some("0m"), None),
            (Some("5s"), None),
            (Some("h"), None),
            (None, None),
        ] {
            let spec = SleepSpec {
                after_inactivity: text.map(Into::into),
                ..SleepSpec::default()
            };
            assert_eq!(spec.inactivity(), minutes.map(Duration::from_mins), "{text:?}");
        }
    }

    #[test]
    fn the_later_request_wins() {
        let at = |second: Option<i64>| second.map(|second| Time(Timestamp::from_second(second).unwrap()));
        for (rule, sleep, wake, expected) in [
            ("nobody asked", None, None, None),
            ("asked to sleep", Some(5), None, Some(5)),
            ("woken", Some(5), Some(6), None),
            ("at once", Some(5), Some(5), None),
            ("asked again", Some(7), Some(6), Some(7)),
            ("woken, and never asked to sleep", None, Some(6), None),
        ] {
            let activity = ActivityStatus {
                sleep_requested_time: at(sleep),
                wake_requested_time: at(wake),
                ..ActivityStatus::default()
            };
            assert_eq!(activity.asleep_since().cloned(), at(expected), "{rule}");
        }
    }
}
