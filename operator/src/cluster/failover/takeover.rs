//! Runs the planned takeover of a control plane whose node is about to leave, or whose pod is being
//! deleted. `takeover_plan` decides the next step. This module does what the StatefulSet does
//! not: it releases pods, moves the Service and blocks evictions.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::reflector::ObjectRef;

use crate::cluster::context::Context;
use crate::cluster::failover::takeover_plan::{self, Pods, Step};
use crate::cluster::observed::Observed;
use crate::cluster::resources::{ApiAccess, Blueprint, objects};
use crate::cluster::store::http;
use crate::cluster::tenant_cluster::probe;
use crate::host_api::apply::ApplyError;
use crate::host_nodes::drain::{self, State};
use crate::model::control_plane::{self, NAME};
use crate::model::identity::Identity;
use crate::tenant_client::{Access, TenantApi, Way};

/// A server passes this check once it has read the RBAC objects; until then it denies every
/// request.
const INFORMER_SYNC: &str = "/readyz/informer-sync";
/// Timeout for that check.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout while another pod still serves.
const SYNC_TIMEOUT_WITH_OTHER: Duration = Duration::from_secs(3);

/// Ordinal of the serving pod. The watch may lag behind the applied one.
pub(crate) fn find_serving_ordinal(context: &Context, identity: &Identity, set: Option<&StatefulSet>) -> i32 {
    control_plane::first_of(set).max(context.memory.seen(&identity.id).first)
}

/// The wanted pods of an awake control plane that must run with this incarnation. Starts the takeover of
/// a pod that is being deleted.
pub(crate) fn start_takeover(context: &Context, identity: &Identity, observed: &Observed, incarnation: u64) -> Pods {
    let set = observed.stateful_set.as_deref();
    let first = find_serving_ordinal(context, identity, set);
    // The watch has not shown the last takeover yet.
    if control_plane::first_of(set) != first {
        return Pods::after(Step::Alone, first, None);
    }
    let lingering = record_lingering(context, identity, observed, incarnation);
    let state = lingering.as_ref().map(|(_, state)| *state);
    let cause = takeover_plan::plan_cause(state, find_takeover_state(context, observed));
    let step = takeover_plan::plan_step(set, &observed.pods, incarnation, cause);
    Pods::after(step, first, lingering)
}

/// Records that the serving pod is being deleted. Returns the pod if it still serves and another pod takes
/// over, and the state of that takeover.
fn record_lingering(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    incarnation: u64,
) -> Option<(Arc<Pod>, State)> {
    let set = observed.stateful_set.as_deref();
    let pod = takeover_plan::find_lingering(set, &observed.pods, incarnation, Timestamp::now())?;
    let uid = pod.metadata.uid.as_deref()?;
    if context.memory.seen(&identity.id).released.contains(uid) {
        return None;
    }
    let state = context.notices.record_end(&context.host, pod)?;
    let is_active = matches!(state, State::StandBy(_) | State::Waiting);
    is_active.then(|| (Arc::new(pod.clone()), state))
}

/// State of the planned takeover, if the node of the control plane is about to leave.
pub(crate) fn find_takeover_state(context: &Context, observed: &Observed) -> Option<State> {
    context.notices.of(find_serving_pod(observed)?.metadata.uid.as_deref()?)
}

/// Whether another pod takes over, or will, so that this pod terminates anyway.
pub(crate) fn is_taken_over(context: &Context, observed: &Observed) -> bool {
    matches!(
        find_takeover_state(context, observed),
        Some(State::Waiting | State::StandBy(_))
    )
}

/// The serving pod, if it is not being deleted.
fn find_serving_pod(observed: &Observed) -> Option<&Pod> {
    let mut serving = control_plane::serving(observed.stateful_set.as_deref(), &observed.pods);
    serving.find(|pod| !control_plane::ends(pod))
}

/// Whether the serving pod is being deleted.
pub(crate) fn is_serving_pod_terminating(observed: &Observed) -> bool {
    control_plane::serving(observed.stateful_set.as_deref(), &observed.pods).any(control_plane::ends)
}

/// Releases every pod that is not among the wanted ones: it then exits at once on SIGTERM.
pub(crate) async fn release_others(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    incarnation: u64,
    wanted: &Pods,
) {
    let pods = takeover_plan::plan_released(&observed.pods, incarnation, wanted);
    release_pods(context, identity, observed, &pods).await;
}

/// Releases every pod: it then exits at once on SIGTERM.
pub(crate) async fn release_all(context: &Context, identity: &Identity, observed: &Observed) {
    let pods: Vec<_> = observed.pods.iter().map(AsRef::as_ref).collect();
    release_pods(context, identity, observed, &pods).await;
}

