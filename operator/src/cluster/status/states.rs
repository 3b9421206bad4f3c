//! The state of each condition. Pure.

use yoke_api::cluster::ClusterStatus;
use yoke_api::ingress::Asleep;
use yoke_api::{ConditionType, Reason};

use crate::cluster::outcome::Outcome;
use crate::host_nodes::drain;
use crate::model::conditions::{self, State};
use crate::model::control_plane::ControlPlane;
use crate::model::refusal::Refusal;

/// Conditions that are not updated while a Cluster is paused, or refused without a control plane.
const NOT_CHECKED: [ConditionType; 8] = [
    ConditionType::CertificatesReady,
    ConditionType::APIServerAvailable,
    ConditionType::EndpointPublished,
    ConditionType::StoreReady,
    ConditionType::Asleep,
    ConditionType::SleepPossible,
    ConditionType::AddonsReady,
    ConditionType::WorkersUpdated,
];

/// Conditions about parts of a refused spec that are not applied while the control plane is
/// maintained.
const NOT_APPLIED: [ConditionType; 5] = [
    ConditionType::StoreReady,
    ConditionType::Asleep,
    ConditionType::SleepPossible,
    ConditionType::AddonsReady,
    ConditionType::WorkersUpdated,
];

/// The state of `Accepted`: whether the spec can be applied.
pub fn plan_accepted(refusal: Option<&Refusal>) -> State {
    match refusal {
        None => State::yes(Reason::Valid, "The spec is valid."),
        Some(refusal) => State::no(refusal.reason, refusal.message.clone()),
    }
}

pub(super) fn plan_states(
    before: &ClusterStatus,
    outcome: &Outcome,
    generation: Option<i64>,
) -> Vec<(ConditionType, State)> {
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
    if (outcome.accepted.is_err() && !outcome.maintained) || outcome.paused {
        let mut states = first;
        // Certificates are copied during a pause too.
        if outcome.certificates.status.is_some() {
            states.push((ConditionType::CertificatesReady, outcome.certificates.clone()));
        }
        return carry_over(before, outcome, states, generation, &NOT_CHECKED);
    }
    let checked = vec![
        (ConditionType::CertificatesReady, outcome.certificates.clone()),
        (ConditionType::APIServerAvailable, plan_available(outcome)),
        (ConditionType::EndpointPublished, plan_published(outcome)),
    ];
    let states = [first, checked].concat();
    if outcome.maintained {
        return carry_over(before, outcome, states, generation, &NOT_APPLIED);
    }
    let last = vec![
        (ConditionType::StoreReady, outcome.store.state.clone()),
        (ConditionType::Asleep, plan_asleep(before, outcome)),
    ];
    let possible = outcome.sleep_possible.clone();
    let possible = possible.map(|state| (ConditionType::SleepPossible, state));
    let addons = outcome.addons.clone().map(|state| (ConditionType::AddonsReady, state));
    let workers = outcome
        .workers
        .as_ref()
        .map(|workers| (ConditionType::WorkersUpdated, workers.state.clone()));
    let others = possible.into_iter().chain(addons).chain(workers).collect();
    let states = [states, last, others].concat();
    let optional = [
        ConditionType::SleepPossible,
        ConditionType::AddonsReady,
        ConditionType::WorkersUpdated,
    ];
    carry_over(before, outcome, states, generation, &optional)
}

fn plan_available(outcome: &Outcome) -> State {
    let run_state = &outcome.run_state;
    match (&outcome.inside, run_state.is_asleep()) {
        (Ok(()), _) => State::yes(Reason::APIServerReady, "The API server answers /readyz."),
        (Err(_), true) => State::no(run_state.reason(), "No control plane runs."),
        (Err(not_ready), false) => State::no(not_ready.reason, sentence(&not_ready.message)),
    }
}

fn plan_published(outcome: &Outcome) -> State {
    if outcome.published {
        State::yes(
            Reason::AsExpected,
            "The ingress routes to the cluster, and the kubeconfig exists.",
        )
    } else {
        State::no(
            Reason::CertificatesPending,
            "The kubeconfig is waiting for certificates.",
        )
    }
}

fn plan_asleep(before: &ClusterStatus, outcome: &Outcome) -> State {
    let run_state = &outcome.run_state;
    match (run_state.is_asleep(), &outcome.control_plane) {
        (true, ControlPlane::Asleep | ControlPlane::Absent) => {
            let mut message = format!("No control plane runs, {}, {}.", run_state.why(), run_state.until());
            if outcome.outlives_node_certificates {
                message += " Kubelets cannot renew their certificates while it sleeps: a Node with an expired certificate \
         cannot reconnect.";
            }
            State::yes(run_state.reason(), message)
        }
        (true, _) => State::no(
            run_state.reason(),
            format!("The control plane is being stopped, {}.", run_state.why()),
        ),
        (false, _)
            if let Some(Asleep::Waking {
                problem: Some(problem), ..
            }) = &outcome.ingress_message =>
        {
            State::no(Reason::WakeDelayed, format!("The wake is delayed: {problem}"))
        }
        (false, _) if is_woken(before) => State::no(
            Reason::WokenOnConnect,
            "The control plane was woken by a client that connected.",
        ),
        (false, _) => State::no(Reason::Awake, "The cluster is awake."),
    }
}

/// Whether a client connected after the request to sleep. That request is removed once the Cluster
/// is Ready.
fn is_woken(before: &ClusterStatus) -> bool {
    let activity = before.activity.as_ref();
    let asleep = conditions::find(&before.conditions, ConditionType::Asleep);
    activity.is_some_and(|activity| activity.sleep_requested_time.is_some() && activity.asleep_since().is_none())
        || asleep.is_some_and(|asleep| asleep.reason == Reason::WokenOnConnect.to_string())
}

