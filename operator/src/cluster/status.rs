//! What a Cluster's status says, from what was found and done. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use yoke_api::cluster::{
    CaGeneration, ClusterStatus, EndpointStatus, Phase, PkiStatus, SecretRef, StorageStatus, VersionHistory,
};
use yoke_api::names::kubeconfig_secret;
use yoke_api::{Cluster, ConditionType, Reason};

use super::gate::ControlPlane;
use super::identity::Identity;
use super::validate::Refusal;
use crate::conditions::{self, State};
use crate::config::Config;

const HISTORY_LENGTH: usize = 10;
/// A control plane that does not answer for longer than this after its start is unavailable, no longer starting.
const START_TIME: SignedDuration = SignedDuration::from_secs(60);

/// The types of conditions whose changes are told by events.
pub const TOLD: [ConditionType; 3] = [ConditionType::Accepted, ConditionType::Ready, ConditionType::StoreReady];

/// Those that are told where a reconciliation failed.
pub const TOLD_OF_FAILURE: [ConditionType; 3] =
    [ConditionType::Accepted, ConditionType::Degraded, ConditionType::Ready];

/// What is not looked at while nothing is done for a Cluster.
const NOT_LOOKED_AT: [ConditionType; 5] = [
    ConditionType::CertificatesReady,
    ConditionType::APIServerAvailable,
    ConditionType::EndpointPublished,
    ConditionType::StoreReady,
    ConditionType::Asleep,
];
/// What a refused spec asks for, and is not carried out while the rest is kept alive.
const NOT_CARRIED_OUT: [ConditionType; 2] = [ConditionType::StoreReady, ConditionType::Asleep];

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
    /// Whether no control plane is asked for; of a spec that is not carried out, whether none was.
    pub asleep: bool,
    /// Version to run; absent if the spec was refused.
    pub version: Option<String>,
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
    /// What failed unexpectedly.
    pub failure: Option<String>,
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
    let states = plan_states(&before, outcome);
    let ready = states
        .iter()
        .any(|(type_, state)| *type_ == ConditionType::Ready && state.status == Some(true));
    let history = plan_history(&before.history, outcome, now);
    let completed = history
        .iter()
        .find(|entry| entry.completed.is_some())
        .map(|entry| entry.version.clone());
    let generation = cluster.metadata.generation;
    let status = ClusterStatus {
        observed_generation: generation,
        phase: Some(plan_phase(outcome, &before, &history, ready, now)),
        version: completed.or(before.version),
        history,
        endpoint: Some(build_endpoint(identity, config)),
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
                bytes: outcome.bytes,
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
        nodes: outcome.nodes.or(before.nodes),
        conditions: conditions::build_conditions(&states, &before.conditions, generation, now),
    };
    (status, states)
}

/// Whether the spec is one that can be carried out.
pub fn plan_accepted(refusal: Option<&Refusal>) -> State {
    match refusal {
        None => State::yes(Reason::Valid, "The spec can be carried out."),
        Some(refusal) => State::no(refusal.reason, refusal.message.clone()),
    }
}

