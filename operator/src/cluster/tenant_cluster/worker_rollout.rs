//! Decides which workers upgrade to their Cluster's version next. Pure.
//!
//! ```text
//!  Nodes ─▶ Worker ─▶ plan: which are up to date, in progress, failed ─▶ next requests, WorkersStatus, condition
//! ```
//!
//! An annotation of a Node requests an upgrade. The worker removes it when the upgrade is done.
//! Other clients may write these annotations too, but the number of requested Nodes never exceeds
//! the limit.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::ResourceExt as _;
use yoke_api::workers::{KubeletUpgrade, UpgradeSpec, UpgradeState, WorkersStatus, parse_drain_timeout};
use yoke_api::{KubernetesVersion, Reason, labels};

use crate::model::conditions::State;

/// How long a worker may take in addition to the drain. It gives up by itself long before.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Upper bound of the time that counts between two checks. While the API or this process was down,
/// no worker could finish.
const GAP: Duration = Duration::from_secs(120);
/// Maximum number of Nodes listed in a status.
const NODES_IN_STATUS: usize = 16;
/// Maximum number of Nodes named in a message.
const NODES_IN_MESSAGE: usize = 3;

/// A Node, with the fields that matter for its kubelet's version.
#[derive(Clone, Debug)]
pub(crate) struct Worker<'a> {
    pub(crate) node: &'a Node,
    name: String,
    kubelet: Option<KubernetesVersion>,
    ready: bool,
    /// The version that the annotation requests.
    requested: Option<Requested>,
    /// Progress reported by the worker; `None` without a `yoke-worker` that upgrades.
    reported: Option<KubeletUpgrade>,
    /// How long the current request has been unchanged.
    waited: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requested {
    Version(KubernetesVersion),
    /// The annotation is not a version.
    Nonsense,
}

/// State of a worker with respect to its Cluster's version.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Updated,
    /// The kubelet has the version, but the annotation is still there.
    Stale,
    /// An upgrade may be requested.
    Behind,
    /// An upgrade may be requested. Another version was requested before, and the worker may have
    /// started with that.
    Astray,
    /// The failed request was withdrawn, but the worker has not seen that yet. A new request before
    /// that would have no effect.
    Waits,
    /// Requested or started, and not finished.
    Busy,
    Failed(String),
    /// No worker handles requests there, or its kubelet is newer than the API.
    Unmanaged,
}

/// Next step for one Node.
#[derive(Clone, Debug)]
pub(crate) enum UpgradeStep<'a> {
    /// Request an upgrade to the Cluster's version.
    Request(&'a Node),
    /// Withdraw the request.
    Withdraw(&'a Node),
}

/// Steps, status and condition.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) steps: Vec<UpgradeStep<'a>>,
    pub(crate) status: WorkersStatus,
    pub(crate) state: State,
}

/// Current requests and how long they have been unchanged, by the UID of the Node.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpgradeRequests {
    nodes: HashMap<String, (String, Duration)>,
    checked: Option<Instant>,
}

impl UpgradeRequests {
    /// Records the current requests. Without a request, the worker's report counts instead.
    pub(crate) fn record(&mut self, nodes: &[Node], now: Instant) {
        let elapsed = self.checked.replace(now);
        let elapsed = elapsed.map_or(Duration::ZERO, |before| now.saturating_duration_since(before).min(GAP));
        let mut requested = HashMap::new();
        for node in nodes {
            let annotation = |key| node.annotations().get(key);
            let current = annotation(labels::KUBELET_VERSION).or_else(|| annotation(labels::KUBELET_UPGRADE));
            let Some((uid, current)) = node.uid().zip(current) else {
                continue;
            };
            let known = self.nodes.remove(&uid).filter(|(before, _)| before == current);
            let waited = known.map_or(Duration::ZERO, |(_, waited)| waited + elapsed);
            requested.insert(uid, (current.clone(), waited));
        }
        self.nodes = requested;
    }

    fn waited(&self, node: &Node) -> Duration {
        let known = node.metadata.uid.as_ref().and_then(|uid| self.nodes.get(uid));
        known.map_or(Duration::ZERO, |(_, waited)| *waited)
    }
}