/// Releases the pods that are being deleted: they exit at once.
pub(crate) async fn release_terminating(context: &Context, identity: &Identity, observed: &Observed) {
    let pods = observed.pods.iter().map(AsRef::as_ref);
    let pods: Vec<_> = pods.filter(|pod| control_plane::ends(pod)).collect();
    release_pods(context, identity, observed, &pods).await;
}

/// Releases each pod once. A pod that cannot be reached exits by itself a while later.
async fn release_pods(context: &Context, identity: &Identity, observed: &Observed, pods: &[&Pod]) {
    let released = context.memory.seen(&identity.id).released;
    let started = |pod: &&&Pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
    let releases = pods.iter().filter(started).filter_map(|pod| {
        let uid = pod.metadata.uid.clone()?;
        let is_lost = context.losses.has(&identity.id, Some(&uid));
        (!released.contains(&uid) && !is_lost).then_some(async move { (uid, http::release_pod(pod).await) })
    });
    let releases = futures::future::join_all(releases).await;
    if releases.is_empty() {
        return;
    }
    context.memory.update(&identity.id, |memory| {
        let exists = |uid: &String| observed.pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid));
        memory.released.retain(exists);
        for (uid, result) in releases {
            match result {
                Ok(()) => {
                    memory.released.insert(uid);
                }
                // A pod that has terminated while its object remains does not answer.
                Err(error) => {
                    tracing::info!(cluster = %identity.id, uid, error = %crate::chain(&error), "pod could not be released");
                }
            }
        }
    });
}

/// Points the Service at the pod that serves from now on, as soon as it admits clients. Before that
/// it denies every request, as it has not read the RBAC objects; clients in its queue would be the
/// first to see that.
///
/// Returns false if the pod did not answer in time and `has_other`: another pod still serves.
pub(crate) async fn hand_over(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    access: Option<&ApiAccess>,
    first: i32,
    has_other: bool,
) -> Result<bool, ApplyError> {
    let (identity, konnectivity) = (blueprint.identity, blueprint.open().konnectivity);
    let name = control_plane::pod_name(first);
    let mut pods = observed.pods.iter();
    let pod = pods.find(|pod| pod.metadata.name.as_ref() == Some(&name));
    let address = pod.and_then(|pod| pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok());
    let timeout = if has_other {
        SYNC_TIMEOUT_WITH_OTHER
    } else {
        SYNC_TIMEOUT
    };
    let answers = match (address, access) {
        (Some(address), Some(access)) => {
            let synced = wait_until_synced(probe::access_to_pod(identity, address, access));
            tokio::time::timeout(timeout, synced).await.is_ok()
        }
        _ => false,
    };
    if !answers {
        tracing::warn!(cluster = %identity.id, pod = name, "standby pod does not answer yet");
        if has_other {
            return Ok(false);
        }
    }
    context.apis.forget_way(&identity.id, Way::Inside);
    let service = objects::build_service(identity, konnectivity, first);
    context.applier.apply(&context.host.caches.services, &service).await?;
    tracing::info!(cluster = %identity.id, pod = name, "standby pod has taken over");
    Ok(true)
}

/// Records the ordinal of the serving pod: the watch may lag behind.
pub(crate) fn record_serving_ordinal(context: &Context, identity: &Identity, first: i32) {
    context.memory.update(&identity.id, |memory| memory.first = first);
    context
        .memory
        .update_running(&identity.id, |running| running.probe_backoff = None);
}

async fn wait_until_synced(access: Access) {
    let Ok(api) = TenantApi::new(&access) else {
        return;
    };
    // The caller has a timeout of its own.
    let _ = probe::poll_until_ready(&api, INFORMER_SYNC, Duration::MAX).await;
}

/// Whether evictions must wait until another pod takes over. They must not if no pod will.
pub(crate) fn must_block_evictions(context: &Context, observed: &Observed) -> bool {
    let state = find_takeover_state(context, observed);
    context.host.config.planned_takeover.per_minute > 0
        && !matches!(state, Some(State::Failed(_) | State::Nowhere))
        && find_serving_pod(observed).is_some_and(|pod| drain::has_other(&context.host, pod))
}

/// Creates the PodDisruptionBudget that makes evictions wait, or deletes it.
pub(crate) async fn ensure_budget(
    context: &Context,
    identity: &Identity,
    blocks_evictions: bool,
) -> Result<(), ApplyError> {
    let budgets = &context.host.caches.budgets;
    if blocks_evictions {
        return context.applier.apply(budgets, &objects::build_budget(identity)).await;
    }
    let hosted = identity.hosted().to_string();
    let key = ObjectRef::<PodDisruptionBudget>::new(NAME).within(&hosted);
    let Some(budget) = budgets
        .get(&key)
        .filter(|budget| budget.metadata.deletion_timestamp.is_none())
    else {
        return Ok(());
    };
    let api = Api::namespaced(context.host.client.clone(), &hosted);
    context.applier.delete(&api, budget.as_ref()).await
}
