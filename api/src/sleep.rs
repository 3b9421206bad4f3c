//! When a Cluster sleeps though its owner asks for it to run, and by whose connection it wakes.
//!
//! Who asks it to sleep and who wakes it write two times, and the later one counts. Their clocks need not agree: the operator
//! notes a request to sleep later than the last one to wake that it knows, and who wakes names a time later than the sleep that
//! he was told of.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::parse_time;

/// When a Cluster sleeps without its owner's word (`spec.state`), and what it does then.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SleepSpec {
    /// How long nobody has used the Cluster's API when it goes to sleep, in minutes or hours: at least `1m`. Without this, it
    /// never does. Nodes, the control plane's own identities and the service accounts of `kube-system` do not count; a request
    /// of anybody else that is open, such as a watch, does as long as it is. A JoinToken that holds keeps its Cluster awake.
    /// To set this for the first time, or to remove it, starts the control plane again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5), regex(pattern = r"^[1-9][0-9]{0,3}[mh]$"))]
    pub after_inactivity: Option<String>,

    /// Clients whose requests do not count for `afterInactivity`, and do not wake the Cluster: a whole `User-Agent`, or the
    /// beginning of one with a `*` after it, such as `k9s/*`. A change starts the control plane again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"), inner(length(max = 128), regex(pattern = r"^[ -)+-~]+[*]?$")))]
    pub ignore_user_agents: Vec<String>,

    /// When the Cluster sleeps and wakes by the clock. Of what was due while nobody was there to do it, the last is done. A change
    /// of the Cluster's spec makes up for nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub schedules: Vec<SleepSchedule>,

    /// Whether the Cluster goes to sleep by itself while it has Nodes, of which one was heard within five minutes. What runs on
    /// them goes on while it sleeps, and nothing is scheduled, healed or scaled. The annotation `yoke.drzzl.io/sleep=now` and
    /// `spec.state: Asleep` do not ask. Kubelets cannot renew their certificates meanwhile: with `Allow`, one that has slept
    /// for 6 to 8 % of a kubelet's certificate's lifetime (5 to 7 days) is woken for that, if `afterInactivity` or `schedules` have it
    /// sleep again and somebody may wake it. Of another the condition `Asleep` says what that may cost.
    #[serde(default)]
    pub with_workers: WithWorkers,

    /// Who wakes a Cluster that sleeps without `spec.state: Asleep`, by a request to its API. With that nobody does.
    #[serde(default)]
    pub wake_on_connect: WakeOnConnect,
}

/// When a Cluster sleeps and wakes by the clock.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("has(self.sleep) || has(self.wake)").message("a schedule has sleep, wake, or both"))]
#[serde(rename_all = "camelCase")]
pub struct SleepSchedule {
    /// When it goes to sleep, as a cron expression of five fields, such as `0 20 * * 1-5`, without `L`. Who connects wakes it, as
    /// `wakeOnConnect` says. While `SleepPossible` is false it goes to sleep as soon as nothing stands against it any more, until
    /// it is time to wake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), regex(pattern = r"^([0-9A-Za-z*/,#?-]+ ){4}[0-9A-Za-z*/,#?-]+$"))]
    pub sleep: Option<String>,
    /// When it wakes, in the same way; unless its owner has it sleep by `spec.state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), regex(pattern = r"^([0-9A-Za-z*/,#?-]+ ){4}[0-9A-Za-z*/,#?-]+$"))]
    pub wake: Option<String>,
    /// Where these times are shown by a clock, such as `Europe/Berlin`; UTC if not given. A time that is left out there when
    /// clocks change comes when they do, and one that is there twice comes the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = r"^[A-Za-z][-A-Za-z0-9_+]*(/[-A-Za-z0-9_+]+)*$"))]
    pub time_zone: Option<String>,
}

impl SleepSpec {
    /// How long nobody has used it when it goes to sleep.
    pub fn inactivity(&self) -> Option<Duration> {
        parse_time(self.after_inactivity.as_deref()?).filter(|time| !time.is_zero())
    }
}

/// Whether a Cluster goes to sleep by itself while it has Nodes.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WithWorkers {
    /// It stays awake.
    #[default]
    Prevent,
    /// It goes to sleep.
    Allow,
}

/// Who wakes a Cluster by a request to its API.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WakeOnConnect {
    /// Nobody.
    Never,
    /// Who has a client certificate of the cluster's CA, or a token of one of its service accounts that expires: one of a Secret
    /// can be checked by the cluster alone. Nodes, the control plane's own identities and the service accounts of `kube-system` do
    /// not count.
    #[default]
    Authenticated,
    /// Everybody who knows the public name.
    Any,
}

/// What sends a Cluster to sleep beside `spec.state`.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SleepReason {
    /// The annotation `yoke.drzzl.io/sleep=now`.
    #[default]
    Annotation,
    /// Nobody used it for as long as `spec.sleep.afterInactivity` says.
    Inactivity,
    /// `spec.sleep.schedules`.
    Schedule,
}

/// Who used the Cluster, and asked it to sleep or to wake beside `spec.state`, when.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActivityStatus {
    /// When it was sent to sleep. The Cluster sleeps as long as this is later than `wakeRequestedTime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_requested_time: Option<Time>,
    /// By what it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_reason: Option<SleepReason>,
    /// When somebody last used the Cluster's API, as it was last looked at: with `spec.sleep.afterInactivity`, and only when it
    /// may be time to sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_activity_time: Option<Time>,
    /// Up to when `spec.sleep.schedules` were done, or were not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_time: Option<Time>,
    /// When the ingress last saw a request that wakes the Cluster. The ingress alone writes it.
    #[x_kube(validation = Rule::new("self >= oldSelf").message("wakeRequestedTime never goes back"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_requested_time: Option<Time>,
}

impl ActivityStatus {
    /// When it was asked to sleep, if nobody has asked for it since.
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
    fn the_later_word_counts() {
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