impl<'a> Worker<'a> {
    pub(crate) fn of(node: &'a Node, requests: &UpgradeRequests) -> Self {
        let annotation = |key| node.annotations().get(key);
        let requested = annotation(labels::KUBELET_VERSION)
            .map(|text| text.parse().map_or(Requested::Nonsense, Requested::Version));
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        Self {
            node,
            name: node.name_any(),
            kubelet: info.and_then(|info| KubernetesVersion::parse_build(&info.kubelet_version).ok()),
            ready: node.status.as_ref().is_some_and(has_ready_condition),
            requested,
            reported: annotation(labels::KUBELET_UPGRADE).and_then(|text| text.parse().ok()),
            waited: requests.waited(node),
        }
    }

    fn standing(&self, target: KubernetesVersion, patience: Duration) -> Standing {
        let has_target = self.kubelet == Some(target);
        let (requested, has_failed) = (self.requested_version(), self.failure());
        // A started upgrade ends by itself, whatever is requested now.
        let state = self.reported.as_ref().map(|report| &report.state);
        let has_started = matches!(state, Some(UpgradeState::Draining | UpgradeState::Replacing));
        match (requested, has_failed) {
            (Some(requested), Some((version, why))) if requested == target && version == target => {
                return Standing::Failed(why.clone());
            }
            _ if !has_started && requested != Some(target) => {}
            _ if self.waited > patience => {
                return Standing::Failed(format!(
                    "the upgrade was requested {} minutes ago and has not finished",
                    self.waited.as_secs() / 60
                ));
            }
            _ => return Standing::Busy,
        }
        match has_failed.map(|(version, _)| version) {
            _ if has_target && self.requested.is_none() => Standing::Updated,
            _ if has_target => Standing::Stale,
            _ if self.reported.is_none() || self.kubelet.is_none_or(|kubelet| kubelet.minor > target.minor) => {
                Standing::Unmanaged
            }
            Some(version) if version == target => Standing::Waits,
            _ if self.is_awaited() => Standing::Astray,
            _ => Standing::Behind,
        }
    }

    fn requested_version(&self) -> Option<KubernetesVersion> {
        match self.requested {
            Some(Requested::Version(version)) => Some(version),
            Some(Requested::Nonsense) | None => None,
        }
    }

    /// Returns the version that its worker failed to install, and the reason.
    fn failure(&self) -> Option<(KubernetesVersion, &String)> {
        match self.reported.as_ref().map(|report| (report.version, &report.state)) {
            Some((version, UpgradeState::Failed(why))) => Some((version, why)),
            _ => None,
        }
    }

    /// Returns whether its worker may start at any moment, or has started.
    fn is_awaited(&self) -> bool {
        let failed = self.failure().map(|(version, _)| version);
        self.reported.is_some()
            && self
                .requested_version()
                .is_some_and(|requested| failed != Some(requested))
    }

    /// Whether the worker changes its version now, or may start to, or is not ready.
    fn is_unavailable(&self, standing: &Standing) -> bool {
        let is_changing = matches!(standing, Standing::Busy | Standing::Waits) || self.is_awaited();
        is_changing || !self.ready
    }

    fn is_eligible(&self) -> bool {
        self.ready && !self.is_being_removed()
    }

    fn is_being_removed(&self) -> bool {
        self.node.metadata.deletion_timestamp.is_some() || self.node.labels().contains_key(labels::REAPING)
    }
}

