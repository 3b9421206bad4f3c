//! The result of one reconcile.

use k8s_openapi::jiff::Timestamp;
use yoke_api::Reason;
use yoke_api::ingress::Asleep;
use yoke_api::workers::WorkersStatus;

use crate::cluster::observe::Observed;
use crate::cluster::sleep::state::SleepState;
use crate::cluster::store::streams::Store;
use crate::host_nodes::drain;
use crate::model::conditions::State;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::refusal::Refusal;

/// Why a Cluster is not ready for its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// Reason of the condition.
    pub reason: Reason,
    /// Text of the error.
    pub why: String,
}

impl From<String> for NotReady {
    fn from(why: String) -> Self {
        Self {
            reason: Reason::APIServerNotReady,
            why,
        }
    }
}

/// The result of one reconcile: everything that it observed and did.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether the spec was accepted.
    pub accepted: Result<(), Refusal>,
    /// Whether `spec.paused` stops every change.
    pub paused: bool,
    /// Whether the spec was refused, and the control plane of an earlier spec is maintained.
    pub kept: bool,
    /// The desired run state; for a spec that is not applied, the present run state.
    pub rest: SleepState,
    /// The ingress message for callers while no API is available.
    pub ingress_message: Option<Asleep>,
    /// Version to run; absent if the spec was refused.
    pub version: Option<String>,
    /// The requested version, if an upgrade to it needs steps in between.
    pub heads_for: Option<String>,
    /// State of the account and the streams, for the condition `StoreReady`.
    pub store: State,
    /// Public key of the NATS account.
    pub account: Option<String>,
    /// Size of the streams in bytes.
    pub bytes: Option<i64>,
    /// Whether every certificate is issued and copied, for the condition `CertificatesReady`.
    pub certificates: State,
    /// Expiry of the signing CA.
    pub ca_not_after: Option<Timestamp>,
    /// State of the control plane's pod.
    pub control_plane: ControlPlane,
    /// Whether the API answers inside the host; the error says why not.
    pub inside: Result<(), String>,
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
    pub used: Option<Timestamp>,
    /// State of its add-ons, once they were checked.
    pub addons: Option<State>,
    /// State of its workers, once they were checked.
    pub workers: Option<Workers>,
    /// Whether its pod was recently lost with its node.
    pub lost: bool,
    /// Whether it waits in the queue to be created or started.
    pub queued: bool,
    /// State of the planned takeover, if its node is about to leave.
    pub leaving: Option<drain::State>,
    /// Text of an unexpected failure.
    pub failure: Option<String>,
}

impl Outcome {
    /// Whether a planned takeover failed: no other pod became ready in time.
    pub const fn takeover_failed(&self) -> bool {
        matches!(self.leaving, Some(drain::State::Failed(_)))
    }

    /// Whether a part of the control plane fails while its API answers.
    pub const fn fails_in_part(&self) -> bool {
        matches!(self.control_plane, ControlPlane::Running { failing: Some(_), .. })
    }
}

/// The status of a cluster's workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// How many workers there are, and how many are updated.
    pub status: WorkersStatus,
    /// State of the condition `StoreReady`.
    pub state: State,
}

/// The result of an apply: everything that it did and observed.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) store: Store,
    pub(crate) certificates: State,
    pub(crate) ca_not_after: Option<Timestamp>,
    pub(crate) control_plane: ControlPlane,
    pub(crate) inside: Result<(), String>,
    pub(crate) outside: Result<(), NotReady>,
    /// Whether the API is assumed ready while the operator itself reaches no API yet.
    pub(crate) assumed_ready: bool,
    pub(crate) published: bool,
    pub(crate) nodes: Option<i32>,
    pub(crate) addons: Option<State>,
    pub(crate) workers: Option<crate::cluster::outcome::Workers>,
    /// The ingress message for callers while no API is available.
    pub(crate) ingress_message: Option<Asleep>,
    /// Whether its pod was recently lost with its node.
    pub(crate) lost: bool,
    /// Whether it waits in the queue to be created or started.
    pub(crate) queued: bool,
    /// State of the planned takeover, if its node is about to leave.
    pub(crate) leaving: Option<drain::State>,
}

impl Applied {
    /// Nothing is done yet; whether the API is available comes from the pod status of the kubelet.
    pub(crate) fn new(store: Store, observed: &Observed) -> Self {
        Self {
            store,
            // Without a count: each change of it would be a status write.
            certificates: State::no(Reason::CertificatesPending, "Certificates are being issued."),
            ca_not_after: None,
            control_plane: control_plane::plan_control_plane(observed.stateful_set.as_deref(), &observed.pods),
            inside: observed.answers(),
            outside: observed.answers().map_err(NotReady::from),
            assumed_ready: false,
            published: false,
            nodes: None,
            addons: None,
            workers: None,
            ingress_message: None,
            lost: false,
            leaving: None,
            queued: false,
        }
    }

    /// Nothing is done: other Clusters come first.
    pub(crate) fn queued(observed: &Observed) -> Self {
        // Without a count, as above.
        let waits = || {
            State::no(
                Reason::Queued,
                "Waiting in the queue: only a few Clusters are created at a time.",
            )
        };
        let store = Store {
            state: waits(),
            account: None,
            bytes: None,
        };
        Self {
            certificates: waits(),
            queued: true,
            ..Self::new(store, observed)
        }
    }
}
