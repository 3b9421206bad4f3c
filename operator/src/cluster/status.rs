//! What a Cluster's status says, from what was found and done. Pure.

mod phase;
mod states;
mod usage;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use yoke_api::cluster::{CaGeneration, ClusterStatus, EndpointStatus, Phase, PkiStatus, SecretRef, StorageStatus};
use yoke_api::ingress::Asleep;
use yoke_api::names::kubeconfig_secret;
use yoke_api::{Cluster, ConditionType, Reason};

use super::gate::ControlPlane;
use super::identity::Identity;
use super::rest::{self, Rest};
use super::validate::Refusal;
use super::workers::Workers;
use crate::conditions::{self, State};
use crate::config::Config;
use crate::notice;
use phase::{plan_history, plan_phase};
use states::plan_states;

pub use states::plan_accepted;

/// By how much a store may differ from what its status tells, or by a tenth.
const NEAR_BYTES: u64 = 1 << 20;

/// The types of conditions whose changes are told by events; of the first the beginning is not.
pub const TOLD: [ConditionType; 5] = [
    ConditionType::Asleep,
    ConditionType::Accepted,
    ConditionType::Ready,
    ConditionType::StoreReady,
    ConditionType::WorkersUpdated,
];

/// Those that are told where a reconciliation failed.
pub const TOLD_OF_FAILURE: [ConditionType; 3] =
    [ConditionType::Accepted, ConditionType::Degraded, ConditionType::Ready];

/// What a tenant still waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The reason.
    pub reason: Reason,
    /// An error's text.
    pub why: String,
}

impl From<String> for Lack {
    fn from(why: String) -> Self {
        Self {
            reason: Reason::APIServerNotReady,
            why,
        }
    }
}

/// What one reconciliation found and did.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether the spec was accepted.
    pub accepted: Result<(), Refusal>,
    /// Whether the operator leaves everything as it is.
    pub paused: bool,
    /// Whether the spec was refused, and the control plane that it once asked for is kept alive.
    pub kept: bool,
    /// Whether a control plane is asked for; of a spec that is not carried out, whether one was.
    pub rest: Rest,
    /// What the ingress tells those who connect while no API answers.
    pub told: Option<Asleep>,
    /// Version to run; absent if the spec was refused.
    pub version: Option<String>,
    /// Version that is asked for, if that one comes before it.
    pub heads_for: Option<String>,
    /// Account, stream, bytes.
    pub store: State,
    /// Public key of the NATS account.
    pub account: Option<String>,
    /// Bytes in the streams.
    pub bytes: Option<i64>,
    /// Whether all is issued and copied.
    pub certificates: State,
    /// End of the signing CA's life.
    pub ca_not_after: Option<Timestamp>,
    /// The control plane.
    pub control_plane: ControlPlane,
    /// Whether the API answers inside.
    pub inside: Result<(), String>,
    /// Whether what a tenant needs beside it is there: the ingress, the bindings in its API, its controllers at work.
    pub outside: Result<(), Lack>,
    /// Whether that is believed for moments, while the operator itself reaches nothing yet.
    pub believed: bool,
    /// Whether ingress and tenant have been told.
    pub published: bool,
    /// Number of Nodes.
    pub nodes: Option<i32>,
    /// Whether it sleeps for longer than the certificates of its Nodes may hold.
    pub strands_nodes: bool,
    /// Whether it could go to sleep by itself, of one that is awake.
    pub sleep_possible: Option<State>,
    /// When somebody last used its API, if that was looked at.
    pub used: Option<Timestamp>,
    /// Its add-ons, once they were looked at.
    pub addons: Option<State>,
    /// Its workers, once they were looked at.
    pub workers: Option<Workers>,
    /// Whether its pod was lost lately with its machine.
    pub lost: bool,
    /// Whether it waits for its turn to be made, or started.
    pub queued: bool,
    /// What is to become of it, if its machine is about to go.
    pub leaving: Option<notice::State>,
    /// What failed unexpectedly.
    pub failure: Option<String>,
}

impl Outcome {
    /// Whether no other pod has come in time to take it over from a machine that is about to go.
    pub const fn takeover_failed(&self) -> bool {
        matches!(self.leaving, Some(notice::State::Failed(_)))
    }