fn has_ready_condition(status: &NodeStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Plans the next steps, the status and the condition. `target` is the API server's version.
pub(crate) fn plan_rollout<'a>(workers: &[Worker<'a>], target: KubernetesVersion, spec: &UpgradeSpec) -> Plan<'a> {
    let drain = parse_drain_timeout(&spec.drain_timeout).unwrap_or_default();
    let mut standings: Vec<_> = workers
        .iter()
        .map(|worker| (worker, worker.standing(target, drain.saturating_add(PATIENCE))))
        .collect();
    // Oldest kubelets first: they are the first that a newer API server no longer supports.
    standings.sort_by(|(one, _), (other, _)| (one.kubelet, &one.name).cmp(&(other.kubelet, &other.name)));
    let unavailable = standings
        .iter()
        .filter(|(worker, standing)| worker.is_unavailable(standing))
        .count();
    let failed = standings
        .iter()
        .any(|(_, standing)| matches!(standing, Standing::Failed(_)));
    let may_upgrade = !spec.paused && !failed;
    let room = usize::from(spec.max_unavailable).saturating_sub(unavailable);
    let find = |wanted: Standing| {
        let found = standings.iter().filter(move |(_, standing)| *standing == wanted);
        found
            .map(|(worker, _)| *worker)
            .filter(|worker| may_upgrade && worker.is_eligible())
    };
    let next: Vec<_> = find(Standing::Behind).take(room).collect();
    // Workers with another request already count as unavailable.
    let requested: Vec<_> = find(Standing::Astray).chain(next.iter().copied()).collect();
    let stale = standings.iter().filter(|(worker, standing)| {
        *standing == Standing::Stale || *standing == Standing::Waits && worker.requested.is_some()
    });
    let steps = stale
        .map(|(worker, _)| UpgradeStep::Withdraw(worker.node))
        .chain(requested.iter().map(|worker| UpgradeStep::Request(worker.node)))
        .collect();
    let busy = standings.iter().filter(|(_, standing)| *standing == Standing::Busy);
    let mut upgrading: Vec<_> = busy
        .map(|(worker, _)| *worker)
        .chain(requested.iter().copied())
        .collect();
    upgrading.sort_by(|one, other| one.name.cmp(&other.name));
    let updated = standings
        .iter()
        .filter(|(_, standing)| matches!(standing, Standing::Updated | Standing::Stale))
        .count();
    let status = WorkersStatus {
        total: to_count(workers.len()),
        updated: to_count(updated),
        unavailable: to_count(unavailable + next.len()),
        oldest_version: find_oldest(workers),
        upgrading: upgrading
            .iter()
            .take(NODES_IN_STATUS)
            .map(|worker| worker.name.clone())
            .collect(),
    };
    let state = plan_state(&standings, &upgrading, &status, target, spec.paused);
    Plan { steps, status, state }
}

fn find_oldest(workers: &[Worker<'_>]) -> Option<String> {
    let oldest = workers.iter().filter_map(|worker| worker.kubelet).min();
    oldest.map(|oldest| oldest.to_string())
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
        list_names(found.map(|(worker, _)| worker.name.as_str()))
    };
    let failed = standings.iter().find_map(|(worker, standing)| match standing {
        Standing::Failed(why) => Some((&worker.name, why)),
        _ => None,
    });
    let so_far = format!("{updated} of {total} Nodes have kubelet {target}.");
    if let Some((name, why)) = failed {
        let message = format!(
            "{so_far} The upgrade of Node {name} failed: {why}. No other upgrade starts. To retry, remove the \
         annotation {} from the Node.",
            labels::KUBELET_VERSION
        );
        return State::no(Reason::WorkerUpgradeFailed, message);
    }
    if updated == total {
        return State::yes(Reason::AsExpected, so_far);
    }
    if !upgrading.is_empty() {
        let names = list_names(upgrading.iter().map(|worker| worker.name.as_str()));
        return State::no(Reason::Updating, format!("{so_far} Upgrading: {names}."));
    }
    let waits = names(&|_, standing| *standing == Standing::Waits);
    if !waits.is_empty() {
        let message = format!("{so_far} Waiting for yoke-worker on {waits} to notice the retry.");
        return State::no(Reason::WorkersPending, message);
    }
    if standings
        .iter()
        .all(|(_, standing)| !matches!(standing, Standing::Behind | Standing::Astray))
    {
        let names = names(&|_, standing| *standing == Standing::Unmanaged);
        let message = format!(
            "{so_far} No yoke-worker with upgrade support manages {names}, or the kubelet is newer than the API \
         server."
        );
        return State::no(Reason::WorkersUnmanaged, message);
    }
    if paused {
        return State::no(Reason::Paused, format!("{so_far} spec.workers.upgrade.paused is set."));
    }
    let names = names(&|worker, _| !worker.is_eligible() || worker.is_awaited());
    State::no(
        Reason::WorkersPending,
        format!(
            "{so_far} The next upgrade waits for Nodes that are not ready, are leaving, or are changing to \
         another version: {names}."
        ),
    )
}

/// Formats the first names, and the number of the others.
fn list_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    let listed = names[..names.len().min(NODES_IN_MESSAGE)].join(", ");
    match names.len().saturating_sub(NODES_IN_MESSAGE) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

fn to_count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
