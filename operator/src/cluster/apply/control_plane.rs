//! Applies the control plane of an accepted spec: its StatefulSet, and what the StatefulSet controller
//! does not do with its pods.
//!
//! ```text
//!  find_start ─▶ request_admission (may wait in a queue) ─▶ incarnation ─▶ replace_pods ─▶ finish_pods
//! ```

use k8s_openapi::api::apps::v1::StatefulSet;

use crate::cluster::context::Context;
use crate::cluster::credentials::fencing;
use crate::cluster::failover::admission::{Restart, build_queue_entry, plan_restart};
use crate::cluster::failover::pods::{self, Incarnation};
use crate::cluster::failover::start_queue::{Admission, QueueLimits};
use crate::cluster::failover::takeover_plan::{Pods, Step};
use crate::cluster::failover::{node_loss, pod_deletion, takeover};
use crate::cluster::observe::View;
use crate::cluster::outcome::Outcome;
use crate::cluster::resources::{Blueprint, IssuedSummary, affinity, stateful_set};
use crate::cluster::sleep::ingress_message::is_answering;
use crate::cluster::tenant_cluster::konnectivity;
use crate::error::ReconcileError;
use crate::host_nodes::drain;
use crate::model::control_plane;
use crate::nats::streams as nats_streams;

/// Applies the control plane as its spec wants it. `issued` is `None` while a certificate is
/// reissued; an existing control plane then continues with the files that it has.
pub(super) async fn apply_control_plane(
    context: &Context,
    view: &View<'_>,
    blueprint: &Blueprint<'_>,
    issued: Option<&IssuedSummary>,
    outcome: &mut Outcome,
) -> Result<(), ReconcileError> {
    let (identity, observed) = (&view.identity, &view.observed);
    let existing = observed.stateful_set.as_deref();
    outcome.control_plane = node_loss::plan_control_plane(context, identity, existing, observed);
    let Some(mut start) = find_start(context, view, blueprint, issued, outcome) else {
        return Ok(());
    };
    let template = stateful_set::template_digest(blueprint, &start);
    let planned = fencing::plan_incarnation_by_cache(context, identity, observed, &template);
    if !request_admission(context, view, blueprint, &start, planned, outcome) {
        return Ok(());
    }
    start.incarnation = fencing::ensure_incarnation(context, identity, planned, &template).await?;
    let pods = match outcome.run_state.is_asleep() {
        true => Pods::none(start.first),
        false => takeover::start_takeover(context, identity, observed, start.incarnation),
    };
    let (pods, set) = replace_pods(context, view, blueprint, issued, &mut start, pods).await?;
    finish_pods(context, view, &start, &pods, &set, outcome).await
}

/// How the control plane must start. `None` if it cannot be applied yet: its store or its certificates are
/// missing.
fn find_start(
    context: &Context,
    view: &View<'_>,
    blueprint: &Blueprint<'_>,
    issued: Option<&IssuedSummary>,
    outcome: &Outcome,
) -> Option<stateful_set::Start> {
    let (identity, observed) = (&view.identity, &view.observed);
    let existing = observed.stateful_set.as_deref();
    let store_ready = outcome.store.is_ready();
    // An existing control plane is updated even while NATS does not answer the operator.
    if !store_ready && existing.is_none() {
        return None;
    }
    // NATS may not have the spare stream yet; a running control plane then continues without it.
    let has_spare = nats_streams::has_spare(blueprint.accepted.class.store_replicas)
        && (store_ready || existing.is_some_and(stateful_set::uses_spare));
    // The konnectivity-server reads the serving certificate once, so it must not start with one
    // that lacks its name.
    let has_konnectivity = blueprint.spec.konnectivity.is_enabled()
        && (existing.is_some_and(stateful_set::has_konnectivity)
            || issued.is_some_and(|issued| issued.serves_konnectivity));
    // A sleeping control plane has no node, and a wake schedules a new pod.
    let lost = match outcome.run_state.is_asleep() {
        true => node_loss::find_stuck_pod(observed),
        false => node_loss::find_lost_pod(context, identity, observed),
    };
    // While a certificate is reissued, the digest of the running control plane stays.
    let digest = issued.map(|issued| issued.restart_digest(has_konnectivity));
    let digest = digest.or_else(|| existing.and_then(stateful_set::read_digest).cloned())?;
    Some(stateful_set::Start {
        incarnation: 0,
        digest,
        replicas: 0,
        first: takeover::find_serving_ordinal(context, identity, existing),
        has_spare,
        has_konnectivity,
        lost,
    })
}

