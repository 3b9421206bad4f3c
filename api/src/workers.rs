//! Workers: how their kubelets follow the version of their Cluster, and the upgrade state that
//! workers report on Nodes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::version::KubernetesVersion;

/// Longest failure message of a worker, in characters.
pub const MESSAGE_MAX: usize = 300;
/// Upper bound of `drainTimeout`.
const DRAIN_TIMEOUT_MAX: Duration = Duration::from_hours(24);

/// How the cluster's workers are upgraded.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersSpec {
    /// How kubelets follow `spec.version`, once the control plane runs that version and is ready.
    /// Nodes that no `yoke-worker` manages are not changed.
    #[serde(default)]
    pub upgrade: UpgradeSpec,
}

/// How kubelets follow the version of their Cluster. For each worker, the operator cordons and
/// drains the Node, and the worker replaces its kubelet. When the Node is ready, it accepts Pods
/// again. If an upgrade fails, that worker returns to its previous kubelet, and no other upgrade is
/// started.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeSpec {
    /// Pauses upgrades. While true, no further worker is upgraded; upgrades in progress finish.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Maximum number of Nodes that may be unavailable at a time, from 1 to 100. Nodes that are
    /// being upgraded count, and so do Nodes that are not ready for any other reason. Default: 1.
    #[serde(default = "default_max_unavailable")]
    #[schemars(range(min = 1, max = 100))]
    pub max_unavailable: u16,
    /// How long a drain respects PodDisruptionBudgets, in seconds, minutes or hours: `0s` to `24h`,
    /// such as `90s`. Pods that are left after this time are deleted. Default: `5m`.
    #[serde(default = "default_drain_timeout")]
    #[schemars(length(max = 5), regex(pattern = r"^(0s|[1-9][0-9]{0,3}[smh])$"))]
    #[x_kube(validation = Rule::new("duration(self) <= duration('24h')").message("drainTimeout must be at most 24h"))]
    pub drain_timeout: String,
}

fn default_max_unavailable() -> u16 {
    1
}

fn default_drain_timeout() -> String {
    "5m".into()
}

impl Default for UpgradeSpec {
    fn default() -> Self {
        Self {
            paused: false,
            max_unavailable: default_max_unavailable(),
            drain_timeout: default_drain_timeout(),
        }
    }
}

/// Versions of the workers' kubelets, and progress of their upgrade.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkersStatus {
    /// Number of Nodes.
    pub total: i32,
    /// Number of Nodes whose kubelet has the Cluster's version.
    pub updated: i32,
    /// Number of Nodes that are being upgraded or are not ready.
    pub unavailable: i32,
    /// Oldest kubelet version of all Nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_version: Option<String>,
    /// Names of the Nodes that are being upgraded, at most sixteen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub upgrading: Vec<String>,
}

/// Parses a drain timeout. `None` if the text is not a valid `drainTimeout`.
pub fn parse_drain_timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let plain = !number.is_empty() && number.len() <= 4 && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse().ok().filter(|_| plain)?;
    let time = match unit {
        "s" => Duration::from_secs(number),
        "m" => Duration::from_mins(number),
        "h" => Duration::from_hours(number),
        _ => return None,
    };
    (time <= DRAIN_TIMEOUT_MAX).then_some(time)
}

/// Upgrade state that a worker reports in the annotation [`crate::labels::KUBELET_UPGRADE`] of its
/// Node: `v1.35.5 Draining`, or `v1.35.5 Failed: <message>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletUpgrade {
    /// Version that the kubelet has, changes to, or failed to change to.
    pub version: KubernetesVersion,
    /// Progress of the upgrade.
    pub state: UpgradeState,
}

/// Progress of a worker's upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradeState {
    /// The kubelet of this version runs; nothing is left to do.
    Done,
    /// Pods are being evicted from the Node.
    Draining,
    /// The kubelet of this version is starting in place of the previous one.
    Replacing,
    /// The upgrade failed with this message, and the previous kubelet runs.
    Failed(String),
}

/// The text is not an upgrade state that a worker writes.
#[derive(Debug, thiserror::Error)]
#[error("the annotation is not an upgrade state that a worker writes, such as `v1.35.5 Done`")]
pub struct KubeletUpgradeError;

impl fmt::Display for KubeletUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version;
        match &self.state {
            UpgradeState::Done => write!(f, "{version} Done"),
            UpgradeState::Draining => write!(f, "{version} Draining"),
            UpgradeState::Replacing => write!(f, "{version} Replacing"),
            UpgradeState::Failed(why) => write!(f, "{version} Failed: {}", sanitize_message(why)),
        }
    }
}

impl FromStr for KubeletUpgrade {
    type Err = KubeletUpgradeError;

    fn from_str(text: &str) -> Result<Self, KubeletUpgradeError> {
        let (version, state) = text.split_once(' ').ok_or(KubeletUpgradeError)?;
        let state = match state {
            "Done" => UpgradeState::Done,
            "Draining" => UpgradeState::Draining,
            "Replacing" => UpgradeState::Replacing,
            other => {
                let why = other.strip_prefix("Failed: ").ok_or(KubeletUpgradeError)?;
                UpgradeState::Failed(sanitize_message(why))
            }
        };
        let version = version.parse().map_err(|_| KubeletUpgradeError)?;
        Ok(Self { version, state })
    }
}

/// Removes control characters and limits the length: the text is shown in terminals and conditions.
fn sanitize_message(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_timeouts_are_bounded() {
        for (text, seconds) in [
            ("0s", Some(0)),
            ("90s", Some(90)),
            ("5m", Some(300)),
            ("24h", Some(86400)),
            ("25h", None),
            ("9999h", None),
            ("", None),
            ("s", None),
            ("5", None),
            ("-5m", None),
            ("+5m", None),
            ("10000s", None),
            ("5ä", None),
        ] {
            let parsed = parse_drain_timeout(text).map(|time| time.as_secs());
            assert_eq!(parsed, seconds, "{text:?}");
        }
        assert!(parse_drain_timeout(&UpgradeSpec::default().drain_timeout).is_some());
    }

    #[test]
    fn upgrade_state_survives_a_round_trip() {
        let version = "v1.35.5".parse().unwrap();
        for (state, text) in [
            (UpgradeState::Done, "v1.35.5 Done"),
            (UpgradeState::Draining, "v1.35.5 Draining"),
            (UpgradeState::Replacing, "v1.35.5 Replacing"),
            (UpgradeState::Failed("a: b".into()), "v1.35.5 Failed: a: b"),
        ] {
            let said = KubeletUpgrade { version, state };
            assert_eq!(said.to_string(), text);
            assert_eq!(text.parse::<KubeletUpgrade>().unwrap(), said);
        }
        for text in ["", "v1.35.5", "v1.35 Done", "v1.35.5 done", "v1.35.5 Failed", "Done"] {
            assert!(text.parse::<KubeletUpgrade>().is_err(), "{text:?}");
        }
        let long = format!("v1.35.5 Failed: \u{1b}[31m{}", "a".repeat(100_000));
        let Ok(UpgradeState::Failed(why)) = long.parse().map(|said: KubeletUpgrade| said.state) else {
            panic!("it is one");
        };
        assert_eq!((why.len(), why.contains('\u{1b}')), (MESSAGE_MAX, false));
    }
}