fn plan_states(before: &ClusterStatus, outcome: &Outcome) -> Vec<(ConditionType, State)> {
    let accepted = plan_accepted(outcome.accepted.as_ref().err());
    let ready = plan_ready(outcome);
    let progressing = plan_progressing(outcome, &ready);
    let degraded = plan_degraded(outcome);
    let first = vec![
        (ConditionType::Accepted, accepted),
        (ConditionType::Ready, ready),
        (ConditionType::Progressing, progressing),
        (ConditionType::Degraded, degraded),
    ];
    if (outcome.accepted.is_err() && !outcome.kept) || outcome.paused {
        return carry_over(before, outcome, first, &NOT_LOOKED_AT);
    }
    let available = match (&outcome.inside, outcome.asleep) {
        (Ok(()), _) => State::yes(Reason::APIServerReady, "The API server answers /readyz."),
        (Err(_), true) => State::no(Reason::AsleepByRequest, "No control plane runs."),
        (Err(why), false) => State::no(Reason::APIServerNotReady, sentence(why)),
    };
    let published = if outcome.published {
        State::yes(
            Reason::AsExpected,
            "The ingress is told of the cluster, and the kubeconfig is there.",
        )
    } else {
        State::no(Reason::CertificatesPending, "The kubeconfig waits for certificates.")
    };
    let looked = vec![
        (ConditionType::CertificatesReady, outcome.certificates.clone()),
        (ConditionType::APIServerAvailable, available),
        (ConditionType::EndpointPublished, published),
    ];
    let states = [first, looked].concat();
    if outcome.kept {
        return carry_over(before, outcome, states, &NOT_CARRIED_OUT);
    }
    let asleep = match (outcome.asleep, &outcome.control_plane) {
        (true, ControlPlane::Asleep | ControlPlane::Absent) => {
            State::yes(Reason::AsleepByRequest, "No control plane runs, as asked for.")
        }
        (true, _) => State::no(Reason::AsleepByRequest, "The control plane is being stopped."),
        (false, _) => State::no(Reason::Awake, "A control plane is asked for."),
    };
    let last = vec![
        (ConditionType::StoreReady, outcome.store.clone()),
        (ConditionType::Asleep, asleep),
    ];
    [states, last].concat()
}

/// Where nothing was done, the conditions that were not looked at stay as they are.
fn carry_over(
    before: &ClusterStatus,
    outcome: &Outcome,
    mut states: Vec<(ConditionType, State)>,
    types: &[ConditionType],
) -> Vec<(ConditionType, State)> {
    let reason = match &outcome.accepted {
        Err(refusal) => refusal.reason,
        Ok(()) => Reason::Paused,
    };
    for type_ in types.iter().copied() {
        let Some(old) = conditions::find(&before.conditions, type_) else {
            continue;
        };
        let known = Reason::ALL.iter().copied().find(|known| known.as_str() == old.reason);
        let state = State {
            status: match old.status.as_str() {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            },
            reason: known.unwrap_or(reason),
            message: old.message.clone(),
        };
        states.push((type_, state));
    }
    states
}

fn plan_ready(outcome: &Outcome) -> State {
    if outcome.asleep {
        return State::no(Reason::AsleepByRequest, "The cluster is asleep.");
    }
    // Who waits for a generation to be ready waits for what it asks for, not for the pod of the one before.
    if matches!(outcome.control_plane, ControlPlane::Running { current: false, .. }) {
        return State::no(
            Reason::Updating,
            "The control plane is being replaced by one of the new configuration.",
        );
    }
    if outcome.inside.is_ok() && outcome.outside.is_ok() {
        return State::yes(Reason::AsExpected, "The API answers.");
    }
    if let Err(refusal) = &outcome.accepted
        && matches!(outcome.control_plane, ControlPlane::Absent)
    {
        return State::no(refusal.reason, refusal.message.clone());
    }
    if outcome.paused && matches!(outcome.control_plane, ControlPlane::Absent) {
        return State::no(Reason::Paused, "Reconciliation is paused.");
    }
    match &outcome.control_plane {
        ControlPlane::Failing { container, why } => State::no(
            Reason::ContainerFailing,
            format!("Container {container} ends again and again ({why})."),
        ),
        ControlPlane::Pending(why) => State::no(Reason::PodPending, why.clone()),
        ControlPlane::Running { .. } => match (&outcome.inside, &outcome.outside) {
            (Err(why), _) => State::no(Reason::APIServerNotReady, sentence(why)),
            (Ok(()), Err(lack)) => State::no(lack.reason, sentence(&lack.why)),
            (Ok(()), Ok(())) => State::yes(Reason::AsExpected, "The API answers."),
        },
        ControlPlane::Absent | ControlPlane::Asleep | ControlPlane::GoingToSleep => {
            let waiting = [&outcome.store, &outcome.certificates];
            match waiting.into_iter().find(|state| state.status != Some(true)) {
                Some(state) => State::no(state.reason, state.message.clone()),
                None => State::no(Reason::PodPending, "The control plane is being made."),
            }
        }
    }
}

