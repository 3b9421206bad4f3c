//! Builds the status of a Cluster, and the states of its conditions, from the [`Outcome`] of a
//! reconcile. Pure; `object` writes the result.

mod phase;
mod states;
mod usage;

pub use crate::cluster::status::states::plan_accepted;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use yoke_api::cluster::{CaGeneration, ClusterStatus, EndpointStatus, Phase, PkiStatus, SecretRef, StorageStatus};
use yoke_api::names::kubeconfig_secret;
use yoke_api::{Cluster, ConditionType};

use crate::cluster::outcome::{Outcome, Store};
use crate::cluster::sleep::state;
use crate::cluster::status::phase::{plan_history, plan_phase};
use crate::cluster::status::states::plan_states;
use crate::config::Config;
use crate::model::conditions::{self, State};
use crate::model::control_plane::ControlPlane;
use crate::model::identity::Identity;

/// A published store size stays while it is within this many bytes, or within a tenth, of the real
/// size.
const NEAR_BYTES: u64 = 1 << 20;

/// Condition types whose changes are published as events. The first one is omitted when a Cluster
/// is new.
pub const REPORTED: [ConditionType; 5] = [
    ConditionType::Asleep,
    ConditionType::Accepted,
    ConditionType::Ready,
    ConditionType::StoreReady,
    ConditionType::WorkersUpdated,
];

/// Condition types whose changes are published as events when a reconcile fails.
pub const REPORTED_ON_FAILURE: [ConditionType; 3] =
    [ConditionType::Accepted, ConditionType::Degraded, ConditionType::Ready];

/// Builds the status to write, and the states of its conditions.
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
        // A Cluster that never ran has no endpoint: no host name can be built from a name that is
        // too long.
        endpoint: (outcome.accepted.is_ok() || outcome.maintained)
            .then(|| build_endpoint(identity, config))
            .or(before.endpoint),
        kubeconfig_ref: outcome
            .published
            .then(|| SecretRef {
                name: kubeconfig_secret(&identity.cluster),
            })
            .or(before.kubeconfig_ref),
        storage: plan_storage(before.storage, identity, &outcome.store),
        pki: outcome.ca_not_after.map(build_pki).or(before.pki),
        // Only the time of last use; the writer of a sleep or wake request owns the other fields.
        activity: state::plan_last_used(before.activity, outcome.last_used),
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

/// The store's status, with the previous one while the account is not known.
fn plan_storage(before: Option<StorageStatus>, identity: &Identity, store: &Store) -> Option<StorageStatus> {
    let Some(account) = store.account.clone() else {
        return before;
    };
    let bytes = before.and_then(|storage| storage.bytes);
    Some(StorageStatus {
        account,
        stream: identity.id.stream(),
        bytes: plan_bytes(bytes, store.bytes),
    })
}

fn build_pki(not_after: Timestamp) -> PkiStatus {
    PkiStatus {
        current: Some(CaGeneration {
            generation: 1,
            not_after: Time(not_after),
        }),
    }
}

/// The store size to publish: the published one until the real size differs much. The size of an
/// awake store changes all the time.
fn plan_bytes(reported_bytes: Option<i64>, found: Option<i64>) -> Option<i64> {
    let found = found?;
    let is_near =
        |reported_bytes: &i64| found.abs_diff(*reported_bytes) <= NEAR_BYTES.max(reported_bytes.unsigned_abs() / 10);
    Some(reported_bytes.filter(is_near).unwrap_or(found))
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
        address: crate::config::ingress_url(config),
        audience: issuer.clone(),
        issuer,
    }
}

/// Builds the status of a Cluster that is being deleted, or whose reconcile failed before it
/// observed anything.
pub fn plan_partial_status(
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

/// Whether two statuses are equal, apart from the order of their conditions.
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
