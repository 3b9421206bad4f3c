//! Decides the next step of a kubelet upgrade. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt as _;
use yoke_api::workers::{KubeletUpgrade, UpgradeState, parse_drain_timeout};
use yoke_api::{KubernetesVersion, labels};

use super::record::{Record, Stage};

/// Drain timeout if the Node's annotation does not set one.
const DRAIN: Duration = Duration::from_secs(300);
/// Responses of the API, one per second, after which the Node must be Ready.
const RESPONSES_MAX: u32 = 180;
/// Exits of the kubelet after which it counts as broken. A few are normal: it may start before its
/// dependencies.
const EXITS_MAX: u32 = 5;
/// Upper bound for a status message of a Node, in characters.
const MESSAGE_MAX: usize = 200;

/// The fields of the Node that matter. Other clients write some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpgradeNode {
    /// Version that the kubelet reports.
    pub(super) kubelet: Option<KubernetesVersion>,
    /// Version that the annotation requests.
    requested: Option<KubernetesVersion>,
    /// Drain timeout, while PodDisruptionBudgets count.
    pub(super) drain: Duration,
    /// Upgrade status that is written on the Node now.
    status: Option<String>,
    pub(super) cordoned: bool,
    /// Time of the last heartbeat with Ready, or why the Node is not Ready.
    ready: Result<Timestamp, String>,
}

impl UpgradeNode {
    pub(super) fn from_node(node: &Node) -> Self {
        let annotation = |key| node.annotations().get(key);
        let status = node.status.as_ref();
        let info = status.and_then(|status| status.node_info.as_ref());
        let mut conditions = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten();
        let ready = conditions.find(|condition| condition.type_ == "Ready");
        Self {
            kubelet: info.and_then(|info| KubernetesVersion::parse_build(&info.kubelet_version).ok()),
            requested: annotation(labels::KUBELET_VERSION).and_then(|text| text.parse().ok()),
            drain: annotation(labels::DRAIN_TIMEOUT)
                .and_then(|text| parse_drain_timeout(text))
                .unwrap_or(DRAIN),
            status: annotation(labels::KUBELET_UPGRADE).cloned(),
            cordoned: node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)),
            ready: read_ready(ready),
        }
    }

    /// Reports whether a kubelet of this version, started at `since`, has reported the Node Ready.
    pub(super) fn is_ready(&self, version: KubernetesVersion, since: Timestamp) -> bool {
        // Times on a Node have no fractions of seconds.
        let is_recent = |at: &Timestamp| at.as_second() >= since.as_second();
        self.kubelet == Some(version) && self.ready.as_ref().is_ok_and(is_recent)
    }
}

fn read_ready(ready: Option<&NodeCondition>) -> Result<Timestamp, String> {
    let Some(ready) = ready else {
        return Err("the Node has no Ready condition".into());
    };
    match &ready.last_heartbeat_time {
        Some(at) if ready.status == "True" => Ok(at.0),
        _ => {
            let why = ready.message.as_deref().unwrap_or_default();
            let why: String = why.chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect();
            Err(format!("the Node is not Ready ({why})"))
        }
    }
}

/// A step of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Write this status on the Node.
    WriteStatus(KubeletUpgrade),
    /// Write this status, and remove the request: it is done.
    ClearRequest(KubeletUpgrade),
    /// Copy the kubelet of this version.
    Prepare(KubernetesVersion),
    /// Cancel: the request was withdrawn, and the kubelet is unchanged.
    Cancel(Record),
    Drain(Record),
    /// Wait for the new kubelet.
    Verify(Record),
    /// Wait for the previous kubelet.
    VerifyPrevious(Record),
    /// Remove the record of a failed upgrade whose request was withdrawn.
    RemoveRecord,
}

pub(super) fn plan(seen: &UpgradeNode, record: Option<&Record>) -> Step {
    let Some(record) = record else {
        let Some(kubelet) = seen.kubelet else {
            return Step::Nothing;
        };
        return match seen.requested {
            Some(requested) if requested != kubelet => Step::Prepare(requested),
            Some(_) => Step::ClearRequest(KubeletUpgrade {
                version: kubelet,
                state: UpgradeState::Done,
            }),
            None => plan_status(seen, kubelet, UpgradeState::Done),
        };
    };
    let is_requested = seen.requested == Some(record.to);
    match record.stage {
        Stage::Draining if is_requested => Step::Drain(record.clone()),
        Stage::Draining => Step::Cancel(record.clone()),
        Stage::Replacing => Step::Verify(record.clone()),
        Stage::Reverting => Step::VerifyPrevious(record.clone()),
        Stage::Failed if is_requested => plan_status(
            seen,
            record.to,
            UpgradeState::Failed(record.why.clone().unwrap_or_default()),
        ),
        Stage::Failed => Step::RemoveRecord,
    }
}

fn plan_status(seen: &UpgradeNode, version: KubernetesVersion, state: UpgradeState) -> Step {
    let status = KubeletUpgrade { version, state };
    if seen.status.as_ref() == Some(&status.to_string()) {
        Step::Nothing
    } else {
        Step::WriteStatus(status)
    }
}

/// Counts how long the upgrade has waited for a kubelet.
#[derive(Debug, Default)]
pub(super) struct KubeletWait {
    responses: u32,
}

impl KubeletWait {
    /// Counts one response. Returns the reason if the kubelet is given up.
    pub(super) fn count_response(&mut self, seen: &UpgradeNode, exits: u32) -> Option<String> {
        self.responses += 1;
        if exits >= EXITS_MAX {
            return Some(format!("the kubelet exited {exits} times"));
        }
        (self.responses >= RESPONSES_MAX).then(|| {
            let why = seen.ready.as_ref().err().cloned();
            why.unwrap_or_else(|| "the kubelet does not update the Node".into())
        })
    }
}

#[cfg(test)]
mod tests;
