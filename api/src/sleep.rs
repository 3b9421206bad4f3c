//! When a Cluster sleeps though its owner asks for it to run, and by whose connection it wakes.
//!
//! Who asks it to sleep and who wakes it write two times, and the later one counts. Their clocks need not agree: the operator
//! notes a request to sleep later than the last one to wake that it knows, and who wakes names a time later than the sleep that
//! he was told of.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a Cluster does that sleeps without its owner's word (`spec.state`).
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SleepSpec {
    /// Who wakes a Cluster that the annotation `yoke.drzzl.io/sleep=now` has sent to sleep, by a request to its API. With
    /// `spec.state: Asleep` nobody does.
    #[serde(default)]
    pub wake_on_connect: WakeOnConnect,
}

/// Who wakes a Cluster by a request to its API.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WakeOnConnect {
    /// Nobody.
    Never,
    /// Who has a client certificate of the cluster's CA, or a token of one of its service accounts. Nodes, the control plane's
    /// own identities and the service accounts of `kube-system` do not count.
    #[default]
    Authenticated,
    /// Everybody who knows the public name.
    Any,
}

/// Who asked the Cluster to sleep or to wake beside `spec.state`, when.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActivityStatus {
    /// When the annotation `yoke.drzzl.io/sleep=now` was taken up. The Cluster sleeps as long as this is later than
    /// `wakeRequestedTime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_requested_time: Option<Time>,
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
            };
            assert_eq!(activity.asleep_since().cloned(), at(expected), "{rule}");
        }
    }
}
