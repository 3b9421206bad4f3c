//! Admits control planes to start or restart, a few at a time.

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::Cluster;

use crate::cluster::context::Context;
use crate::cluster::failover::pods::{self, Incarnation, Start};
use crate::cluster::failover::start_queue::{QueueLimits, Wanted};
use crate::cluster::failover::takeover;
use crate::cluster::observe::{Observed, running_version};
use crate::cluster::resources::Blueprint;
use crate::cluster::sleep::ingress_message::answers;
use crate::cluster::sleep::state::SleepState;
use crate::host_nodes::drain;
use crate::model::control_plane::{self, ControlPlane};
use crate::model::identity::Identity;

pub(crate) fn find_wanted(cluster: &Cluster, identity: &Identity) -> Wanted {
    Wanted {
        id: identity.id.clone(),
        cluster: ObjectRef::from_obj(cluster),
        is_asleep: SleepState::of(cluster).is_asleep(),
        created: cluster.creation_timestamp().map(|created| created.0),
    }
}

/// Whether a running control plane must wait before it restarts, because others restart now. It
/// takes or releases a slot of the restart queue.
///
/// No wait applies in these cases:
/// - The owner changed the spec, also through a JoinToken.
/// - The pod terminates anyway.
/// - A part of the control plane fails already; it would hold its slot for long.
pub(crate) fn must_wait_to_restart(
    context: &Context,
    cluster: &Cluster,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    (control_plane, planned): (&ControlPlane, Incarnation),
    gets_agents: bool,
) -> bool {
    let identity = blueprint.identity;
    if context.losses.of(&identity.id).is_some() {
        context.queues.restarts.finish(&identity.id);
        return false;
    }
    let asked_for = control_plane::running_incarnation(observed.stateful_set.as_deref());
    match (control_plane, planned) {
        (ControlPlane::Running { failing, .. }, Incarnation::New(_)) => {
            let seen = cluster.status.as_ref().and_then(|status| status.observed_generation);
            // A step on the way to the requested version.
            let is_next = running_version(cluster).is_some_and(|noted| noted != blueprint.accepted.version);
            let is_at_once = gets_agents
                || is_next
                || failing.is_some()
                || seen != cluster.metadata.generation
                || SleepState::of(cluster).is_asleep()
                || takeover::is_leaving(context, observed)
                || takeover::is_ending(observed);
            if is_at_once {
                context.queues.restarts.finish(&identity.id);
            }
            !is_at_once && !context.queues.restarts.try_admit(find_wanted(cluster, identity))
        }
        (ControlPlane::Running { current: true, .. }, Incarnation::Same(number))
            if asked_for == Some(number) && observed.is_whole() =>
        {
            context.queues.restarts.finish(&identity.id);
            false
        }
        (ControlPlane::Asleep, _) => {
            context.queues.restarts.finish(&identity.id);
            false
        }
        _ => false,
    }
}

/// Whether a stopped control plane must wait before it starts, because others start now. It takes
/// or releases a slot of the start queue.
pub(crate) fn must_wait_to_start(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    control_plane: &ControlPlane,
    is_lost: bool,
) -> bool {
    let is_asleep = SleepState::of(cluster).is_asleep();
    let answers = answers(context, cluster, identity, observed);
    match pods::plan_start(control_plane, &observed.pods, is_asleep, is_lost, answers) {
        Start::Begins => {
            let nodes = context.host.caches.nodes.state();
            let taints = &context.host.config.planned_takeover.taints;
            let classes = context.host.config.classes.iter();
            let classes: Vec<_> = classes.map(|class| class.tolerations.as_slice()).collect();
            let cores = drain::plan::count_cores(&nodes, taints, &classes);
            context.queues.starts.set_rule(QueueLimits::of_starts(cores));
            !context.queues.starts.try_admit(find_wanted(cluster, identity))
        }
        Start::Goes => false,
        Start::Over => {
            context.queues.starts.finish(&identity.id);
            false
        }
    }
}
