//! Decides what a control plane needs from the admission queues before it starts or restarts. Pure.

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::Cluster;

use crate::cluster::failover::pods::Incarnation;
use crate::cluster::failover::start_queue::{Admission, QueueEntry};
use crate::cluster::history::running_version;
use crate::cluster::observed::Observed;
use crate::cluster::resources::Blueprint;
use crate::cluster::sleep::state::SleepState;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;

/// The entry of a Cluster in an admission queue.
pub(crate) fn build_queue_entry(cluster: &Cluster, identity: &Identity) -> QueueEntry {
    QueueEntry {
        id: identity.id.clone(),
        cluster: ObjectRef::from_obj(cluster),
        is_asleep: SleepState::of(cluster).is_asleep(),
        created: cluster.creation_timestamp().map(|created| created.0),
    }
}

/// The facts that decide whether a control plane may restart now.
#[derive(Debug)]
pub(crate) struct Restart<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) blueprint: &'a Blueprint<'a>,
    pub(crate) observed: &'a Observed,
    pub(crate) control_plane: &'a ControlPlane,
    /// The incarnation to run with.
    pub(crate) planned: Incarnation,
    /// Whether its pod was lost with its node.
    pub(crate) is_lost: bool,
    /// Whether its pod terminates anyway.
    pub(crate) is_terminating: bool,
    /// Whether it gets konnectivity, for which a worker waits.
    pub(crate) gets_konnectivity: bool,
}

/// The admission that a running control plane needs from the restart queue.
pub(crate) fn plan_restart(restart: &Restart<'_>) -> Admission {
    let running = control_plane::running_incarnation(restart.observed.stateful_set.as_deref());
    match (restart.control_plane, restart.planned) {
        _ if restart.is_lost => Admission::Finish,
        (ControlPlane::Running { failing, .. }, Incarnation::New(_)) => {
            // A part that fails already would hold a slot for long.
            match failing.is_some() || may_restart_at_once(restart) {
                true => Admission::Finish,
                false => Admission::Acquire,
            }
        }
        (ControlPlane::Running { current: true, .. }, Incarnation::Same(number))
            if running == Some(number) && restart.observed.is_fully_ready() =>
        {
            Admission::Finish
        }
        (ControlPlane::Asleep, _) => Admission::Finish,
        _ => Admission::Continue,
    }
}

/// Whether a restart waits for no other: the owner changed the spec, also through a JoinToken, or the
/// pod terminates anyway.
fn may_restart_at_once(restart: &Restart<'_>) -> bool {
    let cluster = restart.cluster;
    let observed_generation = cluster.status.as_ref().and_then(|status| status.observed_generation);
    // A step on the way to the requested version.
    let is_next = running_version(cluster).is_some_and(|running| running != restart.blueprint.accepted.version);
    restart.gets_konnectivity
        || is_next
        || observed_generation != cluster.metadata.generation
        || SleepState::of(cluster).is_asleep()
        || restart.is_terminating
}