fn plan_progressing(outcome: &Outcome, ready: &State) -> State {
    if let Err(refusal) = &outcome.accepted {
        return State::no(refusal.reason, "The spec is not being carried out.");
    }
    if outcome.paused {
        return State::no(Reason::Paused, "Reconciliation is paused by spec.paused.");
    }
    match (&outcome.control_plane, ready.status) {
        (ControlPlane::GoingToSleep, _) => State::yes(Reason::Updating, "The control plane is being stopped."),
        (ControlPlane::Running { current: false, .. }, _) => State::yes(
            Reason::Updating,
            "The control plane is being replaced by one of the new configuration.",
        ),
        (_, Some(true)) => State::no(Reason::AsExpected, "All is as asked for."),
        (_, _) if outcome.asleep => State::no(Reason::AsleepByRequest, "All is as asked for."),
        _ => State::yes(Reason::Provisioning, ready.message.clone()),
    }
}

fn plan_degraded(outcome: &Outcome) -> State {
    if let Some(failure) = &outcome.failure {
        return State::yes(Reason::ReconcileFailed, sentence(failure));
    }
    if let ControlPlane::Failing { container, why } = &outcome.control_plane {
        return State::yes(
            Reason::ContainerFailing,
            format!("Container {container} ends again and again ({why})."),
        );
    }
    let lacks = matches!(outcome.store.reason, Reason::StoreUnavailable | Reason::AccountKeyLost);
    if outcome.accepted.is_ok() && lacks {
        return State::yes(outcome.store.reason, outcome.store.message.clone());
    }
    State::no(Reason::AsExpected, "Nothing needs attention.")
}

/// The history grows by an entry when a rollout of another version begins; the entry is completed when that version answers.
fn plan_history(before: &[VersionHistory], outcome: &Outcome, now: Timestamp) -> Vec<VersionHistory> {
    let mut history = before.to_vec();
    let Some(version) = &outcome.version else {
        return history;
    };
    if history.first().is_none_or(|latest| latest.version != *version) {
        history.insert(
            0,
            VersionHistory {
                version: version.clone(),
                started: Time(now),
                completed: None,
            },
        );
        history.truncate(HISTORY_LENGTH);
    }
    let current = matches!(outcome.control_plane, ControlPlane::Running { current: true, .. });
    // What was not brought up to date this time may be the pod of the version before.
    if current
        && outcome.published
        && outcome.inside.is_ok()
        && let Some(latest) = history.first_mut()
        && latest.completed.is_none()
    {
        latest.completed = Some(Time(now));
    }
    history
}

fn plan_phase(
    outcome: &Outcome,
    before: &ClusterStatus,
    history: &[VersionHistory],
    ready: bool,
    now: Timestamp,
) -> Phase {
    let absent = matches!(outcome.control_plane, ControlPlane::Absent);
    if outcome.accepted.is_err() && absent {
        return Phase::Refused;
    }
    match outcome.control_plane {
        ControlPlane::Asleep => return Phase::Asleep,
        ControlPlane::Absent if outcome.asleep => return Phase::Asleep,
        ControlPlane::GoingToSleep => return Phase::Updating,
        _ => {}
    }
    let replaced = matches!(outcome.control_plane, ControlPlane::Running { current: false, .. });
    let rolling = history.len() > 1 && history.first().is_some_and(|latest| latest.completed.is_none());
    if ready && !replaced && !rolling {
        return Phase::Running;
    }
    let ran = history.iter().any(|entry| entry.completed.is_some());
    if ran && (replaced || rolling) {
        return Phase::Updating;
    }
    let starting = match &outcome.control_plane {
        ControlPlane::Running { started, .. } => now.duration_since(*started) < START_TIME,
        ControlPlane::Failing { .. } => false,
        _ => before.phase != Some(Phase::Unavailable),
    };
    if ran && !starting {
        Phase::Unavailable
    } else {
        Phase::Provisioning
    }
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

/// An error's text as a sentence.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let stop = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", chars.as_str())
}

#[cfg(test)]
#[path = "status/tests.rs"]
mod tests;
