//! What is to be done about the kubelet's version next. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt as _;
use yoke_api::workers::{KubeletUpgrade, UpgradeState, parse_drain_timeout};
use yoke_api::{KubernetesVersion, labels};

use super::record::{Record, Stage};

/// Where the Node does not say how long.
const DRAIN: Duration = Duration::from_secs(300);
/// Answers of the API, one a second, until which a kubelet must have the Node ready.
const ANSWERS: u32 = 180;
/// How often it may end by then: it may have been started before what it needs.
const ENDS: u32 = 5;
/// Of what a Node says.
const SAID_MAX: usize = 200;

/// The Node, which others write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The version that the kubelet says it is.
    pub(super) kubelet: Option<KubernetesVersion>,
    /// The version that is asked for.
    asked: Option<KubernetesVersion>,
    /// How long budgets count.
    pub(super) drain: Duration,
    /// What the Node says of how far it is.
    said: Option<String>,
    pub(super) cordoned: bool,
    /// When the kubelet said so last, if it says that the Node is ready; or why it is not.
    ready: Result<Timestamp, String>,
}

impl Seen {
    pub(super) fn of(node: &Node) -> Self {
        let note = |key| node.annotations().get(key);
        let status = node.status.as_ref();
        let info = status.and_then(|status| status.node_info.as_ref());
        let mut conditions = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten();
        let ready = conditions.find(|condition| condition.type_ == "Ready");
        Self {
            kubelet: info.and_then(|info| KubernetesVersion::parse_build(&info.kubelet_version).ok()),
            asked: note(labels::KUBELET_VERSION).and_then(|text| text.parse().ok()),
            drain: note(labels::DRAIN_TIMEOUT)
                .and_then(|text| parse_drain_timeout(text))
                .unwrap_or(DRAIN),
            said: note(labels::KUBELET_UPGRADE).cloned(),
            cordoned: node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)),
            ready: read_ready(ready),
        }
    }

    /// Whether a kubelet of this version, which was started then, has said that the Node is ready.
    pub(super) fn is_ready(&self, version: KubernetesVersion, since: Timestamp) -> bool {
        // What is written on a Node has no parts of seconds.
        let said = |at: &Timestamp| at.as_second() >= since.as_second();
        self.kubelet == Some(version) && self.ready.as_ref().is_ok_and(said)
    }
}

fn read_ready(ready: Option<&NodeCondition>) -> Result<Timestamp, String> {
    let Some(ready) = ready else {
        return Err("the Node does not say whether it is ready".into());
    };
    match &ready.last_heartbeat_time {
        Some(at) if ready.status == "True" => Ok(at.0),
        _ => {
            let why = ready.message.as_deref().unwrap_or_default();
            let why: String = why.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
            Err(format!("the Node is not ready ({why})"))
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Write on the Node how far it is.
    Say(KubeletUpgrade),
    /// The same, and take away what was asked: it is so.
    Clear(KubeletUpgrade),
    /// Get the kubelet of this version.
    Begin(KubernetesVersion),
    /// Nobody asks for it any more, and the kubelet is as it was.
    Abandon(Record),
    Drain(Record),
    /// Wait for the new kubelet.
    Verify(Record),
    /// Wait for the one that it had.
    Return(Record),
    /// Nobody asks any more for what has failed.
    Forget,
}

pub(super) fn plan(seen: &Seen, record: Option<&Record>) -> Step {
    let Some(record) = record else {
        let Some(kubelet) = seen.kubelet else {
            return Step::Nothing;
        };
        return match seen.asked {
            Some(asked) if asked != kubelet => Step::Begin(asked),
            Some(_) => Step::Clear(KubeletUpgrade {
                version: kubelet,
                state: UpgradeState::Done,
            }),
            None => say(seen, kubelet, UpgradeState::Done),
        };
    };
    let is_asked = seen.asked == Some(record.to);
    match record.stage {
        Stage::Draining if is_asked => Step::Drain(record.clone()),
        Stage::Draining => Step::Abandon(record.clone()),
        Stage::Replacing => Step::Verify(record.clone()),
        Stage::Reverting => Step::Return(record.clone()),
        Stage::Failed if is_asked => say(
            seen,
            record.to,
            UpgradeState::Failed(record.why.clone().unwrap_or_default()),
        ),
        Stage::Failed => Step::Forget,
    }
}

fn say(seen: &Seen, version: KubernetesVersion, state: UpgradeState) -> Step {
    let said = KubeletUpgrade { version, state };
    if seen.said.as_ref() == Some(&said.to_string()) {
        Step::Nothing
    } else {
        Step::Say(said)
    }
}

/// How long a kubelet has been waited for.
#[derive(Debug, Default)]
pub(super) struct Progress {
    answers: u32,
}

impl Progress {
    /// Why it is not waited for any longer, if it is not.
    pub(super) fn note(&mut self, seen: &Seen, ends: u32) -> Option<String> {
        self.answers += 1;
        if ends >= ENDS {
            return Some(format!("it ended {ends} times"));
        }
        (self.answers >= ANSWERS).then(|| {
            let why = seen.ready.as_ref().err().cloned();
            why.unwrap_or_else(|| "it does not say on the Node that it runs".into())
        })
    }
}

#[cfg(test)]
mod tests;