/// Adds the previous states of conditions that this reconcile did not check.
fn carry_over(
    before: &ClusterStatus,
    outcome: &Outcome,
    mut states: Vec<(ConditionType, State)>,
    generation: Option<i64>,
    types: &[ConditionType],
) -> Vec<(ConditionType, State)> {
    let reason = match &outcome.accepted {
        Err(refusal) => refusal.reason,
        Ok(()) => Reason::Paused,
    };
    for type_ in types.iter().copied() {
        let is_known = states.iter().any(|(known, _)| *known == type_);
        let Some(old) = conditions::find(&before.conditions, type_).filter(|_| !is_known) else {
            continue;
        };
        // A state that was found for another generation says nothing about this spec.
        let pending = match type_ {
            ConditionType::AddonsReady => Some(Reason::AddonsPending),
            ConditionType::WorkersUpdated => Some(Reason::WorkersPending),
            _ => None,
        };
        if let Some(pending) = pending.filter(|_| old.observed_generation != generation) {
            let message = "Not checked yet for this spec.";
            states.push((type_, State::unknown(pending, message)));
            continue;
        }
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
    if outcome.run_state.is_asleep() {
        let message = format!("The cluster is asleep {}.", outcome.run_state.until());
        return State::no(outcome.run_state.reason(), message);
    }
    if outcome.lost && !outcome.is_available() {
        return State::no(
            Reason::MachineLost,
            "The node of the control plane was lost; the control plane is starting on another node.",
        );
    }
    // A client that waits for a ready generation means the new spec, not the pod of the previous
    // one.
    if matches!(outcome.control_plane, ControlPlane::Running { current: false, .. }) {
        return State::no(
            Reason::Updating,
            "The control plane's pod is being replaced by one with the new configuration.",
        );
    }
    if outcome.is_available() {
        return match &outcome.heads_for {
            Some(goal) => State::no(Reason::Updating, upgrade_message(goal)),
            None => State::yes(Reason::AsExpected, "The API answers."),
        };
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
        ControlPlane::Failing(failure) => State::no(Reason::ContainerFailing, failure.to_string()),
        ControlPlane::Pending(why) => State::no(Reason::PodPending, why.clone()),
        ControlPlane::Running { .. } => match (&outcome.inside, &outcome.outside) {
            (Err(not_ready), _) | (Ok(()), Err(not_ready)) => State::no(not_ready.reason, sentence(&not_ready.message)),
            (Ok(()), Ok(())) => State::yes(Reason::AsExpected, "The API answers."),
        },
        ControlPlane::Absent | ControlPlane::Asleep | ControlPlane::GoingToSleep => {
            let waiting = [&outcome.store.state, &outcome.certificates];
            match waiting.into_iter().find(|state| state.status != Some(true)) {
                Some(state) => State::no(state.reason, state.message.clone()),
                None if outcome.queued => State::no(
                    Reason::Queued,
                    "Waiting in the queue: only a few control planes are started at a time.",
                ),
                None => State::no(Reason::PodPending, "The control plane is being created."),
            }
        }
    }
}

fn upgrade_message(version: &str) -> String {
    format!("Upgrading to {version}, one minor version at a time.")
}

fn plan_progressing(outcome: &Outcome, ready: &State) -> State {
    if let Err(refusal) = &outcome.accepted {
        return State::no(refusal.reason, "The spec is refused and not applied.");
    }
    if outcome.paused {
        return State::no(Reason::Paused, "Reconciliation is paused by spec.paused.");
    }
    if matches!(outcome.takeover, Some(drain::State::StandBy(_) | drain::State::Waiting)) {
        return State::yes(
            Reason::MachineLeaving,
            "The control plane's pod or node is about to be stopped; a standby pod takes over.",
        );
    }
    match (&outcome.control_plane, ready.status) {
        (ControlPlane::GoingToSleep, _) => State::yes(Reason::Updating, "The control plane is being stopped."),
        (ControlPlane::Running { current: false, .. }, _) => State::yes(
            Reason::Updating,
            "The control plane's pod is being replaced by one with the new configuration.",
        ),
        (ControlPlane::Running { .. }, _) if let Some(goal) = &outcome.heads_for => {
            State::yes(Reason::Updating, upgrade_message(goal))
        }
        (_, Some(true)) => State::no(Reason::AsExpected, "The cluster matches its spec."),
        (_, _) if outcome.run_state.is_asleep() => {
            State::no(outcome.run_state.reason(), "The cluster matches its spec.")
        }
        _ => State::yes(Reason::Provisioning, ready.message.clone()),
    }
}

fn plan_degraded(outcome: &Outcome) -> State {
    if let Some(failure) = &outcome.failure {
        return State::yes(Reason::ReconcileFailed, sentence(failure));
    }
    if let ControlPlane::Failing(failure)
    | ControlPlane::Running {
        failing: Some(failure), ..
    } = &outcome.control_plane
    {
        return State::yes(Reason::ContainerFailing, failure.to_string());
    }
    if outcome.takeover_failed() {
        return State::yes(
            Reason::TakeoverFailed,
            "The control plane's node is about to leave, and no standby pod became ready in time.",
        );
    }
    let store_failed = matches!(
        outcome.store.state.reason,
        Reason::StoreUnavailable | Reason::StoreLost | Reason::IdentityConflict
    );
    if outcome.accepted.is_ok() && store_failed {
        return State::yes(outcome.store.state.reason, outcome.store.state.message.clone());
    }
    State::no(Reason::AsExpected, "Nothing needs attention.")
}

/// Turns the text of an error into a sentence.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let stop = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", chars.as_str())
}