    /// Whether a part of the control plane fails, and its API does not.
    pub const fn fails_in_part(&self) -> bool {
        matches!(self.control_plane, ControlPlane::Running { failing: Some(_), .. })
    }
}

/// The status to write.
pub fn plan_status(
    cluster: &Cluster,
    identity: &Identity,
    config: &Config,
    outcome: &Outcome,
    now: Timestamp,
) -> (ClusterStatus, Vec<(ConditionType, State)>) {
    let before = cluster.status.clone().unwrap_or_default();
    let generation = cluster.metadata.generation;
    let states = plan_states(&before, outcome, generation);
    let ready = states
        .iter()
        .any(|(type_, state)| *type_ == ConditionType::Ready && state.status == Some(true));
    let history = plan_history(&before.history, outcome, now);
    let completed = history
        .iter()
        .find(|entry| entry.completed.is_some())
        .map(|entry| entry.version.clone());
    let status = ClusterStatus {
        observed_generation: generation,
        phase: Some(plan_phase(outcome, &before, &history, ready, now)),
        version: completed.or(before.version),
        history,
        // One that never ran has none, and from a name that is too long no host name can be made.
        endpoint: (outcome.accepted.is_ok() || outcome.kept)
            .then(|| build_endpoint(identity, config))
            .or(before.endpoint),
        kubeconfig_ref: outcome
            .published
            .then(|| SecretRef {
                name: kubeconfig_secret(&identity.cluster),
            })
            .or(before.kubeconfig_ref),
        storage: outcome
            .account
            .clone()
            .map(|account| StorageStatus {
                account,
                stream: identity.id.stream(),
                bytes: plan_bytes(before.storage.as_ref().and_then(|storage| storage.bytes), outcome.bytes),
            })
            .or(before.storage),
        pki: outcome
            .ca_not_after
            .map(|end| PkiStatus {
                current: Some(CaGeneration {
                    generation: 1,
                    not_after: Time(end),
                }),
            })
            .or(before.pki),
        // Of the rest, who asks for it writes it.
        activity: rest::plan_used(before.activity, outcome.used),
        usage: usage::plan_usage(before.usage, outcome, config, now),
        nodes: outcome.nodes.or(before.nodes),
        workers: outcome
            .workers
            .as_ref()
            .map(|workers| workers.status.clone())
            .or(before.workers),
        conditions: conditions::build_conditions(&states, &before.conditions, generation, now),
    };
    (status, states)
}

/// The size of a store to tell: what was told before, until it is far from that. One that is awake differs with each look.
fn plan_bytes(told: Option<i64>, found: Option<i64>) -> Option<i64> {
    let found = found?;
    let is_near = |told: &i64| found.abs_diff(*told) <= NEAR_BYTES.max(told.unsigned_abs() / 10);
    Some(told.filter(is_near).unwrap_or(found))
}

fn build_endpoint(identity: &Identity, config: &Config) -> EndpointStatus {
    let name = identity.public_name.as_str();
    let issuer = identity.public_name.issuer();
    EndpointStatus {
        url: match config.ingress.port {
            443 => format!("https://{name}"),
            port => format!("https://{name}:{port}"),
        },
        server_name: name.to_owned(),
        address: super::build::secrets::ingress_url(config),
        audience: issuer.clone(),
        issuer,
    }
}

/// The status of a Cluster that is being deleted, or whose reconciliation failed before anything was found out.
pub fn plan_short(
    cluster: &Cluster,
    phase: Phase,
    changes: &[(ConditionType, State)],
    now: Timestamp,
) -> ClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    let built: Vec<Condition> =
        conditions::build_conditions(changes, &status.conditions, cluster.metadata.generation, now);
    status
        .conditions
        .retain(|old| !built.iter().any(|new| new.type_ == old.type_));
    let mut all = built;
    all.append(&mut status.conditions);
    status.conditions = all;
    status.phase = Some(phase);
    status.observed_generation = cluster.metadata.generation;
    status
}

/// Whether two statuses say the same.
pub fn is_same(one: &ClusterStatus, other: &ClusterStatus) -> bool {
    let sorted = |status: &ClusterStatus| {
        let mut status = status.clone();
        status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        status
    };
    sorted(one) == sorted(other)
}

#[cfg(test)]
#[path = "status/tests.rs"]
mod tests;
