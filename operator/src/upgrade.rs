//! Which workers are brought to their Cluster's version next. Pure.
//!
//! ```text
//!  Nodes ─▶ Worker ─▶ plan: who is up to date, who is at it, who has failed ─▶ whom to ask next, WorkersStatus, condition
//! ```
//!
//! A Node is asked by an annotation, which its worker takes away when it has done as asked. What says so is what others may write:
//! whatever it says, no more Nodes are asked than the limit allows.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::ResourceExt as _;
use yoke_api::workers::{KubeletUpgrade, UpgradeSpec, UpgradeState, WorkersStatus, parse_drain_timeout};
use yoke_api::{KubernetesVersion, Reason, labels};

use crate::conditions::State;

/// How long a worker may take beside the drain. It gives up by itself long before.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Nodes that are named in a status.
const NAMED: usize = 16;
/// Nodes that are named in a sentence.
const TOLD: usize = 3;

/// A Node, as far as its kubelet's version is concerned.
#[derive(Clone, Debug)]
pub(crate) struct Worker<'a> {
    pub(crate) node: &'a Node,
    name: String,
    kubelet: Option<KubernetesVersion>,
    ready: bool,
    /// The version that it is asked to come to.
    asked: Option<Asked>,
    /// What its worker says; nothing where no worker does that.
    said: Option<KubeletUpgrade>,
    /// For how long it has been asked for the same.
    waited: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Version(KubernetesVersion),
    /// Somebody wrote something else.
    Nonsense,
}

/// What a worker is to its Cluster's version.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Updated,
    /// It has what is asked for, and still bears an older wish.
    Stale,
    /// It may be asked.
    Behind,
    /// It was asked, and has not come to an end.
    Busy,
    Failed(String),
    /// Nobody there does what is asked, or its kubelet is newer than the API.
    Unmanaged,
}

/// What is to be done about one Node.
#[derive(Clone, Debug)]
pub(crate) enum Step<'a> {
    /// Ask it to come to the Cluster's version.
    Ask(&'a Node),
    /// Take back what it was asked.
    Withdraw(&'a Node),
}

/// What is to be done, and what is said.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) steps: Vec<Step<'a>>,
    pub(crate) status: WorkersStatus,
    pub(crate) state: State,
}

/// Since when Nodes have been asked for what, by UID.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asking(HashMap<String, (String, Instant)>);

impl Asking {
    /// Notes what Nodes are asked now.
    pub(crate) fn note(&mut self, nodes: &[Node], now: Instant) {
        let mut asked = HashMap::new();
        for node in nodes {
            let Some((uid, version)) = node.uid().zip(node.annotations().get(labels::KUBELET_VERSION)) else {
                continue;
            };
            let known = self.0.remove(&uid).filter(|(before, _)| before == version);
            asked.insert(uid, known.unwrap_or_else(|| (version.clone(), now)));
        }
        self.0 = asked;
    }

    fn waited(&self, node: &Node, now: Instant) -> Duration {
        let known = node.metadata.uid.as_ref().and_then(|uid| self.0.get(uid));
        known.map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(*since))
    }
}

impl<'a> Worker<'a> {
    pub(crate) fn of(node: &'a Node, asking: &Asking, now: Instant) -> Self {
        let note = |key| node.annotations().get(key);
        let asked = note(labels::KUBELET_VERSION).map(|text| text.parse().map_or(Asked::Nonsense, Asked::Version));
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        Self {
            node,
            name: node.name_any(),
            kubelet: info.and_then(|info| KubernetesVersion::parse_build(&info.kubelet_version).ok()),
            ready: node.status.as_ref().is_some_and(is_ready),
            asked,
            said: note(labels::KUBELET_UPGRADE).and_then(|text| text.parse().ok()),
            waited: asking.waited(node, now),
        }
    }

    fn standing(&self, target: KubernetesVersion, patience: Duration) -> Standing {
        let has_it = self.kubelet == Some(target);
        let said = |version| {
            self.said
                .as_ref()
                .filter(|said| said.version == version)
                .map(|said| &said.state)
        };
        match self.asked {
            None if has_it => Standing::Updated,
            Some(Asked::Version(asked)) if asked == target => match said(target) {
                Some(UpgradeState::Failed(why)) => Standing::Failed(why.clone()),
                _ if self.waited > patience => Standing::Failed(format!(
                    "it was asked {} minutes ago, and has not come to an end",
                    self.waited.as_secs() / 60
                )),
                _ => Standing::Busy,
            },
            // It ends by itself, one way or the other.
            Some(Asked::Version(other))
                if matches!(said(other), Some(UpgradeState::Draining | UpgradeState::Replacing)) =>
            {
                Standing::Busy
            }
            Some(_) if has_it => Standing::Stale,
            _ if self.said.is_none() || self.kubelet.is_none_or(|kubelet| kubelet.minor > target.minor) => {
                Standing::Unmanaged
            }
            _ => Standing::Behind,
        }
    }