/// Requests a slot of the admission queues. Returns whether the control plane may restart or start now.
fn request_admission(
    context: &Context,
    view: &View<'_>,
    blueprint: &Blueprint<'_>,
    start: &stateful_set::Start,
    planned: Incarnation,
    outcome: &mut Outcome,
) -> bool {
    let (identity, observed, queues) = (&view.identity, &view.observed, &context.queues);
    let existing = observed.stateful_set.as_deref();
    let entry = || build_queue_entry(&view.cluster, identity);
    // A worker that joins is waiting for konnectivity.
    let gets_konnectivity = start.has_konnectivity
        && !existing.is_some_and(stateful_set::has_konnectivity)
        && konnectivity::has_join_token(&context.host.caches, &view.cluster);
    let restart = plan_restart(&Restart {
        cluster: &view.cluster,
        blueprint,
        observed,
        control_plane: &outcome.control_plane,
        planned,
        is_lost: context.losses.of(&identity.id).is_some(),
        is_terminating: takeover::is_taken_over(context, observed) || takeover::is_serving_pod_terminating(observed),
        gets_konnectivity,
    });
    if !queues.restarts.admit(restart, &identity.id, entry) {
        return false;
    }
    let is_lost = start.lost.is_some() && start.lost != existing.and_then(affinity::read_lost);
    let (is_asleep, answers) = (outcome.run_state.is_asleep(), is_answering(context, view));
    let admission = pods::plan_start(&outcome.control_plane, &observed.pods, is_asleep, is_lost, answers);
    if admission == Admission::Acquire {
        queues.starts.set_rule(QueueLimits::of_starts(count_cores(context)));
    }
    let is_admitted = queues.starts.admit(admission, &identity.id, entry);
    if !is_admitted {
        (outcome.queued, outcome.lost) = (true, is_lost);
    }
    is_admitted
}

/// Cores of the host's nodes on which control planes may start.
fn count_cores(context: &Context) -> usize {
    let config = &context.host.config;
    let classes: Vec<_> = config
        .classes
        .iter()
        .map(|class| class.tolerations.as_slice())
        .collect();
    let nodes = context.host.caches.nodes.state();
    drain::plan::count_cores(&nodes, &config.planned_takeover.taints, &classes)
}

/// Applies the StatefulSet with the wanted pods, and moves the Service from pod to pod. Returns the pods
/// that are wanted now.
///
/// A ready pod receives callers before the previous pod terminates. A change of the StatefulSet, or a
/// release, makes that pod terminate.
async fn replace_pods(
    context: &Context,
    view: &View<'_>,
    blueprint: &Blueprint<'_>,
    issued: Option<&IssuedSummary>,
    start: &mut stateful_set::Start,
    mut pods: Pods,
) -> Result<(Pods, StatefulSet), ReconcileError> {
    let (identity, observed) = (&view.identity, &view.observed);
    let access = issued.and_then(|issued| issued.reach.as_deref());
    let mut has_taken_over = pods.step == Step::Replace;
    if pods.step == Step::TakeOver {
        let has_other = control_plane::has_other(observed.stateful_set.as_deref(), &observed.pods);
        has_taken_over = takeover::hand_over(context, blueprint, observed, access, pods.first, has_other).await?;
        if !has_taken_over {
            (pods.first, pods.replicas) = (pods.first - 1, 2);
        }
    }
    (start.first, start.replicas) = (pods.first, pods.replicas);
    let set = stateful_set::build_stateful_set(blueprint, start);
    let (applied, ()) = tokio::join!(
        context.applier.apply(&context.host.caches.stateful_sets, &set),
        takeover::release_others(context, identity, observed, start.incarnation, &pods),
    );
    applied?;
    if has_taken_over {
        takeover::record_serving_ordinal(context, identity, start.first);
    }
    if pods.step == Step::Replace {
        takeover::hand_over(context, blueprint, observed, access, start.first, false).await?;
    }
    Ok((pods, set))
}

/// Does what remains once the StatefulSet is applied: the budget of evictions, pods that hang, pods that are
/// lost.
async fn finish_pods(
    context: &Context,
    view: &View<'_>,
    start: &stateful_set::Start,
    pods: &Pods,
    set: &StatefulSet,
    outcome: &mut Outcome,
) -> Result<(), ReconcileError> {
    let (identity, observed) = (&view.identity, &view.observed);
    let is_asleep = outcome.run_state.is_asleep();
    let blocks_evictions = !is_asleep && takeover::must_block_evictions(context, observed);
    takeover::ensure_budget(context, identity, blocks_evictions).await?;
    let lingers = pods.lingering.as_ref().map(|(_, state)| *state);
    outcome.takeover = lingers.or_else(|| takeover::find_takeover_state(context, observed).filter(|_| !is_asleep));
    pod_deletion::replace_stuck(context, observed).await?;
    node_loss::delete_lost_pods(context, identity, observed, start.incarnation, start.lost.as_ref()).await?;
    outcome.control_plane = pods
        .plan_lingering(set)
        .unwrap_or_else(|| node_loss::plan_control_plane(context, identity, Some(set), observed));
    outcome.lost = context.losses.of(&identity.id).is_some();
    Ok(())
}
