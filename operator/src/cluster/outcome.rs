//! The result of one reconcile.

use k8s_openapi::jiff::Timestamp;
use yoke_api::Reason;
use yoke_api::ingress::Asleep;
use yoke_api::workers::WorkersStatus;

use crate::cluster::observed::Observed;
use crate::cluster::sleep::state::SleepState;
use crate::host_nodes::drain;
use crate::model::conditions::State;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::not_ready::NotReady;
use crate::model::refusal::Refusal;

/// The result of one reconcile: everything that it observed and did.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether the spec was accepted.
    pub accepted: Result<(), Refusal>,
    /// Whether `spec.paused` stops every change.
    pub paused: bool,
    /// Whether the spec was refused, and the control plane of an earlier spec is maintained.
    pub maintained: bool,
    /// The desired run state; for a spec that is not applied, the current run state.
    pub run_state: SleepState,
    /// The ingress message for callers while no API is available.
    pub ingress_message: Option<Asleep>,
    /// Version to run; absent if the spec was refused.
    pub version: Option<String>,
    /// The requested version, if an upgrade to it needs steps in between.
    pub heads_for: Option<String>,
    /// State of the account and the streams.
    pub store: Store,
    /// Whether every certificate is issued and copied, for the condition `CertificatesReady`.
    pub certificates: State,
    /// Expiry of the signing CA.
    pub ca_not_after: Option<Timestamp>,
    /// State of the control plane's pod.
    pub control_plane: ControlPlane,
    /// Whether the API answers inside the host.
    pub inside: Result<(), NotReady>,
    /// Whether the rest that a tenant needs is available: the ingress, the bindings in its API,
    /// working controllers.
    pub outside: Result<(), NotReady>,
    /// Whether readiness is assumed for a moment, while the operator itself reaches no API yet.
    pub assumed_ready: bool,
    /// Whether the ingress configuration and the kubeconfig are written.
    pub published: bool,
    /// Number of Nodes in the cluster; `None` if not known.
    pub nodes: Option<i32>,
    /// Whether its sleep may outlast the certificates of its Nodes.
    pub outlives_node_certificates: bool,
    /// Whether an awake cluster could go to sleep automatically.
    pub sleep_possible: Option<State>,
    /// When a client last used its API, if the store reported it.
    pub last_used: Option<Timestamp>,
    /// State of its add-ons, once they were checked.
    pub addons: Option<State>,
    /// State of its workers, once they were checked.
    pub workers: Option<Workers>,
    /// Whether its pod was recently lost with its node.
    pub lost: bool,
    /// Whether it waits in the queue to be created or started.
    pub queued: bool,
    /// State of the planned takeover, if its node is about to leave.
    pub takeover: Option<drain::State>,
    /// Text of an unexpected failure.
    pub failure: Option<String>,
}

impl Outcome {
    /// The outcome of a reconcile that has only observed. Whether the API is available comes from
    /// the kubelet's status of the pod.
    pub(crate) fn observed(observed: &Observed, run_state: SleepState) -> Self {
        let unknown = || State::unknown(Reason::Paused, "Not checked.");
        Self {
            accepted: Ok(()),
            paused: false,
            maintained: false,
            run_state,
            ingress_message: None,
            version: None,
            heads_for: None,
            store: Store::of(unknown()),
            certificates: unknown(),
            ca_not_after: None,
            control_plane: control_plane::plan_control_plane(observed.stateful_set.as_deref(), &observed.pods),
            inside: observed.readiness(),
            outside: observed.readiness(),
            assumed_ready: false,
            published: false,
            nodes: None,
            outlives_node_certificates: false,
            sleep_possible: None,
            last_used: None,
            addons: None,
            workers: None,
            lost: false,
            queued: false,
            takeover: None,
            failure: None,
        }
    }

    /// The outcome of an apply that has only ensured the store.
    pub(crate) fn with_store(observed: &Observed, run_state: SleepState, store: Store) -> Self {
        Self {
            store,
            // Without a count: each change of it would be a status write.
            certificates: State::no(Reason::CertificatesPending, "Certificates are being issued."),
            ..Self::observed(observed, run_state)
        }
    }

    /// The outcome of a creation that waits, because other Clusters come first.
    pub(crate) fn queued(observed: &Observed, run_state: SleepState) -> Self {
        // Without a count: each change of it would be a status write.
        let waits = || {
            State::no(
                Reason::Queued,
                "Waiting in the queue: only a few Clusters are created at a time.",
            )
        };
        Self {
            store: Store::of(waits()),
            certificates: waits(),
            queued: true,
            ..Self::observed(observed, run_state)
        }
    }

    /// Records that the API cannot be probed, because no control plane runs yet.
    pub(crate) fn mark_unreachable(&mut self) {
        let missing = || NotReady::api_server("the control plane is not running yet");
        (self.inside, self.outside) = (Err(missing()), Err(missing()));
    }

    /// Whether the API answers and a tenant has everything that it needs.
    pub(crate) const fn is_available(&self) -> bool {
        self.inside.is_ok() && self.outside.is_ok()
    }

    /// Whether a planned takeover failed: no other pod became ready in time.
    pub const fn takeover_failed(&self) -> bool {
        matches!(self.takeover, Some(drain::State::Failed(_)))
    }

    /// Whether a part of the control plane fails while its API answers.
    pub const fn fails_in_part(&self) -> bool {
        matches!(self.control_plane, ControlPlane::Running { failing: Some(_), .. })
    }
}

/// The observed state of the store.
#[derive(Clone, Debug)]
pub struct Store {
    /// State of the condition `StoreReady`.
    pub state: State,
    /// Public key of the NATS account.
    pub account: Option<String>,
    /// Size of the streams in bytes.
    pub bytes: Option<i64>,
}

impl Store {
    /// A store with a known state, and nothing else known.
    pub(crate) const fn of(state: State) -> Self {
        Self {
            state,
            account: None,
            bytes: None,
        }
    }

    /// Whether the account and the streams exist.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.status == Some(true)
    }
}

/// The status of a cluster's workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// How many workers there are, and how many are updated.
    pub status: WorkersStatus,
    /// State of the condition `WorkersUpdated`.
    pub state: State,
}