    fn is_leaving(&self) -> bool {
        self.node.metadata.deletion_timestamp.is_some() || self.node.labels().contains_key(labels::REAPING)
    }
}

fn is_ready(status: &NodeStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whom to ask, and what to say. `target` is what the API server says it is.
pub(crate) fn plan<'a>(workers: &[Worker<'a>], target: KubernetesVersion, spec: &UpgradeSpec) -> Plan<'a> {
    let drain = parse_drain_timeout(&spec.drain_timeout).unwrap_or_default();
    let mut standings: Vec<_> = workers
        .iter()
        .map(|worker| (worker, worker.standing(target, drain.saturating_add(PATIENCE))))
        .collect();
    // Who is furthest behind is closest to what an API server does not take any more.
    standings.sort_by(|(one, _), (other, _)| (one.kubelet, &one.name).cmp(&(other.kubelet, &other.name)));
    let unavailable = standings
        .iter()
        .filter(|(worker, standing)| *standing == Standing::Busy || !worker.ready)
        .count();
    let failed = standings
        .iter()
        .any(|(_, standing)| matches!(standing, Standing::Failed(_)));
    let room = if spec.paused || failed {
        0
    } else {
        usize::from(spec.max_unavailable).saturating_sub(unavailable)
    };
    let next = standings
        .iter()
        .filter(|(worker, standing)| *standing == Standing::Behind && worker.ready && !worker.is_leaving());
    let asked: Vec<_> = next.take(room).map(|(worker, _)| *worker).collect();
    let stale = standings.iter().filter(|(_, standing)| *standing == Standing::Stale);
    let steps = stale
        .map(|(worker, _)| Step::Withdraw(worker.node))
        .chain(asked.iter().map(|worker| Step::Ask(worker.node)))
        .collect();
    let busy = standings.iter().filter(|(_, standing)| *standing == Standing::Busy);
    let mut upgrading: Vec<_> = busy.map(|(worker, _)| *worker).chain(asked.iter().copied()).collect();
    upgrading.sort_by(|one, other| one.name.cmp(&other.name));
    let updated = standings
        .iter()
        .filter(|(_, standing)| matches!(standing, Standing::Updated | Standing::Stale))
        .count();
    let status = WorkersStatus {
        total: to_count(workers.len()),
        updated: to_count(updated),
        unavailable: to_count(unavailable + asked.len()),
        oldest_version: workers
            .iter()
            .filter_map(|worker| worker.kubelet)
            .min()
            .map(|oldest| oldest.to_string()),
        upgrading: upgrading.iter().take(NAMED).map(|worker| worker.name.clone()).collect(),
    };
    let state = plan_state(&standings, &upgrading, &status, target, spec.paused);
    Plan { steps, status, state }
}

fn plan_state(
    standings: &[(&Worker<'_>, Standing)],
    upgrading: &[&Worker<'_>],
    status: &WorkersStatus,
    target: KubernetesVersion,
    paused: bool,
) -> State {
    let WorkersStatus { total, updated, .. } = status;
    let names = |is: &dyn Fn(&Worker<'_>, &Standing) -> bool| {
        let found = standings.iter().filter(|(worker, standing)| is(worker, standing));
        name(found.map(|(worker, _)| worker.name.as_str()))
    };
    let failed = standings.iter().find_map(|(worker, standing)| match standing {
        Standing::Failed(why) => Some((&worker.name, why)),
        _ => None,
    });
    let so_far = format!("{updated} of {total} Nodes have kubelet {target}.");
    if let Some((name, why)) = failed {
        let message = format!(
            "{so_far} Node {name} did not come to it: {why}. No other is begun with. To try it again, take the annotation {} \
             away from the Node.",
            labels::KUBELET_VERSION
        );
        return State::no(Reason::WorkerUpgradeFailed, message);
    }
    if updated == total {
        return State::yes(Reason::AsExpected, so_far);
    }
    if !upgrading.is_empty() {
        let names = name(upgrading.iter().map(|worker| worker.name.as_str()));
        return State::no(Reason::Updating, format!("{so_far} Being upgraded: {names}."));
    }
    if standings.iter().all(|(_, standing)| *standing != Standing::Behind) {
        let names = names(&|_, standing| *standing == Standing::Unmanaged);
        let message =
            format!("{so_far} No yoke-worker that upgrades keeps {names}, or the kubelet is newer than the API.");
        return State::no(Reason::WorkersUnmanaged, message);
    }
    if paused {
        return State::no(Reason::Paused, format!("{so_far} spec.workers.upgrade.paused is set."));
    }
    let names = names(&|worker, _| !worker.ready || worker.is_leaving());
    State::no(
        Reason::WorkersPending,
        format!("{so_far} The next one waits for Nodes that are not ready, or leave: {names}."),
    )
}

/// The first names, and how many there are beside them.
fn name<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    let told = names[..names.len().min(TOLD)].join(", ");
    match names.len().saturating_sub(TOLD) {
        0 => told,
        more => format!("{told} and {more} more"),
    }
}

fn to_count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
